"""For batches, whose last answer should come soon.

The longest expected answer first (Graham 1969, "longest processing time"), so that no long one is left alone
at the end. Beside few decodes prompts cost less than alone, since the weights are read once for both: they
start as rows and pages come. Beside many, which keep the products busy as it is, a few prompt tokens cost
more than they do among their like: prompts wait until half a step's tokens have rows. And a batch that has a
row for everyone ends with the last that starts, unless a longer answer has begun: so its prompts are computed
first, while rows that could decode stall, for at most STALL steps."""

from ridgeline.schedule.policies.policy import Limits, Policy, View
from ridgeline.schedule.request import Request

STALL = 64


class Throughput(Policy):
    """many: rows that run, from which on prompts are gathered. From about 300 on a GPU multiplies for longer
    than it reads 16-bit weights."""

    many = 320
    patience = 256  # those that came first may have the shortest answers
    lines_up = False

    def __init__(self) -> None:
        self._tokens: dict[int, int] = {}  # to compute of those that wait, until somebody starts

    def order(self, request: Request) -> tuple[float, ...]:
        return (-request.predicted_output, request.arrived_s, request.number)

    def limits(self, view: View, now: float) -> Limits:
        prompting = view.rows.prompting()
        waits = view.rows.num_running >= self.many and not prompting.any() and self._too_few(view)
        fills = self._fills(view)  # whose steps are full to the last token, as what multiplies likes them
        return Limits(tokens=view.most_tokens, starts=0 if waits else None, whole=not fills,
                      rows=prompting if fills else None)

    def _too_few(self, view: View) -> bool:
        """Whether those that have a free row make less than half a step, while more wait."""
        tokens, free = 0, view.rows.num_free
        if not free or len(view.queue) <= free:
            return False
        for place in range(free):
            request = view.queue[place]
            if request.number not in self._tokens:
                self._tokens[request.number] = len(request.tokens) - view.cached(request)
            tokens += self._tokens[request.number]
            if 2 * tokens >= view.most_tokens:
                return False
        return True

    def _fills(self, view: View) -> bool:
        """Whether this step is of those that begin a batch."""
        rows, queue = view.rows, view.queue
        if not queue or len(queue) > rows.num_free:
            return False
        return not rows.num_running or (0 < view.held < STALL and queue.first.order[0] <= min(
            running.order[0] for running in rows.request if running is not None))

    def started(self, request: Request) -> None:
        self._tokens.clear()
