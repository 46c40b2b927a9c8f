"""First come, but those go together whose prompts begin alike (as Zheng et al. 2024, SGLang, section 3): of
the first WINDOW that wait, who finds most of its prompt in the cache starts first, before that is evicted;
who would find much more once a prompt that runs has been computed waits for that. Ageing (`admit`) bounds
both."""

import numpy as np

from ridgeline.schedule.policies.policy import LOOK, Policy, View
from ridgeline.schedule.request import Request

WINDOW = 16
SOON = 64  # prompt tokens that are worth waiting for


class Reuse(Policy):
    passes = WINDOW + LOOK
    lines_up = False

    def __init__(self) -> None:
        self._cached: dict[int, int] = {}  # of those that wait, until somebody starts or leaves

    def line(self, view: View, now: float) -> list[Request]:
        rows, window = view.rows, view.queue.head(WINDOW)
        at = (rows.computed < rows.num_prompt).nonzero()[0]
        running = list(zip(rows.requests(at), rows.computed[at].tolist()))
        ready = [request for request in window
                 if all(_shared(request, other) < computed + SOON for other, computed in running)]
        for request in ready:
            if request.number not in self._cached:
                self._cached[request.number] = view.cached(request)
        ready.sort(key=lambda request: -self._cached[request.number])
        return [*ready, *view.queue.head(view.rows.num_free + LOOK, WINDOW)]

    def started(self, request: Request) -> None:
        self._cached.clear()

    def leaves(self, request: Request) -> None:
        self._cached.clear()


def _shared(request: Request, other: Request) -> int:
    """Tokens with which both prompts begin, where they may share them."""
    if request.cache_salt != other.cache_salt:
        return 0
    most = min(request.num_prompt, other.num_prompt)
    differ = np.flatnonzero(request.prompt[:most] != other.prompt[:most])
    return int(differ[0]) if len(differ) else most
