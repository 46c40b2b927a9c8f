"""What on the host goes along with the texts of a GPU's rows: their grammars, and drafts.

It reads every step's tokens once, in order, when they have come back: a step under a grammar waits for that
between its forward pass and its sampling, a step with drafts is begun when nothing else is in flight. Knows
no device.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ridgeline.runner.flight import Flight
from ridgeline.runner.grammar import Grammars
from ridgeline.runner.isolate import as_text
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.schedule.plan import StepPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Follower:
    """grammars, drafter: None where there are none. A flight's rows start here before its tokens are read."""

    grammars: Grammars | None
    drafter: Drafter | None

    def binds(self, plan: StepPlan) -> bool:
        """True where the step can be sampled only when the one before it was read."""
        return self.grammars is not None and self.grammars.concerns(plan)

    def start(self, flight: Flight) -> None:
        """The rows that requests take with this step; all steps before it were read."""
        if flight.bound:
            return
        flight.bound = True
        for start in flight.plan.row_starts:
            if self.drafter is not None:
                self.drafter.start(start)
            if self.grammars is None:
                continue
            try:
                self.grammars.start(start)
            except Exception as error:  # the request breaks, no other
                places = np.flatnonzero(flight.plan.row == start.row).tolist()
                flight.broken.errors |= dict.fromkeys(places, as_text(error))

    def fill(self, flight: Flight) -> None:
        """Drafts in place of the plan's slots."""
        assert self.drafter is not None, "nobody fills these draft slots"
        self.start(flight)
        flight.plan, flight.proposals = self.drafter.fill(flight.plan)

    def mask(self, flight: Flight) -> None:
        """Begin with what the rows' grammars allow; what they forced meanwhile is not sampled."""
        assert self.grammars is not None
        self.start(flight)
        flight.plan = self.grammars.without_known(flight.plan)
        flight.masks = self.grammars.masks(flight.plan)
        if flight.masks is not None:
            flight.masks.begun.wait()  # the caller's thread goes on in Python

    def read(self, flight: Flight) -> Mapping[int, list[int]]:
        """The step has ended: its tokens are taken. Returns what can alone follow them, by place."""
        self.start(flight)
        if self.drafter is None and not flight.binds:
            return {}
        tokens, plan = flight.read(), flight.plan
        if self.grammars is not None and flight.binds:
            self._accept(self.grammars, flight, tokens)
        if self.drafter is not None:
            flight.drafting = self.drafter.settle(plan, tokens, flight.forced, flight.proposals)
        return flight.forced

    def _accept(self, grammars: Grammars, flight: Flight, tokens: dict[int, list[int]]) -> None:
        """The grammars take the tokens and tell what they force; a row whose grammar gives up fails."""
        plan = flight.plan
        ends = plan.start + plan.count - plan.draft
        for place, new in list(tokens.items()):
            row = int(plan.row[place])
            if (error := grammars.accept(row, new)) is not None:
                del tokens[place]
                flight.broken.errors[place] = error
            elif forced := grammars.force(row, int(ends[place]) + len(new)):
                flight.forced[place] = forced
