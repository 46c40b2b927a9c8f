"""The sampler against its slow twin, and what a row's token may depend on: its own logits, parameters, seed
and position."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.runner.adjust import Adjustments
from ridgeline.runner.sampler import Sampler, gumbel
from ridgeline.schedule.plan import RowStart
from ridgeline.spec.sampling import SamplingParams
from tests.runner import slow_sampler

CPU = torch.device("cpu")
STOPS = (0, 3)
PLAIN = SamplingParams(temperature=1.0)

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-12, 1e-6, 1e-5, 0.3, 1.0, 3.0, 100.0]),
    top_k=st.sampled_from([0, -1, 0, 1, 2, 5, 40, 600]),
    top_p=st.sampled_from([1.0, 1.0, 0.9, 0.5, 0.1, 0.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3, 0.8]),
    presence_penalty=st.sampled_from([0.0, 0.0, 0.7, -0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5, -1.0]),
    min_tokens=st.sampled_from([0, 0, 2]),
    logit_bias=st.sampled_from([{}, {}, {1: 3.0, 2: -500.0}, {4: 100.0}]),
)


class Row:
    """A request on a row, and its text."""

    def __init__(self, params: SamplingParams, seed: int, prompt: list[int], output: list[int]) -> None:
        self.params, self.seed, self.prompt, self.output = params, seed, prompt, list(output)

    def start(self, sampler: Sampler, row: int) -> None:
        sampler.start(RowStart(
            request=0, row=row, params=self.params, seed=self.seed, prompt=np.array(self.prompt, np.int32),
            output=np.array(self.output, np.int32), stop_token_ids=STOPS))

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)

    def expected(self, logits: torch.Tensor) -> int:
        adjusted = slow_sampler.adjust(logits.tolist(), self.params, self.prompt, self.output, STOPS)
        return slow_sampler.sample(torch.tensor(adjusted).tolist(), self.params, self.seed, self.position)


def sample(sampler: Sampler, logits: torch.Tensor, rows: list[int], positions: list[int]) -> list[int]:
    before = logits.clone()
    out = sampler.sample(logits, torch.tensor(rows), torch.tensor(positions))
    assert torch.equal(logits, before), "the model's logits are read again for logprobs"
    assert not out.failed_S.any()
    return out.tokens_S.tolist()


def logits_of(seed: int, num_rows: int, vocab_size: int, spread: float, grain: float) -> torch.Tensor:
    """Random logits; with a grain they have many ties."""
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    return (logits / grain).round() * grain if grain else logits


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PARAMS, st.integers(-5, 2**63 - 1)), min_size=1, max_size=5),
       st.sampled_from([5, 12, 64, 65, 200, 1500]), st.sampled_from([0.1, 1.0, 5.0]),
       st.sampled_from([0.0, 0.5, 50.0]), st.integers(0, 10**6))
def test_tokens_are_the_slow_twins(asked: list[tuple[SamplingParams, int]], vocab_size: int, spread: float,
                                   grain: float, seed: int) -> None:
    """Every rule, filter and tie as written out in plain Python, over several steps of one text."""
    random = np.random.default_rng(seed)
    sampler, places = Sampler(9, vocab_size, CPU), random.permutation(9)[: len(asked)].tolist()
    rows = [Row(params, own, *(random.integers(0, vocab_size, size).tolist() for size in (7, 2)))
            for params, own in asked]
    for row, place in zip(rows, places):
        row.start(sampler, place)
    for step in range(3):
        logits = logits_of(seed + step, len(rows), vocab_size, spread, grain)
        tokens = sample(sampler, logits, places, [row.position for row in rows])
        assert tokens == [row.expected(logits[i]) for i, row in enumerate(rows)]
        for row, token in zip(rows, tokens):
            row.output.append(token)


@settings(max_examples=25, deadline=None)
@given(PARAMS, st.lists(PARAMS, max_size=18), st.integers(0, 18), st.integers(0, 10**6))
def test_neighbours_and_places_do_not_show(params: SamplingParams, others: list[SamplingParams], at: int,
                                           seed: int) -> None:
    """A row's token is the same alone and among others, on any runner row and in any order (C-11)."""
    logits = logits_of(seed, 1 + len(others), 700, 3.0, 0.25)
    tokens = []
    for crowd, row in (([], 0), (others, 20)):
        sampler, at = Sampler(24, 700, CPU), min(at, len(crowd))
        for place, other in enumerate(crowd):
            Row(other, place, [1, 2], []).start(sampler, place)
        Row(params, 42, [5, 6, 7], [5]).start(sampler, row)
        order = [*range(at), row, *range(at, len(crowd))]
        mixed = torch.cat([logits[1 : at + 1], logits[:1], logits[at + 1 : len(crowd) + 1]])
        positions = [4 if place == row else 2 for place in order]
        tokens.append(sample(sampler, mixed, order, positions)[at])
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("params", [
    PLAIN, replace(PLAIN, temperature=0.5), replace(PLAIN, min_p=0.01), replace(PLAIN, top_p=0.4),
    replace(PLAIN, top_p=0.95), replace(PLAIN, top_p=0.9, min_p=0.02), replace(PLAIN, top_k=30),
    replace(PLAIN, top_k=2000, top_p=0.8),
], ids=["plain", "cold", "min_p", "small", "nucleus", "both", "few", "many"])
@pytest.mark.parametrize("spread", [0.01, 1.0, 3.0])
def test_draws_from_a_large_vocabulary_are_exact(params: SamplingParams, spread: float) -> None:
    """Over hundreds of blocks, flat or peaked, the winner is that of a race run over everything at once."""
    vocab_size, num_rows = 20011, 6
    sampler, rows = Sampler(num_rows, vocab_size, CPU), list(range(num_rows))
    for row in rows:
        Row(params, row, [1], []).start(sampler, row)
    for position in (1, 2):
        logits = logits_of(position, num_rows, vocab_size, spread, 0.0)
        logits[::3, :50] += 3 * spread
        expected = []
        for row in rows:
            scaled, ids = (logits[row].double() / params.temperature).sort(descending=True, stable=True)
            mass = (scaled - scaled[0]).exp()
            mass[mass < params.min_p] = 0.0
            if params.top_k:
                mass[params.top_k :] = 0.0
            inside = (mass.cumsum(0) - mass < params.top_p * mass.sum()) & (mass > 0)
            score = scaled + gumbel(row, position, ids)
            expected.append(int(ids[score.masked_fill(~inside, -torch.inf).argmax()]))
        assert sample(sampler, logits, rows, [position] * num_rows) == expected


