"""What the scheduler promises, one by one: budgets, order, preemption, ends, forks, aborts."""

from collections import Counter

import numpy as np
import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.door import mix_seed
from ridgeline.schedule.plan import PLACEHOLDER, SAMPLE_NEXT
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.request import Finish
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import VOCAB, FakeExecutor, Harness, expected, layout_of


def greedy(max_tokens: int | None, **more: object) -> SamplingParams:
    return SamplingParams(seed=1, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


def prompt(length: int, start: int = 1) -> list[int]:
    return [1 + (start + 3 * i) % (VOCAB - 1) for i in range(length)]


def sampled(harness: Harness) -> Counter[int]:
    """How often each request number sampled, over all plans."""
    numbers = [plan.request[plan.sample == SAMPLE_NEXT] for plan in harness.executor.plans]
    return Counter(np.concatenate(numbers).tolist())


# ---- budget and order


def test_a_long_prefill_does_not_starve_a_decode() -> None:
    """The decode is in every step while a prompt ten times the budget is prefilled in chunks beside it."""
    harness = Harness(num_pages=60, max_step_tokens=8)
    harness.add("short", prompt(3), greedy(30))
    harness.step()
    harness.add("long", prompt(80, 5), greedy(2))
    harness.run()
    plans = harness.executor.plans
    first = next(i for i, plan in enumerate(plans) if 1 in plan.request)
    last = max(i for i, plan in enumerate(plans) if 1 in plan.request and plan.num_rows > plan.num_decodes)
    assert last - first >= 80 // 8
    assert all(0 in plan.request for plan in plans[first:last + 1])
    assert all(plan.num_tokens == 8 for plan in plans[first:last])


def test_a_step_never_exceeds_its_budget() -> None:
    """The executor asserts it for each plan; here many rows and chunks compete for few tokens."""
    harness = Harness(num_pages=120, num_rows=6, max_step_tokens=7)
    for i in range(12):
        harness.add(str(i), prompt(5 + 3 * i, i), greedy(6))
    harness.run()
    assert max(plan.num_tokens for plan in harness.executor.plans) == 7


def test_first_come_first_served() -> None:
    harness = Harness(num_rows=1, num_pages=30)
    names = [str(i) for i in range(5)]
    for name in names:
        harness.add(name, prompt(6, int(name)), greedy(3))
    harness.run()
    ended = [record.id for record in harness.trace.requests]
    assert ended == names


def test_priority_runs_the_lower_number_first_and_takes_its_place() -> None:
    """An urgent request that finds all rows taken preempts the last in rank; equals never preempt each
    other."""
    harness = Harness(num_rows=2, num_pages=40, policy="priority")
    harness.add("a", prompt(5, 1), greedy(20), priority=5)
    harness.add("b", prompt(5, 2), greedy(20), priority=5)
    for _ in range(4):
        harness.step()
    harness.add("c", prompt(5, 3), greedy(4), priority=5)
    harness.add("urgent", prompt(5, 4), greedy(4), priority=0)
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert harness.trace.requests[0].id == "urgent"
    assert (records["a"].num_preemptions, records["b"].num_preemptions) == (0, 1)
    assert records["b"].token_times_s[5] < records["c"].first_token_s, "b resumes before c starts"
    for start, name in enumerate("abc", start=1):
        params = greedy(20 if name < "c" else 4)
        assert harness.told[name, 0].tokens == expected(prompt(5, start), params, 1, 128)[0]


def test_an_unknown_policy_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'fcfs'.*fcfs, .*priority"):
        make_policy("fcfss")


@pytest.mark.parametrize(("cache", "tokens", "least"), [(True, 3, "8"), (False, 100, "128")])
def test_a_step_too_small_to_advance_everybody_is_refused(cache: bool, tokens: int, least: str) -> None:
    """Below one token a row (or one whole context without a cache) somebody could wait for ever."""
    executor = FakeExecutor(layout_of("paged"), 33)
    with pytest.raises(ConfigError, match=f"set max_num_batched_tokens to at least {least}"):
        Scheduler(executor.capacity(), KVManager(executor.layout, 33), make_policy("fcfs"), cache=cache,
                  max_num_batched_tokens=tokens, max_num_seqs=8)


def test_a_cache_that_holds_no_request_is_refused_at_start() -> None:
    executor = FakeExecutor(layout_of("mixed"), 2)
    with pytest.raises(ConfigError, match=r"a KV cache of 1 pages .* larger kv_cache_bytes"):
        Scheduler(executor.capacity(), KVManager(executor.layout, 2), make_policy("fcfs"),
                  max_num_batched_tokens=64, max_num_seqs=8)


# ---- one step ahead


def test_steady_decode_feeds_placeholders_and_stops_at_its_length() -> None:
    """With two steps in flight each output is sampled once, and nothing is planned beyond max_tokens."""
    harness = Harness(depth=2)
    harness.add("a", prompt(5), greedy(12))
    harness.run()
    plans = harness.executor.plans
    assert [plan.tokens[-1] for plan in plans[1:]] == [PLACEHOLDER] * 11
    assert sampled(harness) == {0: 12} and harness.loop.stats()["num_surplus_tokens"] == 0


def test_a_stop_trims_the_step_ahead() -> None:
    """The token sampled beyond an end id is dropped and counted as waste, never told."""
    params = SamplingParams(seed=3, max_tokens=60)
    tokens, finish = expected(prompt(5), params, 3, 128)
    assert finish is Finish.STOP and len(tokens) > 1
    harness = Harness(depth=2)
    harness.add("a", prompt(5), params)
    harness.run()
    told = harness.told["a", 0]
    assert (told.tokens, told.last.stop_token) == (tokens, tokens[-1])
    assert sampled(harness) == {0: len(tokens) + 1} and harness.loop.stats()["num_surplus_tokens"] == 1


def test_stop_token_ids_and_min_tokens() -> None:
    """A stop id ends the text and is told; the first min_tokens cannot be one."""
    free, _ = expected(prompt(4), greedy(20), 1, 128)
    stop = free[4]
    at = free.index(stop)
    harness = Harness()
    harness.add("a", prompt(4), greedy(20, stop_token_ids=(stop,)))
    harness.add("b", prompt(4), greedy(20, stop_token_ids=(stop,), min_tokens=at + 1))
    harness.run()
    assert harness.told["a", 0].tokens == free[:at + 1] and harness.finish_of("a") is Finish.STOP
    assert stop not in harness.told["b", 0].tokens[:at + 1]


# ---- memory


def test_preemption_takes_the_latest_and_never_the_oldest() -> None:
    """Three requests outgrow the pool: the first is never preempted, what is recomputed is counted, each
    output is sampled once although rows were preempted with a token in flight."""
    harness = Harness(num_pages=13, num_rows=3, max_step_tokens=32, prefix_caching=False)
    for name, start in (("a", 1), ("b", 2), ("c", 3)):
        harness.add(name, prompt(8, start), greedy(26))
    harness.run()
    records = {record.id: record for record in harness.trace.requests}
    assert records["a"].num_preemptions == 0 and records["c"].num_preemptions >= records["b"].num_preemptions
    assert records["c"].num_preemptions > 0 and records["c"].wasted_tokens > 0
    stats = harness.loop.stats()
    assert stats["num_recomputed_tokens"] == sum(r.wasted_tokens for r in records.values())
    assert sum(step.num_preemptions for step in harness.trace.steps) == stats["num_preemptions"]
    assert sampled(harness) == {0: 26, 1: 26, 2: 26}
    for name, start in (("a", 1), ("b", 2), ("c", 3)):
        assert harness.told[name, 0].tokens == expected(prompt(8, start), greedy(26), 1, 128)[0]


def test_a_preempted_request_waits_for_its_token_in_flight() -> None:
    """Preempted with two steps in flight, and a row is free at once: it must not resume before its tokens are
    back."""
    harness = Harness(num_rows=2, num_pages=60, policy="priority", depth=3)
    harness.add("a", prompt(5, 1), greedy(6), priority=5)
    harness.add("b", prompt(5, 2), greedy(20), priority=5)
    for _ in range(5):
        harness.step()
    harness.add("urgent", prompt(5, 4), greedy(9), priority=0)  # the step that ends a comes back next
    harness.run()
    assert harness.loop.stats()["num_preemptions"] == 1
    assert sampled(harness) == {0: 6, 1: 20, 2: 9}
    assert harness.told["b", 0].tokens == expected(prompt(5, 2), greedy(20), 1, 128)[0]


def test_a_resumed_request_reuses_what_stayed_cached() -> None:
    """With prefix caching most of a preempted request is found again instead of computed."""
    waste = []
    for caching in (False, True):
        harness = Harness(num_pages=13, num_rows=3, max_step_tokens=32, prefix_caching=caching)
        for name, start in (("a", 1), ("b", 2), ("c", 3)):
            harness.add(name, prompt(8, start), greedy(26))
        harness.run()
        waste.append(harness.loop.stats()["num_recomputed_tokens"])
    assert waste[1] < waste[0]


def test_one_request_may_fill_the_pool() -> None:
    """The largest request that the door lets in runs to its last token, in every layout and at every
    depth."""
    for kind in ("paged", "window", "mixed"):
        for depth in (1, 2, 3):
            harness = Harness(kind, num_pages=9, num_rows=2, max_step_tokens=16, depth=depth,
                              max_model_len=100)
            most = harness.scheduler.max_request_tokens
            harness.add("a", prompt(most - 6), greedy(None))
            harness.add("b", prompt(most - 1, 7), greedy(50))
            harness.run()
            assert harness.told["a", 0].last.num_output == 6 and harness.told["b", 0].last.num_output == 1


def test_a_queue_head_without_room_does_not_stop_the_rest_from_finishing() -> None:
    """The head waits for pages; those that run finish, and then it runs."""
    harness = Harness(num_pages=12, num_rows=4)
    harness.add("small", prompt(6), greedy(6))
    harness.step()
    harness.add("big", prompt(36, 3), greedy(4))
    harness.add("behind", prompt(4, 5), greedy(4))
    harness.run()
    assert harness.trace.requests[0].id == "small"
    assert harness.loop.stats()["num_preemptions"] == 0


# ---- prefix reuse and forks


def test_a_repeated_prompt_reuses_all_but_one_token() -> None:
    """Whole blocks, a part of a block, and never the last token; salts are kept apart."""
    for length in (7, 8, 9, 16, 17):
        harness = Harness(num_pages=40)
        for name, salt in (("cold", "x"), ("hit", "x"), ("other", "y")):
            harness.add(name, prompt(length), greedy(1), salt=salt)
            harness.run()
        cached = {name: harness.told[name, 0].last.num_cached for name in ("cold", "hit", "other")}
        assert cached["cold"] == cached["other"] == 0
        assert cached["hit"] == (length - 1 if length % 4 in (0, 1) else length // 4 * 4)


def test_choices_share_their_prompt_and_differ() -> None:
    """n = 3: the prompt is computed once, a diverging write copies one block, and the set repeats."""
    runs = []
    for _ in range(2):
        harness = Harness(num_pages=60, prefix_caching=False)
        harness.add("a", prompt(18), greedy(8, n=3))
        harness.run()
        runs.append([harness.told["a", choice].tokens for choice in range(3)])
        prefilled = sum(plan.num_tokens - plan.num_decodes for plan in harness.executor.plans)
        assert prefilled == 18
        assert sum(len(plan.copies) for plan in harness.executor.plans) == 2
    assert runs[0] == runs[1] and len(set(map(tuple, runs[0]))) == 3
    seeds = (1, mix_seed(1, 1), mix_seed(1, 2))
    assert runs[0] == [expected(prompt(18), greedy(8), seed, 128)[0] for seed in seeds]


def test_choices_outlive_a_first_choice_that_ends_early() -> None:
    """Choice 0 aborted while it is prefilled, or refused nothing and stopped at once: the others still
    run."""
    harness = Harness(num_pages=60, max_step_tokens=8)
    harness.add("a", prompt(30), greedy(5, n=3))
    harness.step()
    harness.loop.abort("a", 0)
    harness.run()
    assert harness.finish_of("a", 0) is Finish.ABORT
    assert all(harness.told["a", choice].last.num_output == 5 for choice in (1, 2))
    harness.add("b", prompt(30), greedy(1, n=4))
    harness.run()
    assert all(harness.told["b", choice].last.num_output == 1 for choice in range(4))


@pytest.mark.parametrize("num_pages, once", [(60, True), (9, False)])
@pytest.mark.parametrize("caching", [False, True])
def test_choices_share_the_prompt_of_one_that_has_ended(num_pages: int, once: bool, caching: bool) -> None:
    """Also where rows are few, and some start much later; but not where a pool is so small that the prompt of
    one that has ended leaves no room."""
    harness = Harness(num_pages=num_pages, num_rows=2, max_step_tokens=64, prefix_caching=caching)
    harness.add("a", prompt(30), greedy(1, n=4))
    harness.run()
    assert [len(harness.told["a", choice].tokens) for choice in range(4)] == [1] * 4
    prefilled = sum(plan.num_tokens - plan.num_decodes for plan in harness.executor.plans)
    assert (prefilled == 30) == once
    assert harness.loop.stats()["num_used_pages"] == 0


def test_seeds_are_drawn_when_none_is_given() -> None:
    """Two requests without a seed differ; the same engine seed draws the same again."""
    runs = []
    for _ in range(2):
        harness = Harness()
        for name in ("a", "b"):
            harness.add(name, prompt(5), SamplingParams(max_tokens=12, ignore_eos=True))
        harness.run()
        runs.append((harness.told["a", 0].tokens, harness.told["b", 0].tokens))
    assert runs[0] == runs[1] and runs[0][0] != runs[0][1]


# ---- prompt log-probabilities


def test_scoring_a_prompt_without_an_answer() -> None:
    """max_tokens 0 gives every prompt position once and no token, also after the prompt is cached."""
    for length in (1, 2, 9, 40):
        harness = Harness(num_pages=40, max_step_tokens=8)
        for name, max_tokens in (("zero", 0), ("one", 1), ("again", 0)):
            harness.add(name, prompt(length), greedy(max_tokens, prompt_logprobs=0))
            harness.run()
            told = harness.told[name, 0]
            assert [position for position, _ in told.prompt_logprobs] == list(range(1, length))
            assert told.last.num_output == len(told.tokens) == max_tokens
            assert told.last.finish is Finish.LENGTH


def test_a_cached_prompt_does_not_hide_owed_log_probabilities() -> None:
    """Positions whose scores are owed are computed although their blocks are in the cache."""
    harness = Harness(num_pages=40)
    harness.add("warm", prompt(20), greedy(2))
    harness.run()
    harness.add("scored", prompt(20), greedy(2, prompt_logprobs=1))
    harness.run()
    told = harness.told["scored", 0]
    assert told.last.num_cached == 0 and len(told.prompt_logprobs) == 19


# ---- aborts


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 6])
def test_abort_at_any_time_frees_everything(steps: int) -> None:
    """Waiting, prefilling, with a step in flight, decoding: the other request does not notice."""
    harness = Harness(num_pages=30, max_step_tokens=8)
    harness.add("keep", prompt(6, 2), greedy(12))
    harness.add("drop", prompt(12), greedy(40, n=2))
    for _ in range(steps):
        harness.step()
    harness.loop.abort("drop")
    harness.loop.abort("drop")
    harness.loop.abort("unknown")
    harness.run()
    assert harness.finish_of("drop", 0) is harness.finish_of("drop", 1) is Finish.ABORT
    assert harness.told["keep", 0].tokens == expected(prompt(6, 2), greedy(12), 1, 128)[0]


