"""What the running requests will need: how long their answers become, and the most pages they hold at once.

Answers are expected to end as those of the same tenant did. A forecast that turns out wrong costs a
preemption and nothing else.
"""

from bisect import bisect_right, insort
from collections import OrderedDict, deque

import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.int64]


class Outputs:
    """Lengths of the latest answers of each tenant, and what they say of the next.

    quantile: of those answers that were longer than what a request has produced, the share that its own is
    expected not to exceed. most_seen: answers that are remembered of a tenant; most_tenants: tenants, those
    that were heard of last.
    """

    def __init__(self, *, quantile: float = 0.5, most_seen: int = 256, most_tenants: int = 1000) -> None:
        self._quantile = quantile
        self._most_seen = most_seen
        self._most_tenants = most_tenants
        self._seen: OrderedDict[str, tuple[deque[int], list[int]]] = OrderedDict()  # in time, in size

    def observe(self, tenant: str, num_output: int) -> None:
        """An answer has ended."""
        latest, ordered = self._seen.setdefault(tenant, (deque(), []))
        self._seen.move_to_end(tenant)
        latest.append(num_output)
        insort(ordered, num_output)
        if len(latest) > self._most_seen:
            del ordered[bisect_right(ordered, latest.popleft()) - 1]
        if len(self._seen) > self._most_tenants:
            self._seen.popitem(last=False)

    def usual(self, tenant: str, most: int) -> int:
        """Tokens of an answer that has not begun and may have `most`; that many where none has ended yet."""
        return self.expect(tenant, 0, most) if tenant in self._seen else most

    def expect(self, tenant: str, produced: int, most: int) -> int:
        """Tokens of an answer in all, that has `produced` already and may have `most`: where nobody's went
        on from here, as many again."""
        ordered = self._seen[tenant][1] if tenant in self._seen else []
        longer = len(ordered) - (first := bisect_right(ordered, produced))
        total = ordered[first + int(self._quantile * longer)] if longer else 2 * produced
        return min(max(total, produced + 1), most)


def peak_pages(table: Long, known: Long, left: Long, held: Long, kept: Long, *, block_tokens: int) -> int:
    """The most pages beyond those now held that sequences need at once, if each grows by a token a step for
    `left` steps, rounded up to a block, and then gives back what it held, less `kept`; at least 0 steps from
    now. All [sequences] but table: pages of a sequence of so many blocks.

    What is needed grows until somebody ends, so the steps at which somebody does are all that is looked at.
    """
    left = -(-left // block_tokens) * block_tokens
    at = np.unique(np.append(left, 0))
    blocks = -(-(known[:, None] + at) // block_tokens)
    needed = table[np.minimum(blocks, len(table) - 1)]
    return int(np.where(at <= left[:, None], needed - held[:, None], (kept - held)[:, None]).sum(0).max())
