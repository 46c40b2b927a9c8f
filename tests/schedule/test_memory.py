"""Memory pressure: who gives way and how they come back, what is foreseen, and what a request hears of what
it reused."""

import random

import numpy as np
import pytest

from ridgeline.schedule.forecast import Outputs, peak_pages
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.pressure import Pressure
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness, expected
from tests.schedule.test_scheduler import greedy, prompt


def test_the_cheapest_that_suffices_gives_way() -> None:
    """Of three behind the first, the one that computed least is preempted though it is not the last; the
    others keep their pages."""
    harness = Harness(num_pages=32, num_rows=4, max_step_tokens=90, prefix_caching=False)
    sizes = {"a": (20, 40), "b": (30, 14), "c": (6, 14), "d": (30, 14)}
    for start, (name, (length, most)) in enumerate(sizes.items()):
        harness.add(name, prompt(length, start), greedy(most))
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert {name for name, record in records.items() if record.num_preemptions} == {"c"}
    for start, (name, (length, most)) in enumerate(sizes.items()):
        assert harness.told[name, 0].tokens == expected(prompt(length, start), greedy(most), 1, 128)[0]


def test_a_lower_class_gives_way_before_a_cheaper_request() -> None:
    """Priority comes first: the costly one of the lowest class goes, not the small one above it."""
    harness = Harness(num_pages=20, num_rows=3, max_step_tokens=64, prefix_caching=False, policy="priority")
    harness.add("first", prompt(20, 1), greedy(34), priority=0)
    harness.add("small", prompt(6, 2), greedy(18), priority=1)
    harness.add("low", prompt(32, 3), greedy(8), priority=2)
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert [records[name].num_preemptions > 0 for name in ("first", "small", "low")] == [False, False, True]


def test_a_request_hears_what_it_reused_and_why_not_more() -> None:
    """The account at the end, whoever was preempted meanwhile; owed log-probabilities and choices have
    reasons of their own."""
    harness = Harness(num_pages=60)
    harness.add("cold", prompt(20), greedy(2))
    harness.run()
    harness.add("again", prompt(20), greedy(2, n=2))
    harness.run()
    harness.add("scored", prompt(20), greedy(2, prompt_logprobs=0))
    harness.run()
    naive = Harness(cache=False, max_step_tokens=128)
    naive.add("naive", prompt(20), greedy(2))
    naive.run()

    def account(harness: Harness, name: str, choice: int = 0) -> tuple[object, object]:
        last = harness.told[name, choice].last
        assert last is not None
        return last.account["num_reused_tokens"], last.account["reuse_limit"]

    assert account(harness, "cold") == (0, "no block of this prefix was ever cached")
    assert account(harness, "again") == account(harness, "again", 1) == (
        19, "last position is always computed")
    assert account(harness, "scored") == (0, "prompt logprobs asked")
    assert account(naive, "naive") == (0, "the cache is off")


def test_a_prompt_of_one_token_has_nothing_to_reuse() -> None:
    harness = Harness()
    harness.add("one", [5], SamplingParams(seed=1, max_tokens=2))
    harness.run()
    last = harness.told["one", 0].last
    assert last is not None and last.account["reuse_limit"] == "last position is always computed"


# ---- to host memory and back

SWAP = Pressure(swap_s=lambda num_bytes: 0.0)


def crowd(kind: str, pressure: Pressure, **more: object) -> Harness:
    """Three requests that outgrow the pool together."""
    harness = Harness(kind, num_pages=13 if kind == "paged" else 20, num_rows=3, max_step_tokens=32,
                      num_host_pages=40, pressure=pressure, **more)  # type: ignore[arg-type]
    for start in range(3):
        harness.add(str(start), prompt(8, start), greedy(26))
    harness.run()
    return harness


