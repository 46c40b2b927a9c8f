"""What a step's record says of keys that rows read together."""

import numpy as np
import pytest

from ridgeline.schedule.plan import Copies, StepPlan, StepResult
from ridgeline.schedule.records import Flight, Prices, step_record
from ridgeline.schedule.scheduler import Load


def test_keys_read_together_count_once_in_the_floor() -> None:
    """Three rows share 100 tokens, two others 40: 240 need not be read, and the floor has them once."""
    start = np.array([150, 120, 50, 60, 100], np.int32)
    ones, zeros = np.ones(5, np.int32), np.zeros(5, np.int32)
    plan = StepPlan(step=0, request=np.arange(5), row=np.arange(5, dtype=np.int32), start=start, count=ones,
                    sample=ones.astype(np.uint8), draft=zeros, tokens=ones, num_decodes=5, row_starts=(),
                    tables=(), copies=Copies.none())
    flight = Flight(plan=plan, ticket=0, error=None, begun_s=0.0, plan_s=0.0, planned_s=None,
                    load=Load(running=5, waiting=0, used_pages=1, free_pages=1, num_preemptions=0),
                    num_preemptions=0)
    prices = Prices(step=lambda shape: float(shape.start.sum()), request=lambda *_: 0.0)

    def recorded(shared: tuple[tuple[tuple[int, ...], int], ...]) -> tuple[float | None, int, int]:
        result = StepResult(step=0, num_new=ones, tokens=ones, failed=zeros.astype(np.uint8), shared=shared)
        record = step_record(flight, result, 0.0, prices)
        return record.floor_s, record.shared_tokens, record.context_tokens

    assert recorded(()) == (pytest.approx(480.0), 0, 485)
    assert recorded((((0, 1, 4), 100), ((2, 3), 40))) == (pytest.approx(240.0), 240, 485)
