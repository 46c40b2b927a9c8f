"""Protects the runner: a request's text depends on nothing but itself, and a row that breaks breaks alone."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.schedule.plan import PLACEHOLDER
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_rope, tiny_spec, tiny_weights, tokens_of
from tests.nn.dense_twin import twin_logits
from tests.runner.hand import GREEDY, Feed, Hand

LONGROPE = RopeSpec(kind="longrope", theta=10_000.0, rotary_dim=8, max_position=256, factor=8.0,
                    original_max_position=32, short_factor=(1.0, 1.1, 1.2, 1.3), long_factor=(1.5, 2.0, 4.0,
                    8.0))
SPECS = {
    "plain": tiny_spec(),
    "windows": tiny_spec(num_layers=4, windows=(8, None, 8, 8)),
    "qk-norm, biases, untied": tiny_spec(qk_norm=True, qkv_bias=True, tied=False),
    "one kv head, odd sizes": tiny_spec(num_heads=3, num_kv_heads=1, head_dim=12, hidden_size=20,
                                        rope=replace(tiny_rope(), rotary_dim=6)),
    "dynamic rope": tiny_spec(rope=replace(tiny_rope(kind="dynamic"), factor=4.0, max_position=16)),
    "longrope": tiny_spec(rope=LONGROPE),
}
PROMPT = tokens_of(37, seed=3).tolist()
SCORED = SamplingParams(temperature=0.0, logprobs=3, prompt_logprobs=2)


@pytest.fixture(params=SPECS)
def hand(request: pytest.FixtureRequest) -> Iterator[Hand]:
    made = _hand(SPECS[request.param])
    yield made
    made.close()


def _hand(spec: ModelSpec | None = None, **changes: object) -> Hand:
    """A runner whose arena is full of NaN, as memory that someone used before may be."""
    spec = spec or SPECS["plain"]
    made = Hand(spec=spec, weights=tiny_weights(spec), **changes)  # type: ignore[arg-type]
    made.executor._cache.arena.fill_(255)
    return made


def test_equals_the_dense_twin(hand: Hand) -> None:
    """Prompt and decode log-probabilities against a float64 model without cache, batch or fusion."""
    hand.start(0, PROMPT, SCORED)
    first = hand.step(Feed(row=0, start=0, tokens=PROMPT))
    out = [int(first.tokens[0])]
    logprobs = [first.logprobs[0][0]]
    for _ in range(4):
        result = hand.step(Feed(row=0, start=len(PROMPT) + len(out) - 1, tokens=[out[-1]]))
        out.append(int(result.tokens[0]))
        logprobs.append(result.logprobs[0][0])
    exact = twin_logits(hand.spec, hand.weights, PROMPT + out[:-1], len(PROMPT)).log_softmax(-1)
    assert [position for position, _ in first.prompt_logprobs[0]] == list(range(1, len(PROMPT)))
    for position, found in first.prompt_logprobs[0]:
        assert found.token_ids[0] == PROMPT[position] and len(found.token_ids) == 3
        np.testing.assert_allclose(found.logprobs, exact[position - 1][found.token_ids.tolist()], atol=1e-4)
    for i, found in enumerate(logprobs):
        row = exact[len(PROMPT) - 1 + i]
        assert found.token_ids[0] == out[i] == int(row.argmax()) and found.rank == 0
        assert len(found.token_ids) == 4
        np.testing.assert_allclose(found.logprobs, row[found.token_ids.tolist()], atol=1e-4)


def test_chunks_are_the_whole(hand: Hand) -> None:
    """Chunks of any size, token by token included, give the text of the whole prompt."""
    whole = hand.generate(0, PROMPT, 12)
    assert len(set(whole)) > 3, "the tiny model should not repeat itself, or the test sees nothing"
    for row, chunk in enumerate((1, 4, 5, 36), start=1):
        assert hand.generate(row, PROMPT, 12, chunk=chunk) == whole


def test_alone_is_batched(hand: Hand) -> None:
    """Rows of different length, some decoding and some in chunks, in one step after another."""
    prompts = [tokens_of(n, seed=n).tolist() for n in (1, 5, 23, 40, 64)]
    alone = [hand.generate(5, prompt, 9) for prompt in prompts]
    dice = random.Random(0)
    for row, prompt in enumerate(prompts):
        hand.start(row, prompt)
    computed, outs = [0] * 5, [[] for _ in prompts]
    while min(len(out) for out in outs) < 9:
        feeds = []
        for row, prompt in enumerate(prompts):
            if dice.random() < 0.2:
                continue
            known = prompt + outs[row]
            count = min(dice.choice((1, 2, 7, 30)), len(known) - computed[row])
            last = computed[row] + count == len(known)
            part = known[computed[row]: computed[row] + count]
            feeds.append(Feed(row=row, start=computed[row], tokens=part, sample=last))
            computed[row] += count
        for row, token in hand.tokens(*feeds).items() if feeds else ():
            outs[row].append(token)
    assert [out[:9] for out in outs] == alone


def test_two_steps_in_flight(hand: Hand) -> None:
    """Step n + 1 is begun before n has finished; its placeholders are n's tokens, which never left the
    device."""
    prompts = [PROMPT, PROMPT[:11]]
    alone = [hand.generate(5, prompt, 8) for prompt in prompts]
    for row, prompt in enumerate(prompts):
        hand.start(row, prompt)
    flying = [hand.begin(*(Feed(row=row, start=0, tokens=prompt) for row, prompt in enumerate(prompts)))]
    outs: list[list[int]] = [[], []]
    for n in range(1, 9):
        if n < 8:
            flying.append(hand.begin(*(Feed(row=row, start=len(prompt) + n - 1, tokens=[PLACEHOLDER])
                                       for row, prompt in enumerate(prompts))))
        ticket, ordered = flying.pop(0)
        for row, token in hand.read(hand.executor.finish(ticket, 0.0), ordered).items():
            outs[row].append(token)
    assert outs == alone


def test_resumed_after_preemption(hand: Hand) -> None:
    """A row that starts again with its output so far, in other pages, goes on with the same text."""
    whole = hand.generate(0, PROMPT, 12)
    hand.start(1, PROMPT, output=whole[:5])
    sampled = hand.tokens(Feed(row=1, start=0, tokens=PROMPT + whole[:5]))
    out = [sampled[1]]
    while len(out) < 7:
        out.append(hand.tokens(Feed(row=1, start=len(PROMPT) + 4 + len(out), tokens=[out[-1]]))[1])
    assert whole[:5] + out == whole


def test_without_cache(hand: Hand) -> None:
    """The naive path: everything is computed again at each step, and prompt log-probabilities come once."""
    whole = hand.generate(0, PROMPT, 6)
    hand.start(1, PROMPT, SCORED)
    out: list[int] = []
    for n in range(6):
        result = hand.step(Feed(row=1, start=0, tokens=PROMPT + out))
        assert (0 in result.prompt_logprobs) == (n == 0)
        out.append(int(result.tokens[0]))
    assert out == whole


def test_forked_row(hand: Hand) -> None:
    """A child shares full pages, copies the last one before it writes, and tickets come back."""
    whole = hand.generate(0, PROMPT, 3)
    hand.start(1, PROMPT)
    hand.fork(0, 1, len(PROMPT) - 1)
    ticket, _ = hand.begin(Feed(row=1, start=len(PROMPT) - 1, tokens=[PROMPT[-1]]))
    result = hand.executor.finish(ticket, 0.0)
    assert result.tokens[0] == whole[0] and len(result.returned_tickets) == len(hand.tables)
    other = 5 if whole[0] != 5 else 6
    child = hand.tokens(Feed(row=1, start=len(PROMPT), tokens=[other]))[1]
    both = hand.tokens(Feed(row=0, start=len(PROMPT) + 2, tokens=[whole[2]]),
                       Feed(row=1, start=len(PROMPT) + 1, tokens=[child]))
    hand.start(2, [*PROMPT, other])
    assert hand.tokens(Feed(row=2, start=0, tokens=[*PROMPT, other]))[2] == child
    assert hand.generate(3, PROMPT, 4)[3] == both[0]


def test_prompt_logprobs_in_chunks_and_slices() -> None:
    """Each position once whatever the chunks, from where they are owed, never prompt x vocabulary at once."""
    spec = tiny_spec(vocab_size=1 << 20, hidden_size=8, num_heads=1, num_kv_heads=1, num_layers=1)
    made = _hand(spec)
    largest, project = 0, made.model.logits

    def watched(x_SH: torch.Tensor, prefill_from: int) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, len(x_SH))
        return project(x_SH, prefill_from)

    made.model.logits = watched  # type: ignore[method-assign]
    prompt = tokens_of(31, vocab_size=spec.vocab_size).tolist()
    made.start(0, prompt, SCORED, prompt_logprobs_from=4)
    found: list[tuple[int, int]] = []
    for low, high in ((0, 3), (3, 18), (18, 31)):
        result = made.step(Feed(row=0, start=low, tokens=prompt[low:high], sample=high == 31))
        found += [(position, int(one.token_ids[0])) for position, one in result.prompt_logprobs.get(0, [])]
    assert found == list(enumerate(prompt))[4:]
    assert largest * spec.vocab_size * 4 <= 32 << 20
    made.close()


def test_logprobs_of_the_rows_that_asked() -> None:
    """Rows of a batch ask for different numbers of top tokens, or none."""
    made = _hand()
    asks = [None, 0, 5]
    for row, asked in enumerate(asks):
        made.start(row, PROMPT, SamplingParams(temperature=0.0, logprobs=asked))
    result = made.step(*(Feed(row=row, start=0, tokens=PROMPT) for row in range(3)))
    assert {row: len(one[0].token_ids) for row, one in result.logprobs.items()} == {1: 1, 2: 6}
    assert all(one[0].token_ids[0] == result.tokens[0] for one in result.logprobs.values())
    made.close()


@pytest.mark.parametrize("sample", [True, False])
def test_nan_fails_its_row_alone(sample: bool) -> None:
    """Numbers that are not finite are reported, by a chunk that samples nothing too; neighbours go on."""
    made = _hand(tiny_spec(tied=False))
    expected = made.generate(0, PROMPT, 2)
    made.weights["embed.weight"][7] = float("nan")
    bad = [*PROMPT[:9], 7, *PROMPT[9:20]]
    assert 7 not in PROMPT
    for row, prompt in ((1, PROMPT), (2, bad), (3, PROMPT)):
        made.start(row, prompt)
    ticket, ordered = made.begin(
        Feed(row=1, start=0, tokens=PROMPT), Feed(row=2, start=0, tokens=bad, sample=sample),
        Feed(row=3, start=0, tokens=PROMPT))
    result = made.executor.finish(ticket, 0.0)
    failed = [feed.row for feed, failed in zip(ordered, result.failed) if failed]
    assert failed == [2] and "not finite" in next(iter(result.errors.values()))
    assert result.tokens.tolist() == [expected[0]] * 2 and result.num_new.sum() == 2
    after = made.tokens(*(Feed(row=row, start=len(PROMPT), tokens=[expected[0]]) for row in (1, 3)))
    assert set(after.values()) == {expected[1]}
    made.close()


def test_pages_of_a_failed_row_are_harmless() -> None:
    """The next owner of a page that holds NaN overwrites what it needs and hides the rest."""
    made = _hand()
    expected = made.generate(0, PROMPT, 4)
    assert made.generate(1, PROMPT, 4) == expected
    made.executor._cache.arena.fill_(255)
    assert made.generate(2, PROMPT, 4) == expected
    made.close()


@pytest.mark.parametrize("place", range(4))
def test_an_exception_is_bisected_to_its_row(place: int) -> None:
    """A token outside the vocabulary breaks the whole step's gather; three rows must not pay for one."""
    made = _hand()
    expected = made.generate(5, PROMPT, 2)
    for row in range(4):
        made.start(row, PROMPT, SCORED)
    feeds = [Feed(row=row, start=0, tokens=[*PROMPT[:-1], 10_000 if row == place else PROMPT[-1]])
             for row in range(4)]
    result = made.step(*feeds)
    assert result.failed.tolist() == [int(row == place) for row in range(4)]
    assert list(result.errors) == [place] and "Error" in result.errors[place]
    assert result.tokens.tolist() == [expected[0]] * 3
    assert sorted(result.prompt_logprobs) == [row for row in range(4) if row != place]
    assert all(len(found) == len(PROMPT) - 1 for found in result.prompt_logprobs.values())
    made.close()


