"""Why a prefix hit ended where it did, in words for whoever sent the request.

It says what is cached under the request's own salt alone: that another tenant holds the same text is none of
its business.
"""

from collections.abc import Sequence

from ridgeline.kv.kinds import Probe, Room, longest

LAST = "last position is always computed"
OFF = "prefix caching is off"


def why_not_more(rooms: Sequence[Room], probe: Probe, *, hit: int, num_tokens: int, now: float) -> str:
    """rooms: of the manager. hit: tokens reused of num_tokens, nothing but the cache having held it back."""
    if hit >= num_tokens - 1:
        return LAST
    entries = [room for room in rooms if room.page_tokens]
    if not entries or longest(entries, probe, num_tokens - 1) > hit:
        return f"state snapshot at {hit}" if hit else "no state snapshot of this prefix"
    short = [room for room in entries if room.leaf_first and room.longest(probe, num_tokens - 1) <= hit]
    return _at_block(short[0] if short else entries[0], probe, hit, num_tokens, now)


def _at_block(room: Room, probe: Probe, hit: int, num_tokens: int, now: float) -> str:
    """What there is instead of the page of this room in which the hit ended."""
    start = hit - hit % room.page_tokens
    end = start + room.page_tokens
    if end <= num_tokens:
        gone_s = probe.gone_s(room.number, end)
        if gone_s is not None:
            return f"evicted {now - gone_s:.1f} s ago"
    if hit and probe.follows(room.number, start):
        return f"differs at token {hit}"
    return f"no block {f'after token {hit}' if hit else 'of this prefix'} was ever cached"
