"""Protects the seconds of simulated steps: they are the deployment's own, and the same however they are asked
for."""

import numpy as np
import pytest

from ridgeline.ledger.efficiency import FITTED, Calibration, Efficiency, Levels
from ridgeline.ledger.steps import Steps
from ridgeline.ledger.sums import Rows
from ridgeline.planner.ask import Ask
from ridgeline.planner.setup import Setup, Workshop
from ridgeline.schedule.speculate import Shape

SHOP = Workshop(Efficiency(row_s=1e-5, launch_s=2e-6, step_s=1e-4, stream=5.0))
ASKS = {
    "dense": Ask(model="llama-3-8b", gpu="h100"), "tensor": Ask(model="llama-3-8b", gpu="h100", tp=4),
    "stages": Ask(model="llama-3-8b", gpu="h100", pp=4), "windows": Ask(model="gpt-oss-20b", gpu="h100"),
    "experts": Ask(model="qwen3-30b-a3b", gpu="h100", ep=4), "states": Ask(model="qwen3-next-80b-a3b",
                                                                           gpu="h100", tp=2),
}


def shape(start: list[int], count: list[int]) -> Shape:
    return Shape(start=np.array(start), count=np.array(count), num_sampled=len(start))


def setup(name: str) -> Setup:
    return SHOP.setup(ASKS[name])


@pytest.mark.parametrize("name", ASKS)
@pytest.mark.parametrize("estimate", [False, True])
def test_equal_decodes_cost_what_the_deployment_says(name: str, estimate: bool) -> None:
    found = setup(name)
    if found.layout.groups > 1:  # a group's rows
        rows = Rows(rows=8 / found.layout.groups, start=700, count=1)
        timing = found.deployment.decode([rows])
    else:
        timing = found.deployment.decode([Rows(rows=8, start=700, count=1)])
    seconds = Steps(found.deployment, estimate=estimate)(shape([700] * 8, [1] * 8))
    assert seconds == pytest.approx(timing.estimate_s if estimate else timing.floor_s, rel=1e-9)


@pytest.mark.parametrize("name", ASKS)
def test_a_run_of_decodes_is_its_steps_one_by_one_to_the_last_bit(name: str) -> None:
    """What lets a simulator skip ahead."""
    steps = Steps(setup(name).deployment, estimate=True)
    start = np.array([5, 126, 4000])
    run = steps.decodes(start, 40)
    assert run.tolist() == [steps(shape((start + ahead).tolist(), [1, 1, 1])) for ahead in range(40)]
    assert np.all(np.diff(run) >= 0)


def test_a_prompt_beside_decodes_costs_more_than_either_and_less_than_both() -> None:
    steps = Steps(setup("dense").deployment, estimate=True)
    decodes, prompt = steps(shape([900] * 16, [1] * 16)), steps(shape([0], [2048]))
    both = steps(shape([900] * 16 + [0], [1] * 16 + [2048]))
    assert max(decodes, prompt) < both < decodes + prompt


def test_a_calibration_gives_each_step_the_factors_of_its_size_and_kind() -> None:
    few, many, prompts = (Efficiency(bandwidth=b, step_s=s, sources={"bandwidth": FITTED, "step_s": FITTED})
                 for b, s in ((0.5, 1e-3), (1.0, 2e-3), (0.8, 9e-3)))
    calibration = Calibration(decodes=Levels(tokens=(1, 64), factors=(few, many)), error=0.0, num_points=3,
                              prompts=Levels(tokens=(64,), factors=(prompts,)))
    deployment = setup("dense").deployment
    steps = Steps(deployment, estimate=True, calibration=calibration)
    one, all64, chunk = shape([0], [1]), shape([0] * 64, [1] * 64), shape([0], [64])
    assert steps(one) == pytest.approx(Steps(_with(deployment, few), estimate=True)(one))
    assert steps(all64) == pytest.approx(Steps(_with(deployment, many), estimate=True)(all64))
    assert steps(chunk) == pytest.approx(Steps(_with(deployment, prompts), estimate=True)(chunk))


def _with(deployment, efficiency):  # type: ignore[no-untyped-def]
    from dataclasses import replace
    return replace(deployment, efficiency=efficiency)
