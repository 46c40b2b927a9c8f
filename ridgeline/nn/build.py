"""ModelSpec and weights -> a Model that runs steps. Knows no request, no plan and no checkpoint format.

Legend: T tokens, S projected rows, H hidden, V vocabulary.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.adapters.stacked import AnySlots
from ridgeline.base.errors import ConfigError
from ridgeline.blocks.step import (
    Attending,
    Block,
    CacheRegion,
    Capturable,
    Dealt,
    Long,
    Prefixed,
    Routed,
    Step,
    Tokenwise,
)
from ridgeline.blocks.table import BLOCKS
from ridgeline.kernels.cpu.native import native
from ridgeline.kernels.decode_linear import DecodeLinears
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.adapted import AdaptedParts
from ridgeline.nn.embed import Embedding, Head
from ridgeline.nn.gpu import GpuMethod
from ridgeline.nn.linear import BlockParts, Weight
from ridgeline.nn.replay import Replay, run_layers
from ridgeline.spec.cache import CacheLayout, State
from ridgeline.spec.model import ModelSpec

Weights = Mapping[str, Weight]
RegionBytes = Callable[[int, int], Tensor]  # (layer, slot) -> uint8 [pages, bytes], a view of the arena


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltBlock:
    """A block's module and the cache slots of its layer that are its own."""

    module: Block
    kind: str
    layer: int
    first_slot: int
    num_slots: int


class Model:
    """Runs flat tokens through the layers. Call `bind_cache` once before the first `forward`."""

    def __init__(self, spec: ModelSpec, blocks: tuple[BuiltBlock, ...], embedding: Embedding,
                 head: Head, gpu: Gpu | None = None, adapters: AnySlots | None = None, *,
                 apart: bool = False) -> None:
        """gpu: whose kernels run it, None for torch's and the CPU's. adapters: that its tokens may take.
        apart: see blocks.parts."""
        self.apart = apart
        self.spec = spec
        self.gpu = gpu
        self.adapters = adapters
        self._blocks = blocks
        self._embedding = embedding
        self._head = head
        self._modules = [block.module for block in blocks]
        self._routed = [module for module in self._modules if isinstance(module, Routed)]
        mixing = [i for i, module in enumerate(self._modules) if not isinstance(module, Tokenwise)]
        self._mixed = max(mixing, default=-1) + 1  # from there on tokens see nothing of each other
        self._dealt = [module for module in self._modules if isinstance(module, Dealt)]
        self._replay: Replay | None = None

    @property
    def capturable(self) -> bool:
        """True when a CUDA graph can hold the forward of decodes."""
        return self.gpu is not None and not (self.gpu.interpret or self.apart or self.not_capturable)

    @property
    def not_capturable(self) -> tuple[str, ...]:
        """Kinds of the blocks that no graph can hold."""
        return tuple(dict.fromkeys(block.kind for block in self._blocks if not (
            isinstance(block.module, Capturable) and block.module.capturable)))

    def bind_cache(self, layout: CacheLayout, region_bytes: RegionBytes, dtype: torch.dtype) -> None:
        """Hand every block its regions of the arena. layout: planned for this spec and the bytes of dtype."""
        for block in self._blocks:
            block.module.bind([
                _region(layout, region_bytes, dtype, block.layer, block.first_slot + slot)
                for slot in range(block.num_slots)])
        stateless = all(group.kind is not State for group in layout.groups)
        found = native() if self._embedding.on_cpu and not self._routed and stateless else None
        self._replay = Replay(found, self._modules) if found is not None else None

    @property
    def ways(self) -> tuple[tuple[str, str], ...]:
        """What serves attention, and why, of all blocks that are bound."""
        return tuple(dict.fromkeys(module.way for module in self._modules if isinstance(module, Attending)))

    def group_heads(self, group: int) -> int | None:
        """Query heads of a KV head, of all blocks that read shared prefixes of a cache group; None where they
        differ, or where there are none."""
        heads = {module.group_heads for module in self._modules
                 if isinstance(module, Prefixed) and module.group == group}
        return heads.pop() if len(heads) == 1 else None

    def forward(self, step: Step) -> Tensor:
        """The residual stream [T, H] after the last layer, of the tokens that the step wants; keys and values
        of all are written, its states are with `step.land()`."""
        x_TH = self._embedding(step.ids_T)
        wanted_W, out_TH = step.wanted_W, None
        if step.adapter_T is not None:
            out_TH = self._adapted(x_TH, step, step.adapter_T)
        elif self._replay is not None:
            out_TH = self._replay(x_TH, step)
        if out_TH is not None:
            return out_TH if wanted_W is None else out_TH[wanted_W]
        if wanted_W is None:
            return run_layers(self._modules, x_TH, step, {})
        x_TH = run_layers(self._modules[: self._mixed], x_TH, step, {})
        return run_layers(self._modules[self._mixed :], x_TH[wanted_W], step.only(wanted_W), {})

    def run_each_kind(self, step: Step) -> None:
        """Every block that differs from those before it, once, for what it takes the first time."""
        specs = [spec for layer in self.spec.layers for _, spec in layer.blocks]
        first = dict(zip(reversed(specs), reversed(self._modules), strict=True))
        run_layers(list(first.values()), self._embedding(step.ids_T), step, {})

    def _adapted(self, x_TH: Tensor, step: Step, slot_T: Long | Tensor) -> Tensor:
        assert self.adapters is not None, "a model without room for adapters"
        self.adapters.enter(slot_T, step.prefill_from)
        try:
            return run_layers(self._modules, x_TH, step, {})
        finally:
            self.adapters.leave()

    def take_experts_read(self) -> int:
        """Distinct experts whose weights were read since the last call, over all layers and steps."""
        return sum(module.take_experts_read() for module in self._routed)

    def experts_read(self) -> Tensor | None:
        """As far as the device alone knows it: a number on it, of the last `forward`; None where all is in
        `take_experts_read`."""
        if not self._dealt:
            return None
        edges = torch.cat([module.expert_edges for module in self._dealt])
        return (edges[1:] > edges[:-1]).sum()  # a layer's edges begin below where those before end

    def final(self, x_SH: Tensor) -> Tensor:
        """[S, H]: rows of `forward`'s result after the final norm."""
        return self._head.norm(x_SH)

    def logits(self, x_SH: Tensor, prefill_from: int) -> Tensor:
        """float32 [S, V] of rows of `forward`'s result. Rows before prefill_from take the decode path."""
        return self._head(x_SH, prefill_from)


