"""A decode step of a published shape, from its kernels alone: random weights, no engine around it.

Legend: L layers, S rows.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.base.errors import ConfigError
from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.kernels.decode_attention import DecodeAttention, Rows
from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.decode_linear.tuning import LinearShape, Tuning
from ridgeline.kernels.gpu import Gpu
from ridgeline.spec.model import ModelSpec

PAGE_TOKENS = 64
KV_BYTES = 2


def parts(spec: ModelSpec) -> list[tuple[AttentionSpec, MlpSpec]]:
    """The blocks of each layer. ConfigError for a model made of others."""
    found = []
    for layer in spec.layers:
        blocks = [block for _, block in layer.blocks]
        match blocks:
            case [AttentionSpec() as attention, MlpSpec(activation="silu") as mlp]:
                found.append((attention, mlp))
            case _:
                raise ConfigError(f"bench kernels knows attention with a SiLU MLP, not {spec.family} layers")
    return found


def linear_shapes(spec: ModelSpec) -> dict[str, LinearShape]:
    """The linears of the first layer, and the head."""
    attention, mlp = parts(spec)[0]
    hidden, inner = spec.hidden_size, mlp.intermediate_size
    return {
        "qkv": LinearShape(n=attention.q_size + 2 * attention.kv_size, k=hidden, norm=True),
        "out": LinearShape(n=hidden, k=attention.q_size),
        "gate_up": LinearShape(n=inner, k=hidden, norm=True, gated=True),
        "down": LinearShape(n=hidden, k=inner),
        "head": LinearShape(n=spec.vocab_size, k=hidden, norm=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """Pages of all layers, head-major, and the rows that own them."""

    rows: Rows
    arena_L: Tensor

    @classmethod
    def random(cls, gpu: Gpu, spec: AttentionSpec, *, layers: int, rows: int, context: int) -> "Cache":
        """Every row has `context` tokens, the new one included, in pages that lie anywhere."""
        width = -(-context // PAGE_TOKENS)
        arena = torch.empty(layers, rows * width, 2, spec.num_kv_heads, PAGE_TOKENS, spec.head_dim,
                            dtype=torch.bfloat16, device=gpu.device).normal_()
        table = torch.randperm(rows * width, device=gpu.device).view(rows, width).int()
        angles = torch.rand(rows, spec.rope.rotary_dim // 2, device=gpu.device)
        cos, sin = angles.cos(), angles.sin()
        return cls(arena_L=arena, rows=Rows(
            lens_S=torch.full((rows,), context, dtype=torch.int32, device=gpu.device), table_SX=table,
            cos_SR=torch.cat((cos, cos), 1), sin_SR=torch.cat((-sin, sin), 1)))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Its keys and values, [N, P, G, D] each."""
        keys, values = self.arena_L[index].transpose(2, 3).unbind(1)
        return keys, values


class Chain:
    """The kernels of one step, in order, on random weights. Every layer has its own."""

    def __init__(self, gpu: Gpu, spec: ModelSpec, *, context: int, rows: int = 1,
                 tuning: Tuning | None = None, attention_early: bool = True) -> None:
        """context: tokens of each row, the new one included."""
        self._layers, self._spec, self._early = parts(spec), spec, attention_early
        first = self._layers[0][0]
        self.linears = DecodeLinears(gpu, tuning)
        self._attend = DecodeAttention(gpu, max_rows=rows, max_kv_heads=first.num_kv_heads)
        self._cache = Cache.random(gpu, first, layers=len(self._layers), rows=rows, context=context)
        self._weights = {name: torch.empty(param.shape, dtype=torch.bfloat16, device=gpu.device)
                         .normal_(std=param.shape[-1] ** -0.5) if len(param.shape) > 1
                         else torch.ones(param.shape, dtype=torch.bfloat16, device=gpu.device)
                         for name, param in spec.params()}
        self._ids = torch.zeros(rows, dtype=torch.long, device=gpu.device)

    @property
    def read_bytes(self) -> int:
        """Weights (the embedding's rows left out) and keys and values, each once."""
        table = 0 if self._spec.tied_embeddings else self._weights["embed.weight"].nbytes
        lens, total = self._cache.rows.lens_S, sum(w.nbytes for w in self._weights.values()) - table
        for attention, _ in self._layers:
            seen = lens if attention.window_tokens is None else lens.clamp(max=attention.window_tokens)
            total += int(seen.sum()) * 2 * attention.kv_size * KV_BYTES
        return total

    def step(self) -> Tensor:
        """Logits [S, vocab_size]."""
        spec, cache, weights = self._spec, self._cache, self._weights
        heads = self._layers[0][0].num_heads
        plans = {window: self._attend.plan(cache.rows, *cache.layer(0), num_heads=heads, window=window)
                 for window in dict.fromkeys(a.window_tokens for a, _ in self._layers)}
        x = weights["embed.weight"][self._ids]
        for index, (attention, mlp) in enumerate(self._layers):
            attn, feed = f"layers.{index}.attn.", f"layers.{index}.mlp."
            qkv = self._linear(attn + "qkv", x, norm=attn + "norm.weight", eps=attention.norm_eps)
            mixed = self._attend(
                qkv, *cache.layer(index), plans[attention.window_tokens], scale=attention.scale,
                q_norm=weights.get(attn + "q_norm.weight"), k_norm=weights.get(attn + "k_norm.weight"),
                eps=attention.norm_eps, early=self._early)
            x = self._linear(attn + "out", mixed, residual=x)
            inner = self._linear(feed + "gate_up", x, norm=feed + "norm.weight", eps=mlp.norm_eps, gated=True)
            x = self._linear(feed + "down", inner, residual=x)
        head = "embed" if spec.tied_embeddings else "head"
        return self._linear(head, x, norm="final_norm.weight", eps=spec.norm_eps)

    def _linear(self, name: str, x: Tensor, *, norm: str | None = None, eps: float = 0.0, gated: bool = False,
                residual: Tensor | None = None) -> Tensor:
        return self.linears(Call(x_MK=x, weight=self._weights[name + ".weight"], eps=eps, gated=gated,
                                 norm_K=None if norm is None else self._weights[norm], residual_MN=residual,
                                 out_MN=residual, bias=self._weights.get(name + ".bias")))
