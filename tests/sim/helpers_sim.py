"""A small machine whose seconds are round, and workloads by hand."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.sums import StepShape
from ridgeline.schedule.executor import Capacity
from ridgeline.sim.node import Machine
from ridgeline.spec.cache import Paged, plan_layout
from ridgeline.workload.offered import Offered, Workload


class Round:
    """A step takes a second, and a hundredth for each of its tokens; contexts are free."""

    def __call__(self, step: StepShape) -> float:
        return 1.0 + 0.01 * float(np.sum(step.count))

    def decodes(self, start: NDArray[Any], num_steps: int) -> NDArray[np.float64]:
        return np.full(num_steps, 1.0 + 0.01 * len(start))


def machine(*, num_pages: int = 200, num_rows: int = 8, max_step_tokens: int = 64, depth: int = 2,
            max_model_len: int = 512) -> Machine:
    layout = plan_layout([(Paged(bytes_per_entry=64),)] * 2, block_tokens=4)
    return Machine(
        name="round", seconds=Round(), floor=Round(), max_in_flight=depth, price_usd_per_hour=3.6,
        capacity=Capacity(layout=layout, num_pages=num_pages, num_rows=num_rows, vocab_size=1000,
                          max_step_tokens=max_step_tokens, max_model_len=max_model_len))


def workload(*requests: tuple[float, int, int], **fields: Any) -> Workload:
    """Requests as (arrival, prompt, output)."""
    return Workload(requests=[Offered(arrived_s=at, num_prompt=prompt, num_output=output, **fields)
                              for at, prompt, output in requests], about="by hand")
