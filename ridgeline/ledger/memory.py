"""What takes memory: weights, a sequence's cache, snapshots of states, a step's activations. Bytes
throughout; who divides a budget by them is the caller's."""

from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.moe.spec import MoeSpec
from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.cache import CacheLayout, Paged, Shared, State, Window
from ridgeline.spec.cost import expected_distinct
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


def active_params(spec: ModelSpec) -> int:
    """Parameters that a step of one token reads: all but those of the experts that it does not choose."""
    idle = 0.0
    for block, many in spec.blocks():
        sizes = {param.name: param.num_elements for param in block.params()}
        for line in block.cost():
            part = sum(value * expected_distinct(router, 1) for (_, router), value in line.share
                       if isinstance(router, tuple))
            idle += many * (1 - part) * sum(sizes[name] for name in line.share_of)
    return round(spec.num_params - idle)


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
    blocks = [block for block, _ in spec.blocks()]
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
