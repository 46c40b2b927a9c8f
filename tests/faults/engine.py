"""An engine process whose steps take a fixed time and compute nothing: what HTTP costs, and what clients do
to a server, without a model. `python -m tests.faults.engine` in the place of `ridgeline.engine`.

Each token is a character that tells its step, and the time at which each step ended stands in a file, so that
a client on the same machine can say how long a token was on its way.
"""

import os
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.process import main
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import StepPlan, StepResult
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.scheduler import Scheduler

STEP_MS, TIMES = "TEST_STEP_MS", "TEST_STEP_TIMES"  # the environment of this module alone
NUM_TIMES = 1 << 18
NUM_MARKS = 43  # characters from FIRST on, one a step: 0 to Z
FIRST = ord("0")


class Paced:
    """An Executor: a step ends step_s after the one before it, or after it was begun."""

    max_in_flight = 2
    grammars = None

    def __init__(self, capacity: Capacity, step_s: float, times: np.ndarray, hidden_size: int) -> None:
        self._capacity = capacity
        self._vector = np.ones(hidden_size, np.float32)
        self._pools = np.zeros(capacity.num_rows, bool)
        self._step_s = step_s
        self._times = times
        self._flying: deque[tuple[int, StepPlan, float, float]] = deque()
        self._next, self._free_s = 0, 0.0

    def capacity(self) -> Capacity:
        return self._capacity

    def begin(self, plan: StepPlan, now: float) -> int:
        started_s = max(now, self._free_s)
        self._free_s = started_s + self._step_s
        for start in plan.row_starts:
            self._pools[start.row] = start.params.pool is not None
        self._flying.append((self._next, plan, started_s, self._free_s))
        self._next += 1
        return self._next - 1

    def ready_at(self, ticket: int) -> float | None:
        return None

    def finish(self, ticket: int, now: float) -> StepResult:
        number, plan, started_s, ends_s = self._flying.popleft()
        assert number == ticket
        time.sleep(max(0.0, ends_s - time.monotonic()))
        self._times[plan.step % NUM_TIMES] = time.monotonic()
        num_new = (plan.sample != 0).astype(np.int32)
        token = FIRST - ord("!") + plan.step % NUM_MARKS
        return StepResult(
            step=plan.step, num_new=num_new,
            tokens=np.full(int(num_new.sum()), token, np.int32),
            failed=np.zeros(plan.num_rows, np.uint8), returned_tickets=plan.copies.ticket,
            pooled=dict.fromkeys(np.flatnonzero(self._pools[plan.row] & (num_new > 0)).tolist(),
                                 self._vector),
            started_s=started_s, finished_s=ends_s)

    def close(self) -> None:
        """Nothing to end."""


def step_times(path: str | Path) -> np.ndarray:
    """When each step ended, by its number modulo NUM_TIMES, in the machine's monotonic seconds."""
    return np.memmap(path, np.float64, "r+", shape=(NUM_TIMES,))


def paced(config: EngineConfig) -> Engine:
    """A tiny model's engine with another executor under its scheduler."""
    engine = build_engine(config, serving=True)
    times = step_times(os.environ[TIMES]) if TIMES in os.environ else np.zeros(NUM_TIMES)
    executor = Paced(engine.capacity, float(os.environ.get(STEP_MS, "2")) / 1e3, times,
                     engine.spec.hidden_size)
    scheduler = Scheduler(
        engine.capacity, KVManager(engine.capacity.layout, engine.capacity.num_pages),
        make_policy(config.policy), max_num_batched_tokens=engine.capacity.max_step_tokens,
        max_num_seqs=engine.capacity.num_rows, eos_token_ids=engine.spec.eos_token_ids)
    engine.executor.close()
    return replace(engine, loop=Loop(scheduler, executor, WallClock()), executor=executor)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(build=paced))
