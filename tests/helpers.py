"""Tiny random models, shared by the tests of several rooms. Needs no checkpoint and no network."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import torch
from torch import Tensor

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.gated_delta.spec import GatedDeltaSpec
from ridgeline.blocks.mamba2.spec import Mamba2Spec
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.mlp.spec import MlpSpec
from ridgeline.blocks.moe.spec import MoeSpec, RouterSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.spec.model import LayerSpec, ModelSpec


def tiny_rope(*, head_dim: int = 8, max_position: int = 256, kind: str = "default") -> RopeSpec:
    return RopeSpec(kind=kind, theta=10_000.0, rotary_dim=head_dim, max_position=max_position)


def tiny_spec(*, num_layers: int = 2, hidden_size: int = 32, num_heads: int = 4, num_kv_heads: int = 2,
              head_dim: int = 8, intermediate_size: int = 48, vocab_size: int = 97, max_position: int = 256,
              windows: Sequence[int | None] = (None,), tied: bool = True, qkv_bias: bool = False,
              qk_norm: bool = False, rope: RopeSpec | None = None) -> ModelSpec:
    """A Llama-like decoder of a few thousand parameters. windows repeats over the layers."""
    attention = AttentionSpec(
        hidden_size=hidden_size, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim,
        norm_eps=1e-5, rope=rope or tiny_rope(head_dim=head_dim, max_position=max_position),
        scale=head_dim**-0.5, qkv_bias=qkv_bias, qk_norm=qk_norm)
    mlp = MlpSpec(hidden_size=hidden_size, intermediate_size=intermediate_size, norm_eps=1e-5)
    layers = tuple(
        LayerSpec(blocks=(("attn", replace(attention, window_tokens=window)), ("mlp", mlp)))
        for window in islice(cycle(windows), num_layers))
    return ModelSpec(family="llama", hidden_size=hidden_size, vocab_size=vocab_size,
                     max_position=max_position, norm_eps=1e-5, tied_embeddings=tied, layers=layers,
                     dtype="float32", eos_token_ids=(2,))


def tiny_mixture(head_dim: int = 8) -> ModelSpec:
    """The tiny decoder with windows between full layers, sinks, and experts in groups beside a shared one."""
    spec, router = tiny_spec(windows=(9, None), head_dim=head_dim), RouterSpec(
        num_experts=8, top_k=3, num_groups=4, top_groups=2, score="sigmoid", choice_bias=True, group_best=2)
    moe = MoeSpec(hidden_size=32, intermediate_size=24, norm_eps=1e-5, router=router, shared_size=16,
                  shared_gate=True)
    return _rebuilt(spec, moe, sinks=True)


def tiny_capped() -> ModelSpec:
    """The tiny decoder with Gemma's windows, capped scores and norms on both sides of each block."""
    spec = tiny_spec(num_layers=3, windows=(9, 9, None), qk_norm=True)
    mlp = MlpSpec(hidden_size=32, intermediate_size=48, norm_eps=1e-5, activation="gelu_tanh", post_norm=True)
    spec = _rebuilt(spec, mlp, softcap=2.0, post_norm=True)
    return replace(spec, embed_multiplier=2.0, logits_softcap=20.0)


def _rebuilt(spec: ModelSpec, feed: MlpSpec | MoeSpec, *, sinks: bool = False, post_norm: bool = False,
             softcap: float | None = None) -> ModelSpec:
    layers = []
    for layer in spec.layers:
        (_, attention), _ = layer.blocks
        assert isinstance(attention, AttentionSpec)
        mine = replace(attention, sinks=sinks, post_norm=post_norm, softcap=softcap)
        layers.append(LayerSpec(blocks=(("attn", mine), ("feed", feed))))
    return replace(spec, layers=tuple(layers))


def tiny_latent() -> ModelSpec:
    """The tiny decoder with latent attention, its queries through a latent too."""
    spec = tiny_spec()
    attention = MlaSpec(hidden_size=32, num_heads=4, q_rank=24, latent_dim=16, nope_dim=8, value_dim=8,
                        norm_eps=1e-5, latent_eps=1e-6, rope=tiny_rope(head_dim=4), scale=12**-0.5)
    return replace(spec, layers=tuple(LayerSpec(blocks=(("attn", attention), layer.blocks[1]))
                                      for layer in spec.layers))


def tiny_shared_latent() -> ModelSpec:
    """Two layers with latents, one of them without positions, and two that read those; queries are scaled by
    their position, frequencies are learnt."""
    spec, layers = tiny_latent(), []
    (_, latent), mlp = spec.layers[0].blocks
    assert isinstance(latent, MlaSpec)
    for i in range(4):
        rope = replace(latent.rope, rotary_dim=0) if i % 2 else latent.rope
        mine = replace(latent, rope=rope, nope_dim=12 - rope.rotary_dim, learnt_turns=not i % 2,
                       scaled_queries=True, reads_layer=None if i < 2 else i - 2)
        layers.append(LayerSpec(blocks=(("attn", mine), mlp)))
    return replace(spec, layers=tuple(layers))


def tiny_shared() -> ModelSpec:
    """Two layers, one with a window, and two that read what those keep."""
    spec = tiny_spec(num_layers=4, windows=(None, 9), qk_norm=True)
    layers = []
    for i, layer in enumerate(spec.layers):
        (name, attention), mlp = layer.blocks
        assert isinstance(attention, AttentionSpec)
        mine = replace(attention, reads_layer=None if i < 2 else i - 2, lends=i < 2)
        layers.append(LayerSpec(blocks=((name, mine), mlp)))
    return replace(spec, layers=tuple(layers))


def tiny_states(kind: str) -> ModelSpec:
    """A decoder of recurrent blocks: "state" of Mamba-2 alone, "hybrid" with attention in every third layer,
    "delta" of gated delta and attention in turns."""
    whole = tiny_spec(num_layers=3)
    eps, hidden = whole.norm_eps, whole.hidden_size
    mamba = Mamba2Spec(hidden_size=hidden, num_heads=4, head_dim=8, state_size=8, num_groups=2, conv_width=4,
                       norm_eps=eps)
    delta = GatedDeltaSpec(hidden_size=hidden, num_key_heads=2, num_value_heads=4, key_dim=8, value_dim=8,
                           conv_width=4, norm_eps=eps)
    attention, mlp = whole.layers[0].blocks
    blocks = {"state": [(("mix", mamba),)] * 3,
              "hybrid": [(("mix", mamba), mlp), (("mix", mamba), mlp), (attention, mlp)],
              "delta": [(("mix", delta), mlp), (attention, mlp), (("mix", delta), mlp)]}[kind]
    return replace(whole, layers=tuple(LayerSpec(blocks=layer) for layer in blocks))


def tiny_weights(spec: ModelSpec, seed: int = 0) -> dict[str, Tensor]:
    """Random float32 weights by full name, large enough that greedy text is not one token repeated."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, param in spec.params():
        values = torch.randn(param.shape, generator=generator)
        if param.role == "norm":
            weights[name] = 1 + 0.1 * values
        elif param.role == "embed":
            weights[name] = values
        else:
            weights[name] = values * 2 * param.shape[-1] ** -0.5
    return weights


def tokens_of(length: int, *, seed: int = 0, vocab_size: int = 97) -> np.ndarray:
    """Random token ids [length], int32, none of them the end id."""
    return np.random.default_rng(seed).integers(3, vocab_size, length).astype(np.int32)
