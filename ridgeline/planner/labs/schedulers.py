"""Four schedulers over one set of requests: the scheduler and the KV manager that serve, in virtual time, at
the closed forms' seconds a step. Source: "The Mechanics of LLM Inference", The scheduling problem."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.sums import StepShape
from ridgeline.schedule.executor import Capacity
from ridgeline.sim.cluster import Topology, drive
from ridgeline.sim.node import Machine, Serving
from ridgeline.sim.outcome import Ended, Meter
from ridgeline.spec.cache import Paged, plan_layout
from ridgeline.workload.offered import Offered, Workload

SCHEDULERS = ("static", "continuous", "chunked", "disaggregated")
_BLOCK = 1024  # tokens of a page: there are always enough


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One request's time, in seconds from its arrival on: waiting, in prefill (its cache's way to another
    device included), in decode (stalls included), and holding a slot after its last token. gap_s: its longest
    wait between two tokens."""

    arrival_s: float
    queued_s: float
    prefill_s: float
    decode_s: float
    held_s: float
    gap_s: float

    @property
    def ttft_s(self) -> float:
        return self.queued_s + self.prefill_s

    @property
    def end_s(self) -> float:
        return self.arrival_s + self.ttft_s + self.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a scheduler made of the requests. lives: in their order. row_s: of the steps of the device that
    makes answers, times the slots that take part in them."""

    lives: Sequence[Life]
    row_s: float

    @property
    def end_s(self) -> float:
        return max(life.end_s for life in self.lives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a prompt of so many tokens, of a decode step (batch, mean context), and of a cache's way to
    another device."""

    prompt: Callable[[float], float]
    step: Callable[[float, float], float]
    transfer: Callable[[float], float]


class _Seconds:
    """`ledger.steps.StepSeconds` by closed forms: a step's decodes, and its prompts one after another."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs

    def __call__(self, step: StepShape) -> float:
        start, count = np.asarray(step.start), np.asarray(step.count)
        alone = (count == 1) & (start > 0)
        seconds = float(self.decodes(start[alone], 1)[0]) if alone.any() else 0.0
        for begin, num in zip(start[~alone].tolist(), count[~alone].tolist(), strict=True):
            seconds += self._costs.prompt(begin + num) - (self._costs.prompt(begin) if begin else 0.0)
        return max(seconds, self._costs.step(1, 0))  # a chunk reads the weights too

    def decodes(self, start: NDArray[Any], num_steps: int) -> NDArray[np.float64]:
        rows = len(start)
        context = float(start.sum()) / rows + 1
        return np.array([self._costs.step(rows, context + ahead) for ahead in range(num_steps)])


def schedule(requests: Sequence[Offered], *, slots: int, chunk: int, costs: Costs) -> dict[str, Course]:
    """By scheduler. chunk: tokens of a step of the chunked one. Disaggregated: prompts on a device of their
    own."""
    most = max(one.num_prompt + one.num_output for one in requests)
    layout, seconds = plan_layout([(Paged(bytes_per_entry=1),)], block_tokens=_BLOCK), _Seconds(costs)
    machine = Machine(
        name="closed forms", seconds=seconds, floor=seconds, cache_bytes=costs.transfer, link_bytes_per_s=1.0,
        capacity=Capacity(layout=layout, num_pages=(slots + 1) * layout.pages_for(most + _BLOCK) + 1,
                          num_rows=slots, max_step_tokens=slots * most, max_model_len=most + 1,
                          vocab_size=1 << 15))
    one, split = Topology(engines=(machine,)), Topology(engines=(machine,), decode=(machine,))
    return {"static": _course(one, "static", requests), "continuous": _course(one, "fcfs", requests),
            "chunked": _course(one, f"chunked:{chunk}", requests),
            "disaggregated": _course(split, "fcfs", requests)}


def _course(topology: Topology, policy: str, requests: Sequence[Offered]) -> Course:
    meters = [Meter(one.capacity.num_pages) for one in topology.machines]
    drive(topology, Serving(policy=policy, prefix_caching=False), Workload(requests=requests, about=""),
          meters)
    ended = sorted((one for meter in meters for one in meter.ended), key=lambda one: int(one.record.id))
    held_until = _batch_ends(ended) if policy == "static" else {}
    return Course(lives=[_life(one, held_until.get(one.record.id, 0.0)) for one in ended],
                  row_s=meters[-1].row_s)


def _life(one: Ended, held_until_s: float) -> Life:
    record, first_s, last_s = one.record, float(one.times_s[0]), float(one.times_s[-1])
    began_s = record.first_scheduled_s or record.arrived_s
    return Life(arrival_s=record.arrived_s, queued_s=began_s - record.arrived_s, prefill_s=first_s - began_s,
                decode_s=last_s - first_s, held_s=max(held_until_s - last_s, 0.0),
                gap_s=float(np.diff(one.times_s).max(initial=0.0)))


def _batch_ends(ended: Sequence[Ended]) -> Mapping[str, float]:
    """When the static batch of each request ended: the next begins no sooner."""
    ends: dict[str, float] = {}
    batch: list[str] = []
    until_s = 0.0
    for record in sorted((one.record for one in ended), key=lambda record: record.first_scheduled_s or 0.0):
        if (record.first_scheduled_s or 0.0) >= until_s:
            batch = []
        batch.append(record.id)
        until_s = max(until_s, record.finished_s)
        ends.update(dict.fromkeys(batch, until_s))
    return ends
