"""The host's arena: cached pages that the device had no room for, and the pages of sequences put away.

Pages that are evicted from the device move here when their copy has run, under the same names; least recently
used and leaf first they go from here. A page that comes back to the device stays here too, so that it costs
no copy to be evicted again.
"""

from ridgeline.kv.copies import DEVICE, HOST, CopyQueue
from ridgeline.kv.pool import PagePool
from ridgeline.kv.prefix import Entry, PrefixIndex


class HostTier:
    """Over the host's pool and index, and the manager's copies."""

    def __init__(self, pool: PagePool, index: PrefixIndex, copies: CopyQueue) -> None:
        self.pool = pool
        self.index = index
        self._copies = copies

    def keep(self, page: int, entry: Entry) -> None:
        """A cached device page is about to be handed out: its content goes to the host, if it is not there
        and there is room."""
        twin = self.index.find(entry.group, entry.digest)
        if twin:
            self.pool.touch(twin)
        elif self.pool.num_free:
            self.pool.drop(self._send(page, entry))

    def put(self, page: int, entry: Entry | None) -> int:
        """A host page, held, with the content of a device page; the caller has made sure that there is
        room. entry: what it is cached as."""
        twin = self.index.find(entry.group, entry.digest) if entry is not None else 0
        if twin:
            self.pool.hold(twin)
            return twin
        return self._send(page, entry)

    def _send(self, page: int, entry: Entry | None) -> int:
        target = self.pool.take()
        self._copies.add((DEVICE, page), (HOST, target), entry)
        return target
