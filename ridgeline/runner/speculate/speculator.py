"""What drafts: the protocol of speculators, and the drafter that stands between one and the runner.

Legend: G drafts of a row, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from torch import Tensor

from ridgeline.base.clock import Clock
from ridgeline.runner.speculate.texts import Texts
from ridgeline.schedule.plan import Drafting, RowStart, StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Drafts of one row. p_GV float64: the distributions that they were drawn from by noise of their own;
    None where they were not drawn, or by the noise that the row itself samples with."""

    tokens: list[int]
    p_GV: Tensor | None = None


class Speculator(Protocol):
    """Drafts tokens for runner rows, whose texts it reads."""

    def start(self, start: RowStart) -> None:
        """A request takes a row, whose text is still the one before it."""
        ...

    def look(self, row: int) -> int:
        """The row's text has grown: how many drafts there would be for its next step."""
        ...

    def expected(self, row: int) -> list[int]:
        """Drafts for the row's next tokens as far as they are known without work."""
        ...

    def propose(self, rows: list[int], most: list[int]) -> list[Proposal]:
        """Drafts for these rows, for each at most so many; fewer are fine."""
        ...


class Drafter:
    """Fills a plan's draft slots and, when the step is done, says how good the drafts were.

    ordered: rows whose positions must be sampled one after another, since what they ask for hangs on their
    text so far, are drafted for too.
    """

    def __init__(self, texts: Texts, speculator: Speculator, clock: Clock, *, ordered: bool = True) -> None:
        self._texts = texts
        self._speculator = speculator
        self._clock = clock
        self._seconds = 0.0
        self._ordered = ordered
        self._left_out: set[int] = set()

    def start(self, start: RowStart) -> None:
        """A request takes its row."""
        self._left_out.discard(start.row)
        if not self._ordered and start.params.needs_history:
            self._left_out.add(start.row)
        self._speculator.start(start)
        self._texts.start(start)

    def fill(self, plan: StepPlan) -> tuple[StepPlan, dict[int, Proposal]]:
        """The plan with drafts in place of placeholders, slots that stay empty cut away; the proposals by
        place."""
        places = np.flatnonzero(plan.draft)
        self._seconds = 0.0
        if not len(places):
            return plan, {}
        begun_s = self._clock.now()
        found = self._speculator.propose(plan.row[places].tolist(), plan.draft[places].tolist())
        proposals = dict(zip(places.tolist(), found))
        draft = plan.draft.copy()
        draft[places] = [len(proposal.tokens) for proposal in found]
        own, parts = plan.count - plan.draft, np.split(plan.tokens, plan.count.cumsum()[:-1])
        for place, proposal in proposals.items():
            parts[place] = np.append(parts[place][:own[place]], np.array(proposal.tokens, np.int32))
        self._seconds = self._clock.now() - begun_s
        return msgspec.structs.replace(plan, draft=draft, count=own + draft,
                                       tokens=np.concatenate(parts)), proposals

    def settle(self, plan: StepPlan, tokens: Mapping[int, list[int]], forced: Mapping[int, list[int]],
               proposals: Mapping[int, Proposal]) -> Drafting:
        """The step has brought tokens by place, and those that can alone follow them."""
        compared, agreed, ready = np.zeros((3, plan.num_rows), np.int32)
        for place, new in tokens.items():
            row = int(plan.row[place])
            drafts = proposals[place].tokens if place in proposals else self._speculator.expected(row)
            compared[place] = len(drafts) if place in proposals else min(len(drafts), len(new))
            agreed[place] = num_agreed(new, drafts)
            self._texts.append(row, [*new, *forced.get(place, ())])
            ready[place] = 0 if row in self._left_out else self._speculator.look(row)
        return Drafting(compared=compared, agreed=agreed, ready=ready, seconds=self._seconds)


def num_agreed(tokens: list[int], drafts: list[int]) -> int:
    """Leading tokens that are as drafted."""
    for place, (token, draft) in enumerate(zip(tokens, drafts)):
        if token != draft:
            return place
    return min(len(tokens), len(drafts))
