"""ModelSpec: one model as data. A family file makes it from a checkpoint's config; everything else
reads it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ridgeline.spec.block import BlockSpec, ParamSpec
from ridgeline.spec.cache import CacheSpec

if TYPE_CHECKING:
    from ridgeline.blocks.vision.spec import VisionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """One layer: named blocks applied one after another, each with its own norm and residual inside.

    blocks: ((name, spec), ...), for example (("attn", AttentionSpec), ("mlp", MlpSpec)).
    """

    blocks: tuple[tuple[str, BlockSpec], ...]

    def cache(self, bytes_per_element: int) -> tuple[CacheSpec, ...]:
        return tuple(spec for _, block in self.blocks for spec in block.cache(bytes_per_element))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A decoder-only language model. Equal layers are one object, however they were made, so that whoever
    asks the same of all layers asks each of `alike` once.

    vocab_size: rows of the embedding as stored (padding included). max_position: the context that the
    checkpoint states. eos_token_ids: every id that ends a text. dtype: the checkpoint's own float type.
    logits_softcap: logits z become softcap * tanh(z / softcap). stored_as: the format of matrices that the
    checkpoint holds quantized (a name of `spec.quant.FORMATS`), "" for plain numbers and GGUF;
    stored_plain: parts of the full names of matrices that stay plain all the same (".attn.").
    final_norm_bias: the last norm has a bias. vision: the encoder of images, for planning.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position: int
    norm_eps: float
    tied_embeddings: bool
    layers: tuple[LayerSpec, ...]
    dtype: str = "bfloat16"
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    embed_multiplier: float = 1.0
    logits_divisor: float = 1.0
    logits_softcap: float | None = None
    stored_as: str = ""
    stored_plain: tuple[str, ...] = ()
    final_norm_bias: bool = False
    vision: "VisionSpec | None" = None

    def __post_init__(self) -> None:
        seen: dict[int, LayerSpec] = {}
        first: dict[LayerSpec, LayerSpec] = {}
        for layer in self.layers:
            if id(layer) not in seen:
                seen[id(layer)] = first.setdefault(layer, layer)
        object.__setattr__(self, "layers", tuple(seen[id(layer)] for layer in self.layers))

    def alike(self) -> tuple[tuple[LayerSpec, tuple[int, ...]], ...]:
        """(layer, the numbers of all layers that are equal to it), in the order of their first."""
        found: dict[int, list[int]] = {}
        for index, layer in enumerate(self.layers):
            found.setdefault(id(layer), []).append(index)
        return tuple((self.layers[at[0]], tuple(at)) for at in found.values())

    def blocks(self) -> Iterator[tuple[BlockSpec, int]]:
        """(block, how often it occurs), by layer that differs."""
        for layer, at in self.alike():
            for _, block in layer.blocks:
                yield block, len(at)

    def params(self) -> Iterator[tuple[str, ParamSpec]]:
        """(full name, spec) of every tensor: "embed.weight", "layers.3.attn.qkv.weight", "final_norm.weight",
        "head.weight" (absent when tied)."""
        table = (self.vocab_size, self.hidden_size)
        yield "embed.weight", ParamSpec(name="weight", shape=table, role="embed", shard=0)
        for index, layer in enumerate(self.layers):
            for block_name, block in layer.blocks:
                for param in block.params():
                    yield f"layers.{index}.{block_name}.{param.name}", param
        yield "final_norm.weight", ParamSpec(name="weight", shape=(self.hidden_size,), role="norm")
        if self.final_norm_bias:
            yield "final_norm.bias", ParamSpec(name="bias", shape=(self.hidden_size,), role="norm")
        if not self.tied_embeddings:
            yield "head.weight", ParamSpec(name="weight", shape=table, role="linear", shard=0)
        for param in self.vision.params() if self.vision is not None else ():
            yield f"vision.{param.name}", param

    def same_shape(self, other: "ModelSpec") -> bool:
        """True when the other's weights and cache could take the place of this one's: all is the same but the
        format that numbers are stored in."""
        stored = replace(other, dtype=self.dtype, stored_as=self.stored_as, stored_plain=self.stored_plain)
        return stored == self

    @property
    def num_params(self) -> int:
        """Parameters, the tied embedding counted once."""
        outside = sum(p.num_elements for _, p in replace(self, layers=()).params())
        return outside + sum(many * sum(p.num_elements for p in block.params())
                             for block, many in self.blocks())

    def cache(self, bytes_per_element: int) -> list[tuple[CacheSpec, ...]]:
        """Cache specs by layer, for `spec.cache.plan_layout`."""
        made = {id(layer): layer.cache(bytes_per_element) for layer, _ in self.alike()}
        return [made[id(layer)] for layer in self.layers]
