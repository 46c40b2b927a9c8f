"""What checkpoints call the tensors of our blocks, as tables; a family gives what differs in its files.

Legend of a table: "block.leaf" or "block.leaf.weight" -> the name in a layer, of one tensor or of several
that are laid one below another. {} is an expert's number, where experts stand one by one. A name that begins
with / is that of a tensor outside the layers, which all of them have alike.
"""

from collections.abc import Mapping
from dataclasses import replace

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.gated_delta.spec import GatedDeltaSpec
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.models.sources import Part, Source
from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.model import ModelSpec

Names = Mapping[str, str | tuple[str, ...]]


def hf_mlp(block: str, path: str) -> dict[str, str | tuple[str, ...]]:
    """The names of a feed-forward at a path."""
    return {f"{block}gate_up": (f"{path}.gate_proj", f"{path}.up_proj"), f"{block}down": f"{path}.down_proj"}


HF: Names = {
    "embed": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head", "layer": "model.layers.{}",
    "attn.norm": "input_layernorm", "attn.out": "self_attn.o_proj",
    "attn.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), "attn.q": "self_attn.q_proj",
    "attn.q_norm": "self_attn.q_norm", "attn.k_norm": "self_attn.k_norm", "attn.sinks": "self_attn.sinks",
    "mlp.norm": "post_attention_layernorm", **hf_mlp("mlp.", "mlp"),
    "moe.norm": "post_attention_layernorm", "moe.router": "mlp.gate",
    "moe.router.choice_bias": "mlp.gate.e_score_correction_bias", **hf_mlp("moe.", "mlp.experts.{}"),
    **hf_mlp("moe.shared_", "mlp.shared_expert"), "moe.shared_gate": "mlp.shared_expert_gate"}

GGUF: Names = {
    "embed": "token_embd", "final_norm": "output_norm", "head": "output", "layer": "blk.{}",
    "attn.norm": "attn_norm", "attn.qkv": ("attn_q", "attn_k", "attn_v"), "attn.out": "attn_output",
    "attn.q_norm": "attn_q_norm", "attn.k_norm": "attn_k_norm", "attn.post_norm": "post_attention_norm",
    "attn.sinks": "attn_sinks.weight", "mlp.post_norm": "post_ffw_norm", "mlp.norm": "ffn_norm",
    "mlp.gate_up": ("ffn_gate", "ffn_up"), "mlp.down": "ffn_down",
    "moe.norm": "ffn_norm", "moe.router": "ffn_gate_inp", "moe.router.choice_bias": "exp_probs_b.bias",
    "moe.gate_up": ("ffn_gate_exps", "ffn_up_exps"), "moe.down": "ffn_down_exps",
    "moe.shared_gate_up": ("ffn_gate_shexp", "ffn_up_shexp"), "moe.shared_down": "ffn_down_shexp",
    "moe.shared_gate": "ffn_gate_inp_shexp"}


def named_sources(spec: ModelSpec, names: Names, *, interleaved: bool = False,
                  norm_added: float = 0.0) -> dict[str, Source]:
    """The sources of every weight of the spec, in its order.

    interleaved: q and k rows stand as rotary pairs. norm_added: to the numbers of every norm that the table
    does not name with its leaf.
    """
    found = {}
    for name, param in spec.params():
        *path, leaf = name.split(".")
        if path[0] != "layers":
            source = _source("", names[path[0]], leaf, param, None, interleaved)
        else:
            _, index, block, *rest = path
            blocks = dict(spec.layers[int(index)].blocks)
            prefix = f"{names['layer']}.".format(index)
            key = ".".join((block, *rest))
            if f"{key}.{leaf}" in names:  # the name of this tensor as a whole, which holds it as it is
                theirs = str(names[f"{key}.{leaf}"])
                theirs = theirs[1:] if theirs.startswith("/") else prefix + theirs
                found[name] = Source(parts=(Part(name=theirs),))
                continue
            source = _source(prefix, names[key], leaf, param, blocks[block], interleaved)
        found[name] = replace(source, added=norm_added) if param.role == "norm" else source
    return found


def _source(prefix: str, theirs: str | tuple[str, ...], leaf: str, param: ParamSpec, block: BlockSpec | None,
            interleaved: bool) -> Source:
    names = [f"{prefix}{name}.{leaf}" for name in ((theirs,) if isinstance(theirs, str) else theirs)]
    stack = param.shape[0] if len(param.shape) == {"linear": 3, "bias": 2}.get(param.role) else 0
    parts = _parts(block, param, param.shape[bool(stack)], len(names), interleaved)
    parts = [replace(part, name=name) for name, part in zip(names, parts, strict=True)]
    if stack and "{}" in names[0]:
        parts = [replace(part, name=part.name.format(expert)) for expert in range(stack) for part in parts]
    elif stack:
        parts = [replace(part, stacked=True) for part in parts]
    return Source(parts=tuple(parts), matrices=stack)


def _parts(block: BlockSpec | None, param: ParamSpec, num_rows: int, count: int,
           interleaved: bool) -> list[Part]:
    """The rows of a weight in so many tensors, which have no names yet. Latent attention's queries and
    entries are interleaved in every file."""
    if isinstance(block, MlaSpec) and param.name in ("down.weight", "q_down.weight", "q.weight"):
        rotary = block.rope.rotary_dim
        queries = 0 if block.q_rank and param.name != "q.weight" else block.num_heads
        heads: tuple[int, ...] = (queries, 1) if count == 2 else (queries,)
        rows: tuple[int | None, ...] = block.down_rows if count == 2 else (None,)
        return [Part(name="", rows=r, interleaved_heads=h, rotary_rows=rotary if h else None)
                for r, h in zip(rows, heads, strict=True)]
    if isinstance(block, AttentionSpec) and count == 3:
        heads = (block.num_heads, block.num_kv_heads, 0) if interleaved else (0, 0, 0)
        return [Part(name="", rows=r, interleaved_heads=h)
                for r, h in zip(block.qkv_rows, heads, strict=True)]
    if isinstance(block, GatedDeltaSpec) and count > 1:
        return [Part(name="", rows=rows) for rows in block.in_rows]
    return [Part(name="", rows=None if count == 1 else num_rows // count)] * count
