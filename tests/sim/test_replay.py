"""Protects replays: a recorded trace of the loop through the same scheduler plans the same steps, whatever
happened on the way, and a record that does not suffice is refused."""

import random
from pathlib import Path

import numpy as np
import pytest

from ridgeline.base.clock import VirtualClock
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import JsonlTrace
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.records import ForReplay
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.sim.replay import read_recorded, replay
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import EOS, FakeExecutor, layout_of
from tests.sim.helpers_sim import Round


def make(capacity: Capacity, eos: tuple[int, ...], policy: str = "priority", *,
         reuse: bool = True) -> Scheduler:
    manager = KVManager(capacity.layout, capacity.num_pages, prefix_caching=reuse)
    return Scheduler(capacity, manager, make_policy(policy),
                     max_num_batched_tokens=24, max_num_seqs=6, eos_token_ids=eos)


def record(path: Path, seed: int, num_requests: int = 10, *, texts: bool = True) -> Capacity:
    """Requests of shared beginnings, several choices, ends by an id, by length, by a stop string and by a
    client that goes away, in a cache that is too small for all."""
    draw, clock = random.Random(seed), VirtualClock()
    executor = FakeExecutor(layout_of("mixed"), 26, num_rows=6, max_step_tokens=24, clock=clock)
    trace = JsonlTrace(path)
    loop = Loop(make(executor.capacity(), EOS, reuse=texts), executor, clock, trace,
                for_replay=ForReplay(block_tokens=4, texts=texts))
    left, alive = num_requests, []
    while left or loop.has_work():
        while left and (draw.random() < 0.4 or not loop.has_work()):
            left -= 1
            common = [1, 2, 3, 4, 5, 6, 7, 8, 9][:draw.choice([0, 3, 6, 9])]
            own = [10 + left % 20] + [draw.randrange(10, 39) for _ in range(draw.randint(0, 20))]
            loop.add(NewRequest(id=f"r{left}", prompt=np.array(common + own, np.int32), arrived_s=clock.now(),
                                params=SamplingParams(max_tokens=draw.randint(1, 20), seed=left,
                                                      n=draw.choice([1, 1, 3])), priority=draw.randint(0, 2)))
            alive.append(f"r{left}")
        for name in draw.sample(alive, min(len(alive), 2)) if draw.random() < 0.08 else ():
            loop.abort(name, draw.choice([None, 0]), draw.choice([None, 1]))
            clock.advance_to(clock.now() + 1e-3)  # several go away between two steps, one after another
        loop.step()
    trace.close()
    return executor.capacity()


@pytest.mark.parametrize(("seed", "texts"), [(0, True), (4, True), (2, False)])
def test_the_plans_are_those_of_the_record(seed: int, texts: bool, tmp_path: Path) -> None:
    capacity = record(tmp_path / "trace", seed, texts=texts)
    recorded = read_recorded(tmp_path / "trace")
    assert len(recorded.steps) > 20 and sum(one.num_preemptions for one in recorded.steps)
    found = replay(recorded, capacity, lambda offers: make(offers, (offers.vocab_size - 1,), reuse=texts),
                   seconds=Round())
    assert found.difference == "" and found.num_equal == found.num_steps == len(recorded.steps)
    assert set(found.priced) == {"all", "decodes", "prompts", "both"}
    assert sum(one.num_steps for kind, one in found.priced.items() if kind != "all") == found.num_steps
    assert found.priced["all"].error["p50"] > 0  # a step of the fake takes a second, whatever it holds


def test_without_texts_blocks_are_shared_as_in_the_record(tmp_path: Path) -> None:
    clock = VirtualClock()
    executor = FakeExecutor(layout_of("paged"), 40, num_rows=6, max_step_tokens=24, clock=clock)
    trace = JsonlTrace(tmp_path / "trace")
    loop = Loop(make(executor.capacity(), EOS), executor, clock, trace, for_replay=ForReplay(block_tokens=4))
    common = [1, 2, 3, 4, 5, 6, 8, 9]
    for name, prompt in (("a", [*common, 10, 11]), ("b", [*common, 20, 21, 22])):
        params = SamplingParams(max_tokens=3, ignore_eos=True, seed=1)
        loop.add(NewRequest(id=name, prompt=np.array(prompt, np.int32), params=params))
        while loop.has_work():
            loop.step()
    trace.close()
    recorded = read_recorded(tmp_path / "trace")
    assert [one.num_cached for one in recorded.requests] == [0, 8] and not recorded.requests[0].token_ids
    found = replay(recorded, executor.capacity(), lambda offers: make(offers, (offers.vocab_size - 1,)))
    assert found.num_equal == found.num_steps == len(recorded.steps)


def test_the_first_plan_that_differs_is_told(tmp_path: Path) -> None:
    capacity = record(tmp_path / "trace", 0)
    recorded = read_recorded(tmp_path / "trace")
    found = replay(recorded, capacity, lambda offers: make(offers, (offers.vocab_size - 1,), "fcfs"))
    assert 0 < found.num_equal < found.num_steps and f"step {found.num_equal} had" in found.difference


def test_a_record_that_does_not_suffice_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "trace", 1, num_requests=3)
    lines = (tmp_path / "trace").read_text().splitlines()
    (tmp_path / "cut").write_text("\n".join(line for line in lines if '"number": 0' not in line))
    with pytest.raises(ConfigError, match="cut off"):
        read_recorded(tmp_path / "cut")
    with pytest.raises(ConfigError, match="--trace-file"):
        (tmp_path / "empty").write_text(lines[0])
        read_recorded(tmp_path / "empty")
