"""Protects requests from what breaks in a step of the real CPU runner: allocations that fail, a row that
raises, numbers that are not finite. Whoever is not at fault gets the answer that it gets alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from ridgeline.blocks.step import Step
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_spec, tiny_states
from tests.invariance.driver import Job, Setup, Tally, Tiny

NO_ROOM: dict[str, Callable[[], Exception]] = {
    "gpu": lambda: torch.OutOfMemoryError("CUDA out of memory"),
    "cpu": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 1 GB"),
    "python": lambda: MemoryError(),
}
MIXED, HYBRID = tiny_spec(windows=(None, 9)), tiny_states("hybrid")
POISON = 63  # a token that no other prompt holds


@contextmanager
def broken(tiny: Tiny, breaks: Callable[[Step, torch.Tensor], None]) -> Iterator[None]:
    """After the model's forward `breaks` may raise, or change what it says [tokens, hidden]."""
    forward = tiny.model.forward

    def changed(step: Step) -> torch.Tensor:
        x_TH = forward(step)
        breaks(step, x_TH)
        return x_TH

    tiny.model.forward = changed  # type: ignore[method-assign]
    try:
        yield
    finally:
        del tiny.model.forward


def jobs() -> list[Job]:
    """Prompts of 5 to 61 tokens, greedy and drawn, one with two choices, coming one after another."""
    prompts = [tuple((7 * number + place * (number + 3)) % 50 + 2 for place in range(5 + 8 * number))
               for number in range(8)]
    return [Job(prompt=prompt, at=number, params=SamplingParams(
        temperature=(0.0, 1.0)[number % 2], seed=number, max_tokens=10, ignore_eos=True, n=1 + (number == 3)))
        for number, prompt in enumerate(prompts)]


@pytest.mark.parametrize(("spec", "how"), [(MIXED, "gpu"), (HYBRID, "cpu"), (MIXED, "python")])
def test_a_machine_with_room_for_few_tokens_answers_as_a_large_one(spec: ModelSpec, how: str) -> None:
    """Two steps in flight, prefixes shared: whatever has more than 16 tokens in one call finds no memory."""
    tiny, tally = Tiny(spec), Tally()
    work = jobs()
    for job in work:
        for choice in range(job.params.n):
            tiny.alone(job.alone(choice))

    def breaks(step: Step, x_TH: torch.Tensor) -> None:
        if len(step.ids_T) > 16:
            raise NO_ROOM[how]()

    with broken(tiny, breaks):
        run = tally.compare(tiny, Setup(depth=2, prefix_caching=True, max_step_tokens=96), work)
    tally.report(how)
    assert run.stats["num_undone"] > 0 and run.stats["step_token_limit"] < 96


def _raise(step: Step, x_TH: torch.Tensor) -> None:
    if POISON in step.ids_T:
        raise ZeroDivisionError("a kernel stumbled")


def _not_finite(step: Step, x_TH: torch.Tensor) -> None:
    first = 0
    for count in step.counts.tolist():
        if POISON in step.ids_T[first:first + count]:
            x_TH[first:first + count] = torch.nan
        first += count


@pytest.mark.parametrize(("breaks", "says"), [(_raise, "stumbled"), (_not_finite, "not finite")])
def test_whoever_breaks_a_step_fails_alone(breaks: Callable[[Step, torch.Tensor], None], says: str) -> None:
    """One of eight whose prompt breaks whatever step holds it: it alone hears of it."""
    tiny, work = Tiny(MIXED), jobs()
    wanted = [tiny.alone(job.alone(0)).tokens for job in work]
    work[4] = replace(work[4], prompt=(*work[4].prompt, POISON))
    with broken(tiny, breaks):
        texts = tiny.run(Setup(depth=2, may_fail=True), work).texts
    assert says in (texts[4, 0].error or "") and not texts[4, 0].tokens
    assert all(texts[index, 0].error is None and texts[index, 0].tokens == wanted[index]
               for index in range(len(work)) if index != 4)