def test_keep_tokens_counts_to_the_stop_only() -> None:
    """A stop string found by the text layer ends the choice with STOP and a usage up to it; the rest is
    waste."""
    harness = Harness(depth=2)
    harness.add("a", prompt(5), greedy(40, logprobs=0))
    while len(harness.told["a", 0].tokens) < 6:
        harness.step()
    harness.loop.abort("a", 0, keep_tokens=4)
    harness.run()
    last = harness.told["a", 0].last
    assert (last.finish, last.num_output, last.new_tokens) == (Finish.STOP, 4, ())
    assert last.account["wasted_tokens"] == 2
    assert [record.num_output for record in harness.trace.requests] == [4]
    assert len(harness.trace.requests[0].token_times_s) == 4


def test_all_clients_vanish_at_once() -> None:
    """Gauges fall to 0 and the token counter stands still, with no new request to wake the loop."""
    harness = Harness(num_pages=60, num_rows=4)
    for i in range(16):
        harness.add(str(i), prompt(6, i), greedy(100))
    for _ in range(5):
        harness.step()
    for i in range(16):
        harness.loop.abort(str(i))
    generated = harness.loop.stats()["num_generated_tokens"]
    harness.run(most_steps=4)
    assert harness.loop.stats()["num_generated_tokens"] == generated
    assert harness.loop.stats()["finished"]["abort"] == 16


# ---- plans as values


def test_rows_are_reused_and_starts_come_with_work() -> None:
    """More requests than rows: each start names a row of the plan, and its arrays say what is known."""
    harness = Harness(num_rows=2, num_pages=30)
    for i in range(6):
        harness.add(str(i), prompt(4 + i, i), greedy(3))
    harness.run()
    starts = [start for plan in harness.executor.plans for start in plan.row_starts]
    assert sorted(start.request for start in starts) == list(range(6)) and {s.row for s in starts} == {0, 1}
    assert all(isinstance(start.prompt, np.ndarray) and len(start.output) == 0 for start in starts)
