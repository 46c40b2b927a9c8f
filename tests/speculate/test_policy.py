"""How many drafts: what is measured decides, and the wrong number never costs more than a little."""

import numpy as np
import pytest

from ridgeline.schedule.plan import SAMPLE_NEXT, Copies, Drafting, StepPlan, StepResult
from ridgeline.schedule.speculate import Speculation

MOST = 6
WIDTH_S = {1: 1.0, 2: 1.15, 3: 1.35, 4: 1.6, 5: 2.5, 6: 2.6, 7: 2.7}  # a machine with an edge behind 4 tokens
SPARE = np.array([1 << 20])


class Machine:
    """One row's steps: each draft is right by chance. shadow: drafts are compared after plain steps too."""

    def __init__(self, *, shadow: bool, draft_s: float = 0.0) -> None:
        self.speculation = Speculation(1, MOST, lambda step: 1.0)
        self._shadow, self._draft_s = shadow, draft_s
        self._random, self._now = np.random.default_rng(0), 0.0
        self._step = 0

    def run(self, num_steps: int, acceptance: float) -> tuple[float, list[int]]:
        """(tokens a second, drafts of each step)."""
        begun_s, tokens, chosen = self._now, 0, []
        for _ in range(num_steps):
            draft = self.speculation.choose(np.array([100]), np.array([1]), SPARE, 1 << 20)
            chosen.append(0 if draft is None else int(draft[0]))
            tokens += self._advance(chosen[-1], acceptance)
        return tokens / (self._now - begun_s), chosen

    def _advance(self, drafts: int, acceptance: float) -> int:
        compared = drafts or int(self._shadow)
        right = self._random.random(compared) < acceptance
        agreed = compared if right.all() else int(right.argmin())
        new = min(agreed, drafts) + 1
        started_s, drafting_s = self._now, self._draft_s * drafts
        self._now += WIDTH_S[drafts + 1] + drafting_s
        one = np.ones(1, np.int32)
        plan = StepPlan(
            step=self._step, request=np.zeros(1, np.int64), row=0 * one, start=100 * one,
            count=(drafts + 1) * one, sample=np.full(1, SAMPLE_NEXT, np.uint8), draft=drafts * one,
            num_decodes=1, tokens=np.zeros(drafts + 1, np.int32), row_starts=(), tables=(),
            copies=Copies.none())
        self.speculation.observe(plan, StepResult(
            step=self._step, num_new=new * one, tokens=np.zeros(new, np.int32), failed=np.zeros(1, np.uint8),
            started_s=started_s, finished_s=self._now,
            drafting=Drafting(compared=compared * one, agreed=agreed * one, ready=MOST * one,
                              seconds=drafting_s)), ahead=True)
        self._step += 1
        return new


@pytest.mark.parametrize("shadow", [True, False])
def test_never_much_slower_than_off(shadow: bool) -> None:
    """Wrong drafts stop soon, whether or not plain steps show how right they would be; off makes a token a
    second."""
    for acceptance in (0.0, 0.1, 0.3):
        speed, _ = Machine(shadow=shadow, draft_s=0.05).run(1000, acceptance)
        assert speed > 0.97, acceptance


def test_as_many_as_pay() -> None:
    """With an edge in the machine behind four tokens a step, right drafts come three at a time."""
    speed, chosen = Machine(shadow=True).run(1000, 0.9)
    assert speed > 0.95 * (1 - 0.9**4) / (1 - 0.9) / WIDTH_S[4]
    assert np.median(chosen) == 3


def test_a_text_that_turns() -> None:
    """Drafts come back when they are right again, and go when they are not."""
    machine = Machine(shadow=False)
    assert machine.run(400, 0.95)[0] > 1.8
    assert machine.run(1000, 0.0)[0] > 0.95
    machine.run(300, 0.95)
    assert machine.run(400, 0.95)[0] > 1.8


def test_drafts_go_where_they_are_worth_most() -> None:
    """Of two rows the one whose drafts were right gets them; nobody gets more than the step has room for."""
    speculation = Speculation(2, 3, lambda step: 10.0 + step.num_sampled)
    two, rows = np.ones(2, np.int32), np.arange(2, dtype=np.int32)
    plan = StepPlan(
        step=0, request=rows.astype(np.int64), row=rows, start=5 * two, count=two, draft=0 * two,
        sample=np.full(2, SAMPLE_NEXT, np.uint8), tokens=two, num_decodes=2, row_starts=(), tables=(),
        copies=Copies.none())
    for _ in range(30):
        speculation.observe(plan, StepResult(
            step=0, num_new=two, tokens=two, failed=np.zeros(2, np.uint8), finished_s=12.0,
            drafting=Drafting(compared=two, agreed=np.array([0, 1], np.int32), ready=3 * two, seconds=0.0)),
            ahead=True)
    start, counts, room = np.full(2, 6), np.ones(2, np.int64), np.full(2, 100)
    draft = speculation.choose(start, counts, room, 100)
    assert draft is not None and draft[1] == 3 and draft[0] <= 1
    draft = speculation.choose(start, counts, room, 2)
    assert draft is not None and draft.tolist() == [0, 2]
    draft = speculation.choose(start, counts, np.array([100, 1]), 100)
    assert draft is not None and draft[1] == 1
