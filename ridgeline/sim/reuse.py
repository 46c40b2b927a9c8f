"""How much of a workload's prompts a prefix cache of a given size has seen before: one prompt after another
through the KV manager that serves, without time and answers, so that what is counted is the cache alone.

A page is one block of the workload's own prefix ids. What a prompt has beyond its ids is nobody else's.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.kv.manager import KVManager
from ridgeline.spec.cache import Paged, plan_layout
from ridgeline.workload.offered import Offered

_PAGE = 2  # tokens that stand for a block
_OWN = 1 << 30  # ids from here on are texts of one prompt alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """Of all prompts: tokens and those that were found in the cache; blocks, begun ones counted, and those
    that were found whole."""

    tokens: int
    hit_tokens: int
    blocks: int
    hit_blocks: int

    @property
    def block_rate(self) -> float:
        return self.hit_blocks / self.blocks

    @property
    def token_rate(self) -> float:
        return self.hit_tokens / self.tokens


def ideal_reuse(requests: Sequence[Offered]) -> Reuse:
    """Of a cache without end (Mooncake's count of its traces: Qin et al. 2025, section 4)."""
    known: dict[tuple[int, int], int] = {}  # (what precedes, id) -> what both together are called
    hits = []
    for request in requests:
        prefix, hit = 0, 0
        for name in request.prefix:
            hit += request.block_tokens * ((prefix, name) in known)
            prefix = known.setdefault((prefix, name), len(known) + 1)
        hits.append(min(hit, request.num_prompt - 1))
    return _reuse(requests, hits)


def reuse(requests: Sequence[Offered], num_blocks: int) -> Reuse:
    """Of a cache of so many blocks. Prompts that it cannot hold pass it by, and find nothing."""
    size = requests[0].block_tokens
    manager = KVManager(plan_layout([(Paged(bytes_per_entry=64),)], block_tokens=_PAGE), num_blocks + 1)
    hits = []
    for number, request in enumerate(requests):
        tokens = _shortened(request, _OWN + number)
        hits.append(0)
        if not manager.fits(len(tokens)):
            continue
        hit = manager.open(number, tokens)
        assert manager.reserve(number, len(tokens)), "what fits alone has its pages"
        manager.return_tickets(manager.close_step(number, {number: 0}).copies.ticket)
        manager.step_finished(number)
        manager.commit(number, len(tokens), tokens)
        manager.release(number)
        hits[-1] = hit // _PAGE * size + hit % _PAGE * (size - 1)  # whole, its last token is computed again
    return _reuse(requests, hits)


def _shortened(request: Offered, own: int) -> list[int]:
    """A prompt with two tokens for a block, which is all that names tell of it, and one for a begun one."""
    full, begun = divmod(request.num_prompt, request.block_tokens)
    names = [*request.prefix, *[own] * (full - len(request.prefix))]
    return [name for name in names for _ in range(_PAGE)] + [own] * (begun > 0)


def _reuse(requests: Sequence[Offered], hits: Sequence[int]) -> Reuse:
    """hits: tokens found, one fewer than the prompt's where all of it was."""
    size = requests[0].block_tokens
    blocks = sum(-(-hit // size) if hit == one.num_prompt - 1 else hit // size
                 for one, hit in zip(requests, hits))
    return Reuse(tokens=sum(one.num_prompt for one in requests), hit_tokens=sum(hits), hit_blocks=blocks,
                 blocks=sum(-(-one.num_prompt // size) for one in requests))
