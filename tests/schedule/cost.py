"""What a step costs the host: plan + commit of 256 decode rows with a thousand requests waiting, under each
policy, and with ten times the cached blocks. `python -m tests.schedule.cost` prints it; `make check` does."""

import time
from statistics import median

import numpy as np

from ridgeline.kv.manager import KVManager
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.overload import Mode, Overload
from ridgeline.schedule.plan import StepPlan, StepResult
from ridgeline.schedule.policies.policy import Needs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.targets import Targets
from ridgeline.spec.cache import Paged, plan_layout
from ridgeline.spec.sampling import SamplingParams

ROWS, WAITING = 256, 1000
UNIT_S = 33e-6  # busy_work() on an idle core of the machine that the target was measured on
POLICIES = ("static", "fcfs", "prefill", "chunked:512", "priority", "fair", "shortest", "reuse", "slo",
            "throughput")
NEEDS = Needs(targets=Targets(ttft_s=1.0, tpot_s=0.02), price=lambda step: 0.01)


def steady_scheduler(num_waiting: int, policy: str = "fcfs", cached_blocks: int = 0, *,
                     sheds: bool = False) -> Scheduler:
    """cached_blocks: filled by requests that ended before. sheds: with a deadline, which all will keep."""
    layout = plan_layout([(Paged(bytes_per_entry=1024),)] * 4, block_tokens=16)
    num_pages = 40_000 + cached_blocks
    capacity = Capacity(layout=layout, num_pages=num_pages, num_rows=ROWS, max_step_tokens=8192,
                        max_model_len=4096, vocab_size=50_000)
    made = make_policy(policy, NEEDS)
    overload = Overload(mode=Mode.SHED, targets=Targets(ttft_s=1e6, tpot_s=1.0), price=lambda step: 0.01,
                        block_tokens=16, passes=made.passes, by_tenant=made.by_tenant)
    scheduler = Scheduler(capacity, KVManager(layout, num_pages), made, eos_token_ids=(2,),
                          max_num_batched_tokens=8192, max_num_seqs=ROWS,
                          overload=overload if sheds else None)
    rng = np.random.default_rng(0)
    for index in range(0, cached_blocks, 250):
        prompt = rng.integers(3, 50_000, 4000).astype(np.int32)
        scheduler.add(NewRequest(id=f"past {index}", prompt=prompt, params=SamplingParams(max_tokens=1)))
    while scheduler.has_requests:
        plan = scheduler.plan(0.0)
        assert plan is not None
        scheduler.commit(plan, result_of(plan, rng), 0.0)
    for index in range(ROWS + num_waiting):
        prompt = rng.integers(3, 50_000, int(rng.integers(50, 200))).astype(np.int32)
        params = SamplingParams(seed=1, max_tokens=3000)
        scheduler.add(NewRequest(id=str(index), prompt=prompt, params=params, tenant=str(index % 7)))
    return scheduler


def result_of(plan: StepPlan, rng: np.random.Generator) -> StepResult:
    num_new = (plan.sample == 1).astype(np.int32)
    return StepResult(step=plan.step, num_new=num_new, failed=np.zeros(plan.num_rows, np.uint8),
                      tokens=rng.integers(3, 50_000, int(num_new.sum())).astype(np.int32))


def busy_work() -> float:
    """Seconds of a fixed piece of Python, to tell a slow moment of the machine from slow code."""
    started = time.thread_time()
    sum(range(2000))
    return time.thread_time() - started


class Steady:
    """A scheduler whose steps are timed, window by window."""

    def __init__(self, scheduler: Scheduler, *, arrivals: bool = False) -> None:
        """arrivals: a request joins and the one before it leaves again, beside each step."""
        self._scheduler, self._rng = scheduler, np.random.default_rng(1)
        self._arrivals, self._num_come = arrivals, 0
        self._running = scheduler.plan(0.0)
        while self._step() is None:
            pass

    def window(self, steps: int = 32) -> float:
        """Processor time of plan(n + 1) + commit(n) over that of busy_work(), medians."""
        found = [(self._step(), busy_work()) for _ in range(steps)]
        return median(step_s for step_s, _ in found if step_s) / median(unit_s for _, unit_s in found)

    def _step(self) -> float | None:
        """Seconds of plan and commit; None unless all rows decode."""
        if self._arrivals:
            self._come_and_go()
        started = time.thread_time()
        ahead = self._scheduler.plan(0.0)
        planned_s = time.thread_time() - started
        running = self._running
        assert running is not None and ahead is not None
        result = result_of(running, self._rng)
        started = time.thread_time()
        self._scheduler.commit(running, result, 0.0)
        self._running = ahead
        return planned_s + time.thread_time() - started if running.num_decodes == ROWS else None


    def _come_and_go(self) -> None:
        prompt = self._rng.integers(3, 50_000, 100).astype(np.int32)
        self._scheduler.add(NewRequest(id=f"new {self._num_come}", prompt=prompt,
                                       params=SamplingParams(seed=1, max_tokens=3000)))
        self._scheduler.abort(f"new {self._num_come - 1}", now=0.0)
        self._scheduler.take_ended()
        self._num_come += 1


def main() -> None:
    steady = {policy: Steady(steady_scheduler(WAITING, policy)) for policy in POLICIES}
    steady |= {f"fcfs, {blocks} cached blocks": Steady(steady_scheduler(WAITING, cached_blocks=blocks))
               for blocks in (10_000, 100_000)}
    steady |= {f"{policy}, arrivals, shedding": Steady(
        steady_scheduler(WAITING, policy, sheds=True), arrivals=True) for policy in ("fcfs", "fair")}
    least = dict.fromkeys(steady, float("inf"))
    for _ in range(8):  # in turns, so that a slow moment of the machine hits all alike
        for name, one in steady.items():
            least[name] = min(least[name], one.window())
    print(f"plan + commit of {ROWS} rows with {WAITING} requests waiting, on an idle core (target 500 us):")
    for name, units in least.items():
        print(f"  {name:28s} {units * UNIT_S * 1e6:4.0f} us")


if __name__ == "__main__":
    main()