def build_model(spec: ModelSpec, weights: Weights, dtype: torch.dtype, gpu: Gpu | None = None,
                adapters: AnySlots | None = None, *, apart: bool = False) -> Model:
    """A model whose activations have `dtype`; plain tensors of another dtype are converted,
    scalars to float32.

    gpu: its kernels run the model (plain weights only, on its device). The logits of up to its max_rows rows
    then share one memory: they last until the next. adapters: slots for some, whose seats are filled in here.
    apart: see blocks.parts.

    weights: every parameter of spec.params() by full name, a float tensor or a packed matrix
    (`LinearMethod`). "head.weight" may be given for a tied model too: the head's own copy in another
    format. CheckpointError names what is missing.
    """
    exact = {name for name, param in spec.params() if param.role == "scalar"}
    weights = {name: w.to(torch.float32 if name in exact else dtype) if isinstance(w, Tensor) else w
               for name, w in weights.items()}
    linears = None if gpu is None else DecodeLinears(gpu)
    blocks = []
    for index, layer in enumerate(spec.layers):
        slot = 0
        for name, block in layer.blocks:
            if getattr(block, "described", False):
                raise ConfigError(f"layer {index}'s {name} is described for planning, not run yet")
            prefix = f"layers.{index}.{name}."
            plain = BlockParts(weights, prefix, linears, apart=apart)
            parts = plain if adapters is None else AdaptedParts(plain, prefix, adapters)
            module = BLOCKS[block.kind](block, parts)
            num_slots = len(block.cache(bytes_per_element=1))
            blocks.append(BuiltBlock(module=module, kind=block.kind, layer=index, first_slot=slot,
                                     num_slots=num_slots))
            slot += num_slots
    ends = BlockParts(weights, "")
    embed = ends.weight("embed.weight")
    head = weights.get("head.weight", embed) if spec.tied_embeddings else ends.weight("head.weight")
    if linears is not None and isinstance(head, Tensor):
        out = torch.empty(linears.gpu.max_rows, len(head), dtype=torch.float32, device=head.device)
        head = GpuMethod(linears, head, out)
    return Model(spec, tuple(blocks), Embedding(embed, dtype, spec.embed_multiplier),
                 Head(ends.tensor("final_norm.weight"), head, spec.norm_eps, spec.logits_divisor,
                      spec.logits_softcap, apart=apart), gpu, adapters, apart=apart)


def _region(layout: CacheLayout, region_bytes: RegionBytes, dtype: torch.dtype, layer: int,
            slot: int) -> CacheRegion:
    number = layout.group_of(layer, slot)
    owner, group = layout.source[(layer, slot)], layout.groups[number]
    span = next(((r.offset_bytes, r.num_bytes) for r in group.regions if (r.layer, r.slot) == owner), None)
    return CacheRegion(group=number, tokens_per_page=group.tokens_per_page, bytes_NB=region_bytes(*owner),
                       dtype=dtype, span=span if group.kind is State else None)