@pytest.mark.parametrize("kind", ["paged", "window", "mixed"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_what_is_swapped_comes_back_and_is_not_computed_again(kind: str, depth: int,
                                                              prefix_caching: bool) -> None:
    """Tokens that a step in flight still writes go along; each position is computed once, whatever is
    preempted, and every text is what it is alone."""
    harness = crowd(kind, SWAP, depth=depth, prefix_caching=prefix_caching)
    stats = harness.loop.stats()
    for start in range(3):
        assert harness.told[str(start), 0].tokens == expected(prompt(8, start), greedy(26), 1, 128)[0]
    assert stats["num_recomputed_tokens"] == 0 and stats["num_swaps"] == stats["num_preemptions"]
    assert sum(plan.num_tokens for plan in harness.executor.plans) == 3 * 33
    if kind == "paged":
        assert stats["num_swaps"] > 0 and stats["num_out_pages"] >= stats["num_back_pages"]


def test_the_cheaper_way_is_taken() -> None:
    """Prices decide for each victim: bytes over the link against tokens to compute. Without prices, or
    without room at the host, it is computed again."""
    dear = crowd("paged", Pressure(recompute_s=lambda tokens: tokens * 1.0, swap_s=lambda size: size * 1.0))
    cheap = crowd("paged", Pressure(recompute_s=lambda tokens: tokens * 1.0, swap_s=lambda size: size / 1e6))
    plain = crowd("paged", Pressure())
    assert dear.loop.stats()["num_swaps"] == plain.loop.stats()["num_swaps"] == 0
    assert 0 < cheap.loop.stats()["num_swaps"] == cheap.loop.stats()["num_preemptions"]


def test_evicted_prefixes_are_found_at_the_host() -> None:
    """A pool that holds one prompt: the first one's blocks move to the host when the second comes, and come
    back for the third, which computes its last token alone."""
    harness = Harness(num_pages=9, num_rows=1, num_host_pages=20)
    for name, start in (("a", 1), ("b", 2), ("again", 1)):
        harness.add(name, prompt(24, start), greedy(4))
        harness.run()
    last, stats = harness.told["again", 0].last, harness.loop.stats()
    assert last is not None and last.account["num_reused_tokens"] == 23
    assert stats["num_host_hit_tokens"] >= 16 and stats["num_back_pages"] >= 4
    assert harness.told["again", 0].tokens == harness.told["a", 0].tokens


def test_a_swapped_request_that_is_aborted_leaves_nothing_behind() -> None:
    harness = Harness(num_pages=13, num_rows=3, num_host_pages=40, pressure=SWAP)
    for start in range(3):
        harness.add(str(start), prompt(8, start), greedy(26))
    while not harness.loop.stats()["num_swaps"]:
        harness.step()
    for start in range(3):
        harness.loop.abort(str(start))
    harness.run()


@pytest.mark.parametrize("seed", range(6))
def test_copies_that_were_lost_are_not_trusted(seed: int) -> None:
    """Steps raise before anything was copied: whoever was on the way to the host is computed again, and
    nobody finds a page that never arrived."""
    def lose(plan: StepPlan) -> bool:
        return len(plan.copies) > 0 and hash((plan.step, seed)) % 2 == 0

    harness = Harness(num_pages=13, num_rows=3, num_host_pages=40, pressure=SWAP, lose=lose)
    rng = random.Random(seed)
    for index in range(12):
        harness.add(str(index), prompt(rng.randrange(4, 20), index % 3), greedy(rng.randrange(5, 26)))
        harness.step()
    harness.run()
    ends = [harness.told[str(index), 0].last for index in range(12)]
    assert all(end is not None and end.finish for end in ends)
    rng = random.Random(seed)
    for index in range(12):
        text = expected(prompt(rng.randrange(4, 20), index % 3), greedy(rng.randrange(5, 26)), 1, 128)[0]
        assert harness.told[str(index), 0].tokens == text[:len(harness.told[str(index), 0].tokens)]


# ---- what is foreseen


@pytest.mark.parametrize("seed", range(20))
def test_the_forecast_equals_stepping(seed: int) -> None:
    """The most pages over all future steps, found where somebody ends, is what a walk through every step
    finds."""
    rng, size = random.Random(seed), 4
    table = np.array([0, *sorted(rng.choices(range(1, 40), k=30))])  # pages of so many blocks
    count = rng.randrange(1, 9)
    known = np.array([rng.randrange(1, 50) for _ in range(count)])
    left = np.array([rng.randrange(0, 60) for _ in range(count)])
    held = table[-(-known // size)]
    kept = np.array([rng.randrange(h + 1) for h in held])

    def at(step: int) -> int:
        total = 0
        for k, rest, h, kept_pages in zip(known, left, held, kept):
            stays = step <= -(-rest // size) * size
            total += table[-(-(k + step) // size)] - h if stays else kept_pages - h
        return total

    slow = max(at(step) for step in range(80))
    assert peak_pages(table, known, left, held, kept, block_tokens=size) == slow


def test_answers_are_expected_as_their_tenants_were() -> None:
    """A quantile of those longer than what there is already, by tenant, never beyond what may be; with
    nothing to go by, as many again."""
    outputs = Outputs(quantile=0.5, most_seen=4, most_tenants=2)
    assert [outputs.expect("a", produced, 100) for produced in (0, 10, 80)] == [1, 20, 100]
    for length in (900, 10, 20, 30, 40):
        outputs.observe("a", length)
    assert [outputs.expect("a", produced, 100) for produced in (0, 25, 40)] == [30, 40, 80]
    assert outputs.expect("a", 0, 12) == 12 and outputs.expect("b", 0, 12) == 1
    for tenant in "bc":
        outputs.observe(tenant, 7)
    assert outputs.expect("a", 0, 100) == 1, "who was not heard of for long is forgotten"


def test_a_foreseen_answer_waits_instead_of_being_preempted() -> None:
    """Once a tenant's answers are known to be long, requests that would outgrow the pool together start one
    after another; what is wrongly foreseen costs a preemption and no text."""
    def preemptions(warm: int) -> int:
        harness = Harness(num_pages=13, num_rows=3, max_step_tokens=32, prefix_caching=False)
        for index in range(warm):
            harness.add(f"warm {index}", prompt(3, index), greedy(26))
            harness.run()
        before = harness.loop.stats()["num_preemptions"]
        for start in range(3):
            harness.add(str(start), prompt(8, start), greedy(26))
        harness.run()
        for start in range(3):
            assert harness.told[str(start), 0].tokens == expected(prompt(8, start), greedy(26), 1, 128)[0]
        after = harness.loop.stats()["num_preemptions"]
        assert isinstance(after, int) and isinstance(before, int)
        return after - before

    assert preemptions(0) > 0 == preemptions(1)


def test_a_watermark_stays_free_when_requests_start() -> None:
    """In bytes of the cache: a second request that would use it waits, one that is alone does not."""
    for mark, together in ((0, True), (6 * 128, False)):
        harness = Harness(num_pages=13, pressure=Pressure(watermark_bytes=mark))
        assert harness.executor.layout.page_bytes == 512
        harness.add("a", prompt(16, 1), greedy(4))
        harness.add("b", prompt(20, 2), greedy(4))
        harness.step()
        assert (harness.loop.stats()["num_running"] == 2) == together
        harness.run()
