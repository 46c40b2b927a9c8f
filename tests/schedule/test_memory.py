"""Memory pressure: who gives way, and what a request hears of what it reused."""

from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import Harness, expected
from tests.schedule.test_scheduler import greedy, prompt


def test_the_cheapest_that_suffices_gives_way() -> None:
    """Of three behind the first, the one that computed least is preempted though it is not the last; the
    others keep their pages."""
    harness = Harness(num_pages=27, num_rows=4, max_step_tokens=96, prefix_caching=False)
    lengths = {"a": 20, "b": 30, "c": 6, "d": 30}
    for start, (name, length) in enumerate(lengths.items()):
        harness.add(name, prompt(length, start), greedy(16 if name == "a" else 8))
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert {name for name, record in records.items() if record.num_preemptions} == {"c"}
    for start, (name, length) in enumerate(lengths.items()):
        params = greedy(16 if name == "a" else 8)
        assert harness.told[name, 0].tokens == expected(prompt(length, start), params, 1, 128)[0]


def test_a_lower_class_gives_way_before_a_cheaper_request() -> None:
    """Priority comes first: the costly one of the lowest class goes, not the small one above it."""
    harness = Harness(num_pages=19, num_rows=3, max_step_tokens=64, prefix_caching=False, policy="priority")
    harness.add("first", prompt(20, 1), greedy(14), priority=0)
    harness.add("small", prompt(6, 2), greedy(8), priority=1)
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
