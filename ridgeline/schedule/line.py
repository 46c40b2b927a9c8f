"""Those that wait for their first step, as columns in the order in which they came: what each must compute at
the least, and which of them are before another one. Knows no clock and no price."""

import numpy as np

from ridgeline.schedule.request import Request

_FIRST, _THEN, _TENANT, _TOKENS = range(4)
_GONE = (np.inf, 0.0, 0.0, 0.0)
_HASH = (1 << 52) - 1  # of a hash, what a float tells apart


class Line:
    """The rank is told by its first two parts; of equal ones who came earlier is before."""

    def __init__(self) -> None:
        self._columns = np.zeros((4, 64))
        self._numbers: list[int] = []
        self._place: dict[int, int] = {}
        self._tokens = 0

    def add(self, request: Request) -> None:
        """Last in the order of arrival. Its must_tokens and its order are known."""
        place = len(self._numbers)
        if place == self._columns.shape[1]:
            place = self._close_up()
        first, then = (*request.order, 0.0)[:2]
        tenant = hash(request.tenant) & _HASH
        self._columns[:, place] = (first, then, tenant, request.must_tokens - 1)
        self._numbers.append(request.number)
        self._place[request.number] = place
        self._tokens += request.must_tokens

    def remove(self, number: int) -> None:
        """It waits no more; whoever is unknown never did."""
        place = self._place.pop(number, None)
        if place is not None:
            self._tokens -= int(self._columns[_TOKENS, place]) + 1
            self._columns[:, place] = _GONE

    def move(self, request: Request) -> None:
        """Its rank is another."""
        self._columns[_FIRST, self._place[request.number]] = request.order[0]

    def tokens(self) -> int:
        """Of all."""
        return self._tokens

    def before(self, request: Request, passes: int, *, same_tenant: bool) -> int:
        """Tokens of those that came before it, rank before it and, if so asked, are of its tenant, but for
        the `passes` largest; one less of each prompt, whose last token may be left over (`budget`)."""
        place = self._place[request.number]
        first, then, tenant, tokens = self._columns[:, :place]
        own = self._columns[:, place].tolist()
        ahead = first < own[_FIRST]
        if not (whole := ahead.all()):
            ahead |= (first == own[_FIRST]) & (then <= own[_THEN])
        if same_tenant:
            ahead &= tenant == own[_TENANT]
        counted = tokens if whole and not same_tenant else tokens[ahead]
        kept = len(counted) - passes
        if kept <= 0:
            return 0
        return int((np.partition(counted, kept)[:kept] if passes else counted).sum())

    def _close_up(self) -> int:
        """Columns for twice as many as still wait; the number of these."""
        kept = [place for place, number in enumerate(self._numbers) if number in self._place]
        columns = np.zeros((4, max(64, 2 * len(kept))))
        columns[:, :len(kept)] = self._columns[:, kept]
        self._numbers = [self._numbers[place] for place in kept]
        self._place = {number: place for place, number in enumerate(self._numbers)}
        self._columns = columns
        return len(kept)
