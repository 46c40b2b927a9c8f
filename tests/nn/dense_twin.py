"""The slow twin of a whole model: no cache, no batch, no fused part, float64. Written from the formulas."""

import math

import torch
from torch import Tensor

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.norm_rope.reference import attention_factor, frequencies
from ridgeline.spec.model import ModelSpec


def twin_logits(spec: ModelSpec, weights: dict[str, Tensor], ids: list[int],
                num_prompt: int | None = None) -> Tensor:
    """Logits [tokens, vocabulary] in float64. num_prompt: the prompt's part of ids (all of them by
    default)."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    x = w["embed.weight"][torch.tensor(ids)] * spec.embed_multiplier
    for index, layer in enumerate(spec.layers):
        for name, block in layer.blocks:
            prefix = f"layers.{index}.{name}."
            own = {key.removeprefix(prefix): value for key, value in w.items() if key.startswith(prefix)}
            if isinstance(block, AttentionSpec):
                x = x + _attention(block, own, x, len(ids) if num_prompt is None else num_prompt)
            else:
                assert isinstance(block, MlpSpec)
                x = x + _mlp(block, own, x)
    x = _norm(x, w["final_norm.weight"], spec.norm_eps)
    head = w["embed.weight"] if spec.tied_embeddings else w["head.weight"]
    return x @ head.T / spec.logits_divisor


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _mlp(spec: MlpSpec, w: dict[str, Tensor], x: Tensor) -> Tensor:
    both = _norm(x, w["norm.weight"], spec.norm_eps) @ w["gate_up.weight"].T + w.get("gate_up.bias", 0)
    gate, up = both.split(spec.intermediate_size, -1)
    return (gate * gate.sigmoid() * up) @ w["down.weight"].T + w.get("down.bias", 0)


def _attention(spec: AttentionSpec, w: dict[str, Tensor], x: Tensor, num_prompt: int) -> Tensor:
    mixed = _norm(x, w["norm.weight"], spec.norm_eps) @ w["qkv.weight"].T + w.get("qkv.bias", 0)
    heads = mixed.unflatten(-1, (-1, spec.head_dim))
    q, k, v = heads.split((spec.num_heads, spec.num_kv_heads, spec.num_kv_heads), 1)
    if spec.qk_norm:
        q, k = _norm(q, w["q_norm.weight"], spec.norm_eps), _norm(k, w["k_norm.weight"], spec.norm_eps)
    q, k = _rope(spec, q, num_prompt), _rope(spec, k, num_prompt)
    out = torch.zeros_like(q)
    for head in range(spec.num_heads):
        source = head * spec.num_kv_heads // spec.num_heads
        for t in range(len(x)):
            low = 0 if spec.window_tokens is None else max(0, t - spec.window_tokens + 1)
            share = (k[low: t + 1, source] @ q[t, head] * spec.scale).softmax(0)
            out[t, head] = share @ v[low: t + 1, source]
    return out.flatten(1) @ w["out.weight"].T + w.get("out.bias", 0)


def _rope(spec: AttentionSpec, x: Tensor, num_prompt: int) -> Tensor:
    half, factor, out = spec.rope.rotary_dim // 2, attention_factor(spec.rope), x.clone()
    for t in range(len(x)):
        angles = t * frequencies(spec.rope, max(num_prompt, t + 1)).double()
        for i in range(half):
            c, s = factor * math.cos(angles[i]), factor * math.sin(angles[i])
            out[t, :, i] = x[t, :, i] * c - x[t, :, i + half] * s
            out[t, :, i + half] = x[t, :, i + half] * c + x[t, :, i] * s
    return out
