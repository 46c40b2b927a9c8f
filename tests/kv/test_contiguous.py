"""The contiguous baseline: its runs never overlap, and it wastes what paging does not."""

import random

import pytest

from ridgeline.kv.contiguous import ContiguousManager, Runs
from ridgeline.kv.manager import KVManager
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness, expected, layout_of
from tests.kv.layouts import layout, paged


@pytest.mark.parametrize("seed", range(5))
def test_first_fit_equals_a_search_of_the_arena(seed: int) -> None:
    """The free list finds the place that trying every page finds, and forgets and doubles nothing."""
    rng, taken, runs, size = random.Random(seed), {0}, Runs(60), 60
    live: list[tuple[int, int]] = []
    for _ in range(200):
        if live and rng.random() < 0.5:
            start, length = live.pop(rng.randrange(len(live)))
            runs.give(start, length)
            taken -= set(range(start, start + length))
            continue
        length = rng.randrange(1, 20)
        want = next((at for at in range(1, size - length + 1)
                     if not taken & set(range(at, at + length))), 0)
        assert runs.take(length) == want
        if want:
            live.append((want, length))
            taken |= set(range(want, want + length))
        assert runs.total == size - len(taken)


@pytest.mark.parametrize("kind", ["paged", "window", "mixed"])
@pytest.mark.parametrize("reserve_tokens", [None, 40])
def test_a_scheduler_runs_on_it(kind: str, reserve_tokens: int | None) -> None:
    """Every text is what it is alone, read through block tables that name one run; nobody is preempted."""
    found = layout_of(kind)
    manager = ContiguousManager(found, 33, reserve_tokens=reserve_tokens)
    harness = Harness(kind, num_pages=33, max_model_len=40, manager=manager)
    work = {str(i): (list(range(1, 4 + 3 * i)), 3 + 4 * (i % 3)) for i in range(8)}
    for name, (prompt, most) in work.items():
        harness.add(name, prompt, SamplingParams(seed=1, max_tokens=most, n=2 if name == "3" else 1))
    harness.run()
    for name, (prompt, most) in work.items():
        told = harness.told[name, 0]
        assert told.tokens == expected(prompt, SamplingParams(seed=1, max_tokens=most), 1, 40)[0]
        assert told.last is not None and told.last.account["reuse_limit"]
    assert harness.loop.stats()["num_preemptions"] == 0


def test_fragmentation_is_told_apart() -> None:
    """Reserved for the answer: internal. Between two that stay: external. Pages have neither, but for the
    last page of each."""
    shape = layout(paged(4))
    contiguous, pages = ContiguousManager(shape, 21), KVManager(shape, 21)
    for manager in (contiguous, pages):
        for seq in range(3):
            manager.open(seq, list(range(seq * 100, seq * 100 + 6)), end=20)
            assert manager.reserve(seq, 6)
        manager.close_step(0, {})
        manager.step_finished(0)
        for seq in range(3):
            manager.commit(seq, 6, list(range(seq * 100, seq * 100 + 6)))
        manager.release(1)
        manager.check()
    found = contiguous.fragmentation()
    assert (found.num_residents, found.capacity_bytes, found.free_bytes) == (2, 20 * 64, 10 * 64)
    assert (found.used_bytes, found.internal_bytes) == (2 * 6 * 16, 2 * 14 * 16)
    assert found.external_bytes == 5 * 64
    paging = pages.fragmentation()
    assert (paging.used_bytes, paging.internal_bytes, paging.external_bytes) == (2 * 6 * 16, 2 * 2 * 16, 0)
    assert paging.free_bytes == (20 - 4) * 64


def test_it_says_what_can_never_run() -> None:
    manager = ContiguousManager(layout(paged(4)), 11, reserve_tokens=64)
    assert manager.largest_request(1000) == 0
    assert ContiguousManager(layout(paged(4)), 11).largest_request(1000) == 40