def test_tiny_temperatures_are_greedy() -> None:
    """From 1e-12 to 1e-3 the best token wins, whatever the noise, and nothing becomes NaN (C-10)."""
    logits = logits_of(0, 8, 300, 5.0, 0.0)
    for temperature in (0.0, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3):
        sampler = Sampler(8, 300, CPU)
        for row in range(8):
            Row(SamplingParams(temperature=temperature), row, [1], []).start(sampler, row)
        assert sample(sampler, logits * 10, list(range(8)), [1] * 8) == logits.argmax(1).tolist()


@pytest.mark.parametrize("vocab_size", [10, 64, 130, 49152])
def test_greedy_ties_go_to_the_lowest_id(vocab_size: int) -> None:
    """Within a block, across blocks and in the last short block."""
    sampler = Sampler(3, vocab_size, CPU)
    logits = torch.zeros(3, vocab_size)
    logits[1, vocab_size // 3 :] = 1.0
    logits[2, -1] = 1.0
    for row in range(3):
        Row(SamplingParams(temperature=0.0), row, [1], []).start(sampler, row)
    assert sample(sampler, logits, [0, 1, 2], [1, 1, 1]) == [0, vocab_size // 3, vocab_size - 1]


def test_rows_that_are_not_finite_fail_alone() -> None:
    """NaN and infinities are reported; the rows beside them are sampled as if alone."""
    sampler = Sampler(6, 100, CPU)
    for row in range(6):
        Row(replace(PLAIN, top_p=0.9, top_k=row % 2 * 7), row, [1], []).start(sampler, row)
    logits = logits_of(1, 6, 100, 1.0, 0.0)
    good = sampler.sample(logits, torch.arange(6), torch.ones(6, dtype=torch.long)).tokens_S
    logits[0, 3], logits[1, 4], logits[3], logits[4, 99] = torch.nan, torch.inf, torch.nan, -torch.inf
    out = sampler.sample(logits, torch.arange(6), torch.ones(6, dtype=torch.long))
    assert out.failed_S.tolist() == [True, True, False, True, True, False]
    assert out.tokens_S[[2, 5]].tolist() == good[[2, 5]].tolist()
    assert ((out.tokens_S >= 0) & (out.tokens_S < 100)).all()


def test_sampling_a_position_again_gives_the_same_token() -> None:
    """A step that is run again (a neighbour broke) must not count its tokens twice."""
    row = Row(replace(PLAIN, frequency_penalty=2.0, repetition_penalty=1.5), 3, [1, 2], [])
    sampler = Sampler(1, 8, CPU)
    row.start(sampler, 0)
    for step in range(20):
        logits = logits_of(step, 1, 8, 1.0, 0.0)
        first, again = (sample(sampler, logits, [0], [row.position])[0] for _ in range(2))
        assert first == again == row.expected(logits[0])
        row.output.append(first)


def test_a_resumed_row_goes_on_as_if_never_preempted() -> None:
    """A new RowStart with the text so far replaces what the sampler counted, on another row too."""
    row = Row(replace(PLAIN, presence_penalty=1.0, repetition_penalty=1.2), 9, [1, 2, 2], [])
    sampler = Sampler(4, 80, CPU)
    row.start(sampler, 0)
    for step in range(9):
        if step in (3, 6):
            Row(PLAIN, 1, [3], []).start(sampler, 0)
            row.start(sampler, step // 3)
        logits = logits_of(step, 1, 80, 2.0, 0.0)
        token = sample(sampler, logits, [step // 3], [row.position])[0]
        assert token == row.expected(logits[0])
        row.output.append(token)


def test_more_penalized_rows_than_before() -> None:
    """The texts kept for penalties grow in number and length."""
    sampler, logits = Sampler(12, 40, CPU), logits_of(5, 12, 40, 2.0, 0.0)
    for round_ in range(3):
        rows = [Row(replace(PLAIN, repetition_penalty=1.4), n, [n, round_] * (1 + 150 * round_), [n])
                for n in range(12)]
        for place, row in enumerate(rows):
            row.start(sampler, place)
        tokens = sample(sampler, logits, list(range(12)), [row.position for row in rows])
        assert tokens == [row.expected(logits[i]) for i, row in enumerate(rows)]


def test_places_of_texts_are_used_again() -> None:
    """Requests that come and go on a row leave nothing behind."""
    adjust = Adjustments(40, CPU)
    for request in range(50):
        params = replace(PLAIN, presence_penalty=0.5 if request % 3 else 0.0)
        adjust.start(RowStart(request=request, row=request % 4, params=params, seed=0, stop_token_ids=(),
                              prompt=np.ones(3, np.int32), output=np.zeros(0, np.int32)))
    assert adjust.num_places == 4


def test_noise_has_one_definition() -> None:
    """gumbel() of some ids equals gumbel() of all, depends on seed and position, and takes any 64-bit
    seed."""
    whole = gumbel(7, 3, torch.arange(500))
    assert torch.equal(gumbel(7, 3, torch.tensor([499, 0, 17])), whole[[499, 0, 17]])
    assert torch.equal(gumbel(7 + 2**64, 3, torch.arange(500)), whole)
    for seed, position in ((8, 3), (7, 4), (-7, 3), (3, 7)):
        other = gumbel(seed, position, torch.arange(500))
        assert not torch.isclose(other, whole).any(), "two draws are alike"


def test_pinned_draws() -> None:
    """A seed's text stays what it was: a change of the noise changes every seeded answer, so it must be
    meant."""
    logits = torch.zeros(4, 49152)
    sampler = Sampler(4, 49152, CPU)
    for row in range(4):
        Row(PLAIN, 42 + row % 2, [1] * 9, []).start(sampler, row)
    assert sample(sampler, logits, [0, 1, 2, 3], [9, 9, 10, 10]) == [26405, 23197, 17091, 18666]

