"""Fair sharing among tenants by virtual token counters (Sheng et al. 2024, "Fairness in Serving Large
Language Models", algorithm 2).

Each tenant has a counter of the service it had: prompt tokens computed and, twice as dear, tokens generated.
The tenant with the smallest counter starts next. One that comes back after it had nothing waiting is lifted
to the least of those that wait, so that nobody saves up.

Bound (their theorem 4.4): of two tenants that both have requests waiting all through an interval, neither
gets more service in it than the other by more than 2 U, U the larger of the longest prompt and twice the
output tokens that running requests may hold. What ageing lets pass before its turn it pays for all the same.
"""

from collections.abc import Iterator, Mapping
from heapq import heapify, heappop, heappush

from ridgeline.schedule.policies.policy import Policy, View
from ridgeline.schedule.ranked import Ranked
from ridgeline.schedule.request import Request, Status

OUTPUT = 2  # an output token, in prompt tokens
KEPT = 1000  # tenants whose counters are kept before those that a lift would raise anyway are dropped


class Fair(Policy):
    """counters: by tenant, in prompt tokens."""

    by_tenant = True  # among tenants the line follows the counters, not the rank
    lines_up = False

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}
        self._lanes: Mapping[str, Ranked] = {}
        self._waiting: set[str] = set()  # tenants that had requests waiting, as of the last line
        self._level = 0  # counter of the tenant that last ceased to wait
        self._paid: dict[int, int] = {}  # output tokens in the counters, by request that runs

    def line(self, view: View, now: float) -> Iterator[Request]:
        self._pay_outputs(view)
        self._lanes = lanes = view.queue.tenants
        self._lift()
        heap = [(self.counters[tenant], lane.first.number, 0, tenant) for tenant, lane in lanes.items()]
        heapify(heap)
        while heap:
            _, _, place, tenant = heappop(heap)
            request = lanes[tenant][place]
            yield request
            place += request.status is Status.WAITING
            if place < len(lanes.get(tenant, ())):
                heappush(heap, (self.counters[tenant], lanes[tenant][place].number, place, tenant))

    def started(self, request: Request) -> None:
        self._paid[request.number] = request.num_output
        if not request.num_preemptions:
            self._charge(request.tenant, request.num_prompt - request.num_cached)
        if request.tenant not in self._lanes:
            self._waiting.discard(request.tenant)
            self._level = self.counters[request.tenant]

    def leaves(self, request: Request) -> None:
        self._charge(request.tenant, OUTPUT * (request.num_output - self._paid.pop(request.number)))

    def _pay_outputs(self, view: View) -> None:
        rows = view.rows
        outputs = (rows.known - rows.num_prompt).tolist()
        for number, row in rows.row_of.items():
            request, owed = rows.request[row], outputs[row] - self._paid[number]
            if owed and request is not None:
                self._charge(request.tenant, OUTPUT * owed)
                self._paid[number] += owed

    def _lift(self) -> None:
        lanes = self._lanes
        stayed = self._waiting & lanes.keys()
        level = min((self.counters[tenant] for tenant in stayed), default=self._level)
        for tenant in lanes.keys() - stayed:
            self.counters[tenant] = max(self.counters.get(tenant, 0), level)
        self._waiting = set(lanes)
        if len(self.counters) > KEPT:
            self.counters = {tenant: count for tenant, count in self.counters.items()
                             if count > level or tenant in lanes}

    def _charge(self, tenant: str, tokens: int) -> None:
        self.counters[tenant] = self.counters.get(tenant, 0) + tokens
