"""Protects what is said of prefix caches: the KV manager finds what a plain LRU of blocks finds at every
size, and a cache without end finds what the trace's ids say."""

from collections import OrderedDict
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.sim.reuse import ideal_reuse, reuse
from ridgeline.workload.offered import Offered

BLOCK = 4


def twin(requests: Sequence[Offered], num_blocks: int) -> int:
    """Tokens found by least recently used blocks, of which a prompt's last is older than its first. A prompt
    that was there whole computes its last token, for which it copies the block that has it."""
    cached: OrderedDict[tuple[int, ...], None] = OrderedDict()
    hit_tokens = 0
    for number, one in enumerate(requests):
        size, total = one.block_tokens, -(-one.num_prompt // one.block_tokens)
        if total > num_blocks:
            continue
        own = range(len(one.prefix), one.num_prompt // size)
        ids = (*one.prefix, *((number + 1) * 1000 + place for place in own))
        names = [ids[:end] for end in range(1, len(ids) + 1)]
        leading = next((i for i, name in enumerate(names) if name not in cached), len(names))
        hit = min(leading * size, one.num_prompt - 1)
        hit_tokens += hit
        held = names[:hit // size]
        for name in held:
            del cached[name]
        if hit < leading * size:  # held for the copy
            cached.move_to_end(names[leading - 1])
        while len(cached) + total > num_blocks:
            cached.popitem(last=False)
        for name in reversed(names):
            cached[name] = None
            cached.move_to_end(name)
    return hit_tokens


def conversations(random: Random, num_requests: int, block: int = BLOCK) -> list[Offered]:
    """Turns of talks that go on, begin like others or anew, in Mooncake's form."""
    talks: list[tuple[int, ...]] = [()]
    found, next_id = [], 0
    for _ in range(num_requests):
        before = random.choice(talks)[:random.choice((0, 1, 1000))]
        grown = random.randint(0, 4)
        prefix = (*before, *range(next_id, next_id + grown))
        next_id += grown
        rest = random.choice((0, random.randrange(3 * block))) if prefix else random.randint(1, 9)
        found.append(Offered(arrived_s=0.0, num_prompt=len(prefix) * block + rest, num_output=1,
                             prefix=prefix, block_tokens=block))
        talks.append(prefix)
    return found


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 40), st.integers(1, 40))
def test_the_manager_finds_what_a_plain_lru_finds(seed: int, num_blocks: int) -> None:
    requests = conversations(Random(seed), 30)
    found = reuse(requests, num_blocks)
    assert found.hit_tokens == twin(requests, num_blocks)
    assert found.hit_blocks <= ideal_reuse(requests).hit_blocks


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 40))
def test_a_cache_without_end_finds_all_there_is(seed: int) -> None:
    requests = conversations(Random(seed), 30)
    assert reuse(requests, 10_000) == ideal_reuse(requests)
    seen: set[tuple[int, ...]] = set()
    hits = 0
    for one in requests:
        names = {one.prefix[:end] for end in range(1, len(one.prefix) + 1)}
        hits += len(names & seen)
        seen |= names
    assert ideal_reuse(requests).hit_blocks == hits


def test_a_larger_cache_finds_more() -> None:
    requests = conversations(Random(1), 200, block=16)
    rates = [reuse(requests, size).block_rate for size in (8, 32, 128, 512, 2048)]
    assert rates == sorted(rates) and rates[0] < rates[-1] == pytest.approx(ideal_reuse(requests).block_rate)


@pytest.mark.soak
@pytest.mark.parametrize("num_blocks", [100, 3000, 30_000])
def test_a_long_trace_finds_what_a_plain_lru_finds(num_blocks: int) -> None:
    requests = conversations(Random(num_blocks), 12_000, block=512)
    assert reuse(requests, num_blocks).hit_tokens == twin(requests, num_blocks)
