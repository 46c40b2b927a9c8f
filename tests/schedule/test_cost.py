"""What a step costs the host, held loosely: a test machine is not idle. `tests.schedule.cost` reports it."""

from tests.schedule.cost import ROWS, UNIT_S, WAITING, Steady, steady_scheduler

TARGET_S = 0.5e-3
GUARD = 3.0


def test_plan_and_commit_of_256_rows_are_cheap() -> None:
    """Steady decode with a thousand requests waiting behind it; 16 rows a step cross a block."""
    steady = Steady(steady_scheduler(WAITING))
    units = min(steady.window() for _ in range(6))
    print(f"plan + commit of {ROWS} rows: {units * UNIT_S * 1e6:.0f} us on an idle core")
    assert units * UNIT_S < GUARD * TARGET_S
