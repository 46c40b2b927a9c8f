"""The arenas: every byte of cache on one device, cut into pages, and pages of host memory behind them. Knows
no sequence and no meaning of the bytes."""

import torch
from torch import Tensor

from ridgeline.schedule.plan import Copies
from ridgeline.spec.cache import CacheLayout, State


class PageCache:
    """arena uint8 [num_pages, page_bytes]; not initialised, so that pages cost memory when first written.
    host: likewise, pinned where the device is none of the host's, so that its copies wait for nobody."""

    def __init__(self, layout: CacheLayout, num_pages: int, device: torch.device,
                 num_host_pages: int = 0) -> None:
        self.arena = torch.empty(num_pages, layout.page_bytes, dtype=torch.uint8, device=device)
        self.host = torch.empty(num_host_pages, layout.page_bytes, dtype=torch.uint8,
                                pin_memory=num_host_pages > 0 and device.type != "cpu")
        self._regions = {
            (r.layer, r.slot): r for group in layout.groups if group.kind is not State for r in group.regions}

    def region(self, layer: int, slot: int) -> Tensor:
        """The bytes that (layer, slot) owns in every page, [num_pages, num_bytes], a view; whole pages for a
        state, which may begin and end in any of its sequence's."""
        region = self._regions.get((layer, slot))
        if region is None:
            return self.arena
        return self.arena[:, region.offset_bytes: region.offset_bytes + region.num_bytes]

    def copy(self, copies: Copies) -> None:
        """Run the copies in order (a later one may read what an earlier one wrote)."""
        if not len(copies):
            return
        assert len(self.host) or not (copies.source_space.any() or copies.target_space.any()), \
            "no other space is here"
        spaces = self.arena, self.host
        for source_space, source, target_space, target in zip(
                copies.source_space.tolist(), copies.source.tolist(), copies.target_space.tolist(),
                copies.target.tolist()):
            spaces[target_space][target].copy_(spaces[source_space][source], non_blocking=True)
