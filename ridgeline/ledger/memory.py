"""Does it fit: weights, cache by layout with its rounding, workspace, and what is left over. Bytes
throughout."""

from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import format_bytes
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.cache import CacheLayout, Paged, Shared, State, Window
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import WeightPlan

_LOGITS = 4  # times the logits' size: they, and a sampler's work on them


def weights_bytes(spec: ModelSpec, plan: WeightPlan) -> int:
    """Resident bytes of all weights; a tied head in another format than the embedding is a second copy."""
    total = sum(plan.num_bytes(name, param) for name, param in spec.params())
    if spec.tied_embeddings:
        matrix = ParamSpec(name="weight", shape=(spec.vocab_size, spec.hidden_size), role="embed")
        if plan.format_of("head.weight", matrix) != plan.format_of("embed.weight", matrix):
            total += plan.num_bytes("head.weight", matrix)
    return total


def needed_cache_bytes(spec: ModelSpec, num_tokens: int, bytes_per_element: int) -> int:
    """What one sequence of `num_tokens` known tokens must keep, to the byte: what the model needs."""
    total = 0
    for layer in spec.cache(bytes_per_element):
        for kept in layer:
            if isinstance(kept, Paged):
                total += -(-num_tokens // kept.tokens_per_entry) * kept.bytes_per_entry
            elif isinstance(kept, Window):
                total += min(num_tokens, kept.window_tokens) * kept.bytes_per_token
            elif isinstance(kept, State):
                total += kept.num_bytes
            else:
                assert isinstance(kept, Shared)
    return total


def reserved_cache_bytes(layout: CacheLayout, num_tokens: int) -> int:
    """What the engine sets aside for the same sequence: whole pages of the common size."""
    return layout.pages_for(num_tokens) * layout.page_bytes


def snapshot_bytes(layout: CacheLayout, num_pages: int) -> int:
    """What snapshots of recurrent states may take of an arena: whole ones in a quarter of it, one at least; 0
    in a model without states. Like all that is cached they give way to sequences that run."""
    one_bytes = sum(group.state_pages for group in layout.groups) * layout.page_bytes
    return max(num_pages * layout.page_bytes // 4 // one_bytes, 1) * one_bytes if one_bytes else 0


def step_bytes(spec: ModelSpec, *, step_tokens: int, num_seqs: int, context: int, element_bytes: int) -> int:
    """What a step's activations take at most: the widest block's products, the stream, the logits and what
    sampling makes of them; the rows' recurrent states, which a step copies; and what the latents of so many
    tokens of context are expanded into."""
    blocks = {block for layer in spec.layers for _, block in layer.blocks}
    widest = max(map(_width, blocks))
    expanded = max((block.expanded(context) for block in blocks if isinstance(block, MlaSpec)), default=0)
    return ((step_tokens * (widest + 4 * spec.hidden_size) + expanded) * element_bytes
            + num_seqs * (spec.vocab_size * 4 * _LOGITS + _state_bytes(spec)))


def _state_bytes(spec: ModelSpec) -> int:
    """Of one sequence's recurrent states."""
    return sum(kept.num_bytes for layer in spec.cache(1) for kept in layer if isinstance(kept, State))


def _width(block: BlockSpec) -> int:
    """Numbers that a block's products take for one token; experts hold each token top_k times."""
    width = 2 * sum(param.shape[0] for param in block.params() if len(param.shape) == 2)
    if isinstance(block, MoeSpec):
        width += block.router.top_k * 2 * (block.hidden_size + block.intermediate_size)
    return width


def _largest(fits: Callable[[int], bool], limit: int) -> int:
    """The largest n in 0..limit that fits; fits must be monotone."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """A memory budget divided up. num_pages: of the arena, page 0 (never given out) included; 0 when nothing
    is left."""

    budget_bytes: int
    weights_bytes: int
    workspace_bytes: int
    layout: CacheLayout
    num_pages: int

    @property
    def cache_bytes(self) -> int:
        return self.num_pages * self.layout.page_bytes

    @property
    def spare_bytes(self) -> int:
        """What no term takes; negative when the weights and the workspace alone do not fit."""
        return self.budget_bytes - self.weights_bytes - self.workspace_bytes - self.cache_bytes

    @property
    def snapshot_bytes(self) -> int:
        """Of the cache, what snapshots of recurrent states may take."""
        return snapshot_bytes(self.layout, self.num_pages)

    @property
    def usable_pages(self) -> int:
        return max(self.num_pages - 1, 0)

    def fits(self, num_tokens: int, num_sequences: int = 1) -> bool:
        """True when that many sequences of that length can be resident together."""
        pages = self.layout.pages_for(num_tokens) * num_sequences
        return self.spare_bytes >= 0 and pages <= self.usable_pages

    def max_sequences(self, num_tokens: int) -> int:
        """Sequences of `num_tokens` that are resident together."""
        return self.usable_pages // self.layout.pages_for(num_tokens)

    def max_tokens(self, limit: int) -> int:
        """The longest single sequence, at most `limit` tokens."""
        return _largest(self.fits, limit)


def plan_memory(*, budget_bytes: int, weights_bytes: int, workspace_bytes: int,
                layout: CacheLayout) -> MemoryPlan:
    """All that the weights and the workspace leave becomes cache pages."""
    left = budget_bytes - weights_bytes - workspace_bytes
    return MemoryPlan(budget_bytes=budget_bytes, weights_bytes=weights_bytes, workspace_bytes=workspace_bytes,
                      layout=layout, num_pages=max(left, 0) // layout.page_bytes)


def require_fit(plan: MemoryPlan, num_tokens: int) -> None:
    """ConfigError, with the numbers and the change that helps, when one sequence of `num_tokens` cannot be
    resident."""
    if plan.fits(num_tokens):
        return
    short = -plan.spare_bytes
    if short > 0:
        raise ConfigError(f"the weights ({format_bytes(plan.weights_bytes)}) and the workspace "
                          f"({format_bytes(plan.workspace_bytes)}) are {format_bytes(short)} more than the "
                          f"{format_bytes(plan.budget_bytes)} there are: use a smaller weight format")
    needed = format_bytes(reserved_cache_bytes(plan.layout, num_tokens))
    raise ConfigError(f"a sequence of {num_tokens} tokens takes {needed} of cache and "
                      f"{format_bytes(plan.cache_bytes)} are left: use --max-model-len "
                      f"{plan.max_tokens(num_tokens)} or less, or a larger --kv-cache-bytes")
