"""Protects routing: each router against a brute-force twin on random histories, loads within their bound,
work that adds up to what was sent and not heard of, and ports that never carry two caches at once."""

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.base.errors import ConfigError
from ridgeline.schedule.route import Candidate, Fleet, Outstanding, Ports, make_router, within_bound

NODES, BLOCK = 4, 2
ENDLESS = Fleet(num_nodes=NODES, cached_blocks=1 << 20, block_tokens=BLOCK)
SECONDS = st.integers(0, 8).map(float)
SEEDS = st.integers(0, 1 << 40)
some = settings(max_examples=30, deadline=None)


def candidates_of(random: Random) -> list[Candidate]:
    up = random.sample(range(NODES), random.randint(1, NODES))
    return [Candidate(node=node, work_s=random.randint(0, 8), added_s=random.randint(0, 8),
                      travel_s=random.choice((0, 0, 5))) for node in sorted(up)]


def history_of(seed: int) -> Iterator[tuple[list[int], str, list[Candidate]]]:
    """Requests that often begin alike: prompt, salt, candidates."""
    random = Random(seed)
    for _ in range(random.randint(1, 16)):
        prompt = [random.randint(0, 1) for _ in range(random.randint(0, 8))]
        yield prompt, random.choice(("", "", "other")), candidates_of(random)


@some
@given(SEEDS)
def test_round_robin_takes_the_next_candidate_in_turn(seed: int) -> None:
    router, turn = make_router("round-robin", ENDLESS), 0
    for prompt, salt, candidates in history_of(seed):
        up = {one.node for one in candidates}
        expected = next(node % NODES for node in range(turn, turn + NODES) if node % NODES in up)
        assert router.choose(prompt, salt, candidates) == expected
        turn = expected + 1


@some
@given(SEEDS)
def test_least_work_takes_where_it_is_done_first(seed: int) -> None:
    router = make_router("least-work", ENDLESS)
    for prompt, salt, candidates in history_of(seed):
        done = {one.node: max(one.work_s, one.travel_s) + one.added_s for one in candidates}
        node = router.choose(prompt, salt, candidates)
        assert done[node] == min(done.values()) and not any(done[n] == done[node] for n in done if n < node)


@some
@given(SEEDS, st.sampled_from((1.0, 1.25, 3.0)))
def test_prefix_takes_the_longest_match_within_the_bound(seed: int, bound: float) -> None:
    """The twin remembers every prompt whole and compares token by token."""
    router = make_router(f"prefix:{bound}", ENDLESS)
    sent: list[tuple[int, str, list[int]]] = []

    def blocks_shared(node: int, salt: str, prompt: list[int]) -> int:
        best = 0
        for where, with_salt, before in sent:
            if where == node and with_salt == salt:
                alike = next((i for i, (a, b) in enumerate(zip(before, prompt)) if a != b),
                             min(len(before), len(prompt)))
                best = max(best, alike // BLOCK)
        return best

    for prompt, salt, candidates in history_of(seed):
        total, num = sum(one.work_s for one in candidates), len(candidates)
        allowed = [one for one in candidates if one.work_s <= bound * (total + one.added_s) / num + 1e-12]
        assert allowed
        expected = min(allowed, key=lambda one: (-blocks_shared(one.node, salt, prompt),
                                                 max(one.work_s, one.travel_s) + one.added_s, one.node)).node
        assert router.choose(prompt, salt, candidates) == expected
        sent.append((expected, salt, prompt))


def test_prefix_forgets_what_a_node_no_longer_holds() -> None:
    """Three blocks a node: a fourth pushes out the end of what was used least recently, not its beginning."""
    router = make_router("prefix", Fleet(num_nodes=2, cached_blocks=3, block_tokens=1))
    idle = [Candidate(node=0), Candidate(node=1, added_s=1e-9)]
    assert router.choose([1, 2, 3], "", idle) == 0
    assert router.choose([9], "", [idle[1]]) == 1
    assert router.choose([7], "", [idle[0]]) == 0  # 3 goes
    assert router.choose([9, 1], "", idle) == 1
    assert router.choose([1, 2, 3], "", [idle[1]]) == 1  # 9, 1 go
    assert router.choose([1, 2, 3], "", idle) == 1  # three blocks there, two on node 0
    assert router.choose([9], "", idle) == 0


@some
@given(SEEDS, st.floats(1, 4))
def test_a_bound_always_leaves_the_least_loaded(seed: int, bound: float) -> None:
    candidates = candidates_of(Random(seed))
    allowed = within_bound(candidates, bound)
    assert min(one.work_s for one in candidates) in [one.work_s for one in allowed]
    share = (sum(one.work_s for one in candidates) + max(one.added_s for one in candidates)) / len(candidates)
    assert all(one.work_s <= bound * share + 1e-9 for one in allowed)


@some
@given(st.lists(st.tuples(st.sampled_from(("sent", "token", "ended")), st.integers(0, 5),
                          st.integers(0, NODES - 1), SECONDS, SECONDS), max_size=40))
def test_work_is_what_was_sent_and_not_heard_of(events: list) -> None:
    work, alive = Outstanding(NODES), {}
    for what, request, node, prompt_s, answer_s in events:
        name = str(request)
        if what == "sent" and name not in alive:
            work.sent(name, node, prompt_s=prompt_s, answer_s=answer_s)
            alive[name] = [node, prompt_s, answer_s]
        elif what == "token":
            work.first_token(name)
            if name in alive:
                alive[name][1] = 0.0
        elif what == "ended" and name in alive:
            work.ended(name)
            del alive[name]
        for place in range(NODES):
            left = sum(p + a for at, p, a in alive.values() if at == place)
            assert work.work_s(place) == pytest.approx(left)


@some
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(2, 3), st.integers(1, 9), st.integers(0, 5)),
                max_size=20))
def test_a_port_carries_one_cache_at_a_time(transfers: list) -> None:
    """Each begins when it is asked for and both ports are free of those asked for before, no later."""
    rates = (4.0, 1.0, 2.0, 8.0)
    ports, carried, now = Ports(rates), [], 0.0
    for source, target, num_bytes, wait in transfers:
        now += wait
        took = num_bytes / min(rates[source], rates[target])
        told = ports.arrival_s(source, target, num_bytes, now)
        arrival = ports.send(source, target, num_bytes, now)
        before = [end for s, t, _, end in carried if s == source or t == target]
        assert arrival == told == pytest.approx(max([now, *before]) + took)
        carried.append((source, target, arrival - took, arrival))
    for i, (s, t, begin, end) in enumerate(carried):
        assert all(begin >= e - 1e-9 or end <= b + 1e-9 for x, y, b, e in carried[:i] if x == s or y == t)


@pytest.mark.parametrize(("text", "said"), [
    ("prefx", "did you mean 'prefix'"), ("prefix:0.5", "at least 1"), ("prefix:nan", "at least 1"),
    ("prefix:much", "at least 1"), ("round-robin:2", "takes no setting")])
def test_a_wrong_router_says_what_is_right(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_router(text, ENDLESS)