def test_a_request_that_the_sampler_cannot_take_fails_alone() -> None:
    """Parameters that slipped past the door must not take the engine down."""
    made = _hand()
    expected = made.generate(5, PROMPT, 1)
    made.start(0, PROMPT)
    made.start(1, PROMPT, SamplingParams(temperature=0.0, logit_bias={10_000: 1.0}))
    result = made.step(*(Feed(row=row, start=0, tokens=PROMPT) for row in range(2)))
    assert result.failed.tolist() == [0, 1] and result.tokens.tolist() == expected
    assert "Error" in result.errors[1]
    made.close()


def test_steps_finish_in_order_and_keep_the_clock() -> None:
    """The protocol's promises: tickets in order, a bound on flight, times for the trace."""
    made = _hand()
    made.start(0, PROMPT, GREEDY)
    first, _ = made.begin(Feed(row=0, start=0, tokens=PROMPT[:5], sample=False))
    second, _ = made.begin(Feed(row=0, start=5, tokens=PROMPT[5:]))
    with pytest.raises(AssertionError, match="in flight"):
        made.begin(Feed(row=0, start=0, tokens=PROMPT))
    assert made.executor.ready_at(second) is None
    results = [made.executor.finish(ticket, 0.0) for ticket in (first, second)]
    assert [result.step for result in results] == [0, 1]
    assert results[0].num_new.tolist() == [0] and len(results[0].tokens) == 0
    times = [t for result in results for t in (result.started_s, result.finished_s)]
    assert times == sorted(times) and times[0] > 0
    made.close()
