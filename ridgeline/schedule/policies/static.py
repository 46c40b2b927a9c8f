"""Static batching: those that wait when the last batch has ended become the next one, as many as there are
rows. The batch's prompts are computed first, then it decodes until the last of it ends; rows that ended
before stay idle."""

from ridgeline.schedule.policies.policy import Limits, Policy, View
from ridgeline.schedule.request import Request


class Static(Policy):
    lines_up = False

    def __init__(self) -> None:
        self._open = 0  # requests that may still join the batch

    def limits(self, view: View, now: float) -> Limits:
        if not view.rows.num_running:
            self._open = min(len(view.queue), view.rows.size)
        elif not view.held:  # it decodes, so it is closed; who found no room in it waits for the next
            self._open = 0
        return Limits(tokens=view.most_tokens, starts=self._open, whole=True,
                      rows=view.rows.prompting() if self._open or view.held else None)

    def started(self, request: Request) -> None:
        self._open -= 1
