"""The cube: every kind of cache; cold, hit and forked within a block; plain, preempted and resumed; alone and
batched; with n-grams and without drafts. Greedy texts are what the request says alone, computed whole."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product

import pytest

from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_latent, tiny_shared, tiny_spec, tiny_states, tokens_of
from tests.invariance.driver import Job, Setup, Tally, Tiny

SPECS: dict[str, ModelSpec] = {
    "paged": tiny_spec(), "window": tiny_spec(windows=(9, 5)), "latent": tiny_latent(),
    "shared": tiny_shared(), "state": tiny_states("state"), "hybrid": tiny_states("hybrid")}
WORDS = (5, 11, 37, 58, 70, 91)  # of all answers, so that n-grams find something; the model says their order
PROMPTS = tuple(tuple(tokens_of(length, seed=length).tolist()) for length in (21, 14, 30))


@dataclass(frozen=True, kw_only=True)
class Cell:
    kind: str
    reuse: str
    resumed: bool
    batched: bool
    drafts: str

    def pairs(self) -> set[tuple[object, ...]]:
        """What the cell is, two ways at a time."""
        values = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return set(combinations(values, 2))


CUBE = [Cell(kind=kind, reuse=reuse, resumed=resumed, batched=batched, drafts=drafts)
        for kind, reuse, resumed, batched, drafts in product(
            SPECS, ("cold", "hit", "fork"), (False, True), (False, True), ("ngram", ""))]


def pairwise(cells: Sequence[Cell]) -> list[Cell]:
    """A few cells that have every pair of values between them."""
    owed, chosen = set().union(*(cell.pairs() for cell in cells)), []
    while owed:
        chosen.append(max(cells, key=lambda cell: len(cell.pairs() & owed)))
        owed -= chosen[-1].pairs()
    return chosen


def job(prompt: tuple[int, ...], *, n: int = 1, max_tokens: int = 20, at: int = 0,
        urgent: bool = False) -> Job:
    return Job(prompt=prompt, at=at, priority=-1 if urgent else 0, params=SamplingParams(
        temperature=0.0, seed=0, n=n, max_tokens=max_tokens, ignore_eos=True,
        logit_bias=dict.fromkeys(WORDS, 90.0)))


def run(cells: Sequence[Cell], tinies: dict[str, Tiny]) -> None:
    tally, sums = Tally(), Counter[str]()
    for cell in cells:
        stats = run_one(cell, tinies[cell.kind], tally)
        sums.update({name: value for name, value in stats.items() if isinstance(value, int)})
    tally.report(f"{len(cells)} of {len(CUBE)} cells")
    assert sums["num_draft_tokens"] > sums["num_accepted_tokens"] > sums["num_draft_tokens"] // 10


def run_one(cell: Cell, tiny: Tiny, tally: Tally) -> dict[str, object]:
    """Somebody urgent takes all rows of the resumed. Alone is a request with its own choices; a hit finds all
    but its prompt's last tokens."""
    n = 2 if cell.reuse == "fork" else 1
    work = [job(prompt, n=n, at=i) for i, prompt in enumerate(PROMPTS[: 3 if cell.batched else 1])]
    rows = n * len(work)
    if cell.resumed:
        work.append(job(PROMPTS[1][::-1], n=rows, max_tokens=6, at=5, urgent=True))
    warm = [job(one.prompt[:-2], max_tokens=5) for one in work] if cell.reuse == "hit" else []
    setup = Setup(num_rows=rows, depth=2, prefix_caching=cell.reuse != "cold", policy="priority",
                  snapshot_stride=8, speculate=cell.drafts)
    stats = tally.compare(tiny, setup, work, warm=warm).stats
    assert bool(stats["num_preemptions"]) is cell.resumed
    assert stats["num_cached_tokens"] or cell.reuse == "cold"
    assert stats["num_draft_tokens"] if cell.drafts else "num_draft_tokens" not in stats
    return stats


@pytest.fixture(scope="module")
def tinies() -> dict[str, Tiny]:
    return {kind: Tiny(spec) for kind, spec in SPECS.items()}


def test_every_pair_of_the_cube(tinies: dict[str, Tiny]) -> None:
    run(pairwise(CUBE), tinies)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_whole_cube(tinies: dict[str, Tiny]) -> None:
    run(CUBE, tinies)
