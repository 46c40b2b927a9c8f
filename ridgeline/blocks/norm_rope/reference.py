"""RMS norm and rotary embedding in plain torch. Owns the mathematics; knows no step and no cache.

Legend: T tokens, N heads, D head width, R rotary width.
"""

import math

import torch
from torch import Tensor

from ridgeline.blocks.norm_rope.spec import RopeSpec, yarn_mscale


def rms_norm(x_TD: Tensor, weight_D: Tensor | None, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32 inside (Zhang & Sennrich 2019)."""
    return torch.nn.functional.rms_norm(x_TD, x_TD.shape[-1:], weight_D, eps)


def rotate(x_TND: Tensor, cos_TR: Tensor, sin_TR: Tensor) -> Tensor:
    """Rotate the first R of D: pair (i, i + R/2) by its angle (Su et al. 2021). New memory, x's dtype.

    cos_TR: the pairs' cosines twice over; sin_TR: the sines, negated in the first half (see Rotation.tables).
    """
    width = cos_TR.shape[-1]
    part = x_TND[..., :width]
    turned = torch.addcmul(part * cos_TR[:, None], part.roll(width // 2, -1), sin_TR[:, None]).to(x_TND.dtype)
    return turned if width == x_TND.shape[-1] else torch.cat((turned, x_TND[..., width:]), -1)


def frequencies(spec: RopeSpec, reach: float | None = None) -> Tensor:
    """Radians a position of each pair, float32 [R / 2].

    reach: the sequence length that "dynamic" and "longrope" scale by; None means within the original context.
    """
    pairs = pair_exponents(spec)
    if spec.kind == "dynamic":
        return 1.0 / dynamic_theta(spec, torch.tensor(reach or 0.0, dtype=torch.float64)).float() ** pairs
    plain = 1.0 / spec.theta**pairs
    if spec.kind == "default":
        return plain
    if spec.kind == "proportional":
        turning = torch.arange(len(plain)) < spec.turning_pairs
        return plain.where(turning, 0.0) / spec.factor
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "longrope":
        original = spec.original_max_position or spec.max_position
        long = reach is not None and reach > original
        return plain / torch.tensor(spec.long_factor if long else spec.short_factor)
    return {"llama3": _llama3, "yarn": _yarn}[spec.kind](spec, plain)


def pair_exponents(spec: RopeSpec) -> Tensor:
    """2 i / R of each pair i, float32 [R / 2]."""
    return torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim


def dynamic_theta(spec: RopeSpec, reach: Tensor) -> Tensor:
    """NTK-aware base for each length: theta * (f L / Lmax - (f - 1))^(R / (R - 2)), plain up to Lmax."""
    most, r = spec.max_position, spec.rotary_dim
    grown = spec.factor * reach.clamp(min=most) / most - (spec.factor - 1)
    return spec.theta * grown ** (r / (r - 2))


def attention_factor(spec: RopeSpec) -> float:
    """What cos and sin are multiplied by: the config's own number, else the kind's default."""
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.kind == "longrope" and spec.factor > 1:
        original = spec.original_max_position or spec.max_position
        return math.sqrt(1 + math.log(spec.factor) / math.log(original))
    if spec.kind == "yarn":
        if spec.mscale and spec.mscale_all_dim:
            return yarn_mscale(spec.factor, spec.mscale) / yarn_mscale(spec.factor, spec.mscale_all_dim)
        return yarn_mscale(spec.factor, 1.0)
    return 1.0


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are slowed by the factor, short ones kept, those between blended (Llama 3.1)."""
    original = spec.original_max_position or spec.max_position
    waves = original * plain / (2 * math.pi)
    kept = ((waves - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0, 1)
    return (1 - kept) * plain / spec.factor + kept * plain


def _yarn(spec: RopeSpec, plain: Tensor) -> Tensor:
    """NTK by parts (Peng et al. 2023, section 3.2)."""
    r, original = spec.rotary_dim, spec.original_max_position or spec.max_position

    def pair_of(rotations: float) -> float:
        return r * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = pair_of(spec.beta_fast), pair_of(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, r - 1)
    width = high - low if high != low else 0.001
    slowed = ((torch.arange(r // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / spec.factor * slowed + plain * (1 - slowed)
