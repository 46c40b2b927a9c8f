"""The four cache kinds and the page layout that serves them all. Torch-free; knows no attention type.

A layer states what it keeps as a tuple of `CacheSpec`s. Layers with the same kind and window form a group;
a group's page holds `tokens_per_page` consecutive tokens of every layer of the group. All groups draw pages
of one common size from one arena, so any page can serve any group. Inside a page each (layer, slot) of the
group has a contiguous region at a fixed offset; what the bytes of a region mean is known to the block's
module alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm


@dataclass(frozen=True, slots=True, kw_only=True)
class Paged:
    """One entry for every `tokens_per_entry` tokens, kept for the whole sequence (MHA, GQA, MQA, MLA,
    an index).
    """

    bytes_per_entry: int
    tokens_per_entry: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One entry a token, needed only while a later token's window can see it.

    window_tokens counts the query itself: key s is visible to query t iff t - window_tokens < s <= t.
    """

    bytes_per_token: int
    window_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A fixed number of bytes a sequence, rewritten at each step (Mamba-2, gated DeltaNet, linear
    attention).
    """

    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Nothing of its own: reads what `layer` keeps (cross-layer attention)."""

    layer: int


CacheSpec = Paged | Window | State | Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Where one (layer, slot) keeps its bytes inside each page of its group."""

    layer: int
    slot: int
    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one block table.

    window_tokens: None for Paged and State. state_pages: pages a sequence's state takes, 0 for Paged and
    Window; its regions are offsets into these pages one after another. snapshot_tokens: a state is kept for
    others only at multiples of it. tokens_per_entry: the group's coarsest entry; a prefix can be shared only
    up to a whole one.
    """

    kind: type
    window_tokens: int | None
    tokens_per_page: int
    state_pages: int
    regions: tuple[Region, ...]
    tokens_per_entry: int = 1
    snapshot_tokens: int = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of a page that hold something; the rest of the page is rounding."""
        return max((r.offset_bytes + r.num_bytes for r in self.regions), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """The arena's page size and the groups. `source[(layer, slot)]` resolves Shared to the (layer,
    slot) that owns.
    """

    page_bytes: int
    groups: tuple[CacheGroup, ...]
    source: dict[tuple[int, int], tuple[int, int]]

    @property
    def block_tokens(self) -> int:
        """Tokens of a block: what divides every group's page."""
        return gcd(*(group.tokens_per_page or group.snapshot_tokens for group in self.groups)) or 1

    def group_of(self, layer: int, slot: int = 0) -> int:
        """Index of the group whose block table serves this (layer, slot), through Shared."""
        owner = self.source[(layer, slot)]
        for index, group in enumerate(self.groups):
            if any((r.layer, r.slot) == owner for r in group.regions):
                return index
        raise KeyError((layer, slot))

    def pages_for(self, num_tokens: int) -> int:
        """Most pages that one sequence of `num_tokens` known tokens holds at once, over all groups."""
        total = 0
        for group in self.groups:
            if group.kind is State:
                total += group.state_pages
                continue
            full = -(-num_tokens // group.tokens_per_page)
            if group.window_tokens is not None:
                full = min(full, -(-(group.window_tokens - 1) // group.tokens_per_page) + 1)
            total += full
        return total


def _entry_bytes(spec: Paged | Window, tokens: int) -> int:
    if isinstance(spec, Window):
        return tokens * spec.bytes_per_token
    return -(-tokens // spec.tokens_per_entry) * spec.bytes_per_entry


def plan_layout(layers: Sequence[tuple[CacheSpec, ...]], *, block_tokens: int,
                align_bytes: int = 64) -> CacheLayout:
    """Group the layers and choose the common page size.

    The page is what `block_tokens` tokens of the largest group (by bytes a token) take; groups with fewer
    bytes a token hold proportionally more tokens a page, in multiples of block_tokens, so that the rounding
    stays small.
    """
    source: dict[tuple[int, int], tuple[int, int]] = {}
    members: dict[tuple[type, int | None], list[tuple[int, int, CacheSpec]]] = {}
    for layer, specs in enumerate(layers):
        for slot, spec in enumerate(specs):
            if isinstance(spec, Shared):
                source[(layer, slot)] = source[(spec.layer, slot)]
                continue
            source[(layer, slot)] = (layer, slot)
            key = (type(spec), spec.window_tokens if isinstance(spec, Window) else None)
            members.setdefault(key, []).append((layer, slot, spec))

    def aligned(num_bytes: int) -> int:
        return -(-num_bytes // align_bytes) * align_bytes

    def block_bytes(items: list[tuple[int, int, CacheSpec]], tokens: int) -> int:
        return sum(aligned(_entry_bytes(s, tokens)) for _, _, s in items if isinstance(s, Paged | Window))

    page_bytes = max((block_bytes(items, block_tokens) for (kind, _), items in members.items()
                      if kind is not State), default=0)
    if page_bytes == 0:
        page_bytes = max((aligned(s.num_bytes) for items in members.values() for _, _, s in items
                          if isinstance(s, State)), default=align_bytes)
    groups = []
    for (kind, window), items in members.items():
        regions, offset = [], 0
        if kind is State:
            for layer, slot, spec in items:
                assert isinstance(spec, State)
                regions.append(Region(layer=layer, slot=slot, offset_bytes=offset, num_bytes=spec.num_bytes))
                offset += aligned(spec.num_bytes)
            groups.append(CacheGroup(kind=kind, window_tokens=None, tokens_per_page=0,
                                     state_pages=-(-offset // page_bytes), regions=tuple(regions),
                                     snapshot_tokens=block_tokens))
            continue
        tokens = block_tokens
        while block_bytes(items, tokens + block_tokens) <= page_bytes:
            tokens += block_tokens
        for layer, slot, spec in items:
            assert isinstance(spec, Paged | Window)
            size = _entry_bytes(spec, tokens)
            regions.append(Region(layer=layer, slot=slot, offset_bytes=offset, num_bytes=size))
            offset += aligned(size)
        coarsest = lcm(*(s.tokens_per_entry for _, _, s in items if isinstance(s, Paged)))
        groups.append(CacheGroup(kind=kind, window_tokens=window, tokens_per_page=tokens, state_pages=0,
                                 regions=tuple(regions), tokens_per_entry=coarsest))
    return CacheLayout(page_bytes=page_bytes, groups=tuple(groups), source=source)
