"""Protects the norm and every kind of rotary embedding, against transformers and against plain loops."""

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ridgeline.blocks.norm_rope.module import Rotation
from ridgeline.blocks.norm_rope.reference import attention_factor, frequencies, rms_norm, rotate
from ridgeline.blocks.norm_rope.spec import RopeSpec

HEAD_DIM, MAX_POSITION, ORIGINAL = 32, 256, 64
CPU = torch.device("cpu")
PAIRS = HEAD_DIM // 2
SHORT, LONG = tuple(1 + i / 10 for i in range(PAIRS)), tuple(1.5 + i / 3 for i in range(PAIRS))
KINDS = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": ORIGINAL},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "yarn mscale": {"factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.2, "beta_fast": 16.0, "beta_slow": 2.0,
                    "original_max_position_embeddings": ORIGINAL},
    "yarn not truncated": {"factor": 32.0, "truncate": False, "original_max_position_embeddings": ORIGINAL},
    "yarn given factor": {"factor": 4.0, "attention_factor": 0.8,
                          "original_max_position_embeddings": ORIGINAL},
    "longrope": {"factor": 4.0, "short_factor": list(SHORT), "long_factor": list(LONG),
                 "original_max_position_embeddings": ORIGINAL},
}


def _pair(name: str) -> tuple[RopeSpec, LlamaConfig]:
    """The same embedding as our spec and as a transformers config."""
    fields = KINDS[name]
    kind = name.split()[0]
    ours = {key.removesuffix("_embeddings"): tuple(value) if isinstance(value, list) else value
            for key, value in fields.items()}
    spec = RopeSpec(kind=kind, theta=10_000.0, rotary_dim=HEAD_DIM, max_position=MAX_POSITION, **ours)
    config = LlamaConfig(
        hidden_size=HEAD_DIM * 2, num_attention_heads=2, max_position_embeddings=MAX_POSITION,
        rope_parameters={"rope_type": kind, "rope_theta": 10_000.0, **fields})
    return spec, config


@pytest.mark.parametrize("length", [1, ORIGINAL, ORIGINAL + 1, MAX_POSITION, 2 * MAX_POSITION - 3])
@pytest.mark.parametrize("name", KINDS)
def test_equals_transformers(name: str, length: int) -> None:
    """Frequencies and the factor on cos and sin, at lengths on both sides of each border."""
    spec, config = _pair(name)
    theirs, factor = ROPE_INIT_FUNCTIONS[spec.kind](config, CPU, seq_len=length)
    torch.testing.assert_close(frequencies(spec, length), theirs, rtol=2e-6, atol=0)
    assert attention_factor(spec) == pytest.approx(factor)


@pytest.mark.parametrize("name", KINDS)
def test_tables_give_each_token_its_own_reach(name: str) -> None:
    """Tokens of sequences of different length share a step; each is rotated by its own sequence's rule."""
    spec, _ = _pair(name)
    positions, reach = torch.tensor([0, 5, 63, 64, 300]), torch.tensor([3, 300, 64, 65, 301])
    cos, sin = Rotation(spec, CPU).tables(positions, reach)
    for token, (position, length) in enumerate(zip(positions.tolist(), reach.tolist())):
        angle = position * frequencies(spec, length)
        factor = attention_factor(spec)
        torch.testing.assert_close(cos[token, :PAIRS], angle.cos() * factor, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(sin[token, PAIRS:], angle.sin() * factor, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rotary_dim", [HEAD_DIM, 12])
def test_rotate_turns_half_split_pairs(rotary_dim: int) -> None:
    """Pair (i, i + R/2) as a complex number; dimensions past the rotary width stay."""
    spec = RopeSpec(kind="default", theta=100.0, rotary_dim=rotary_dim, max_position=64)
    x = torch.randn(7, 5, HEAD_DIM + 8)[..., 4:-4]  # not contiguous
    cos, sin = Rotation(spec, CPU).tables(torch.arange(7), torch.arange(7) + 1)
    out, half = rotate(x, cos, sin), rotary_dim // 2
    for token in range(7):
        for i in range(half):
            turned = torch.complex(x[token, :, i], x[token, :, i + half])
            angle = torch.tensor(token * 100.0 ** (-2 * i / rotary_dim))
            turned = turned * torch.polar(torch.tensor(1.0), angle)
            torch.testing.assert_close(out[token, :, i], turned.real, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(out[token, :, i + half], turned.imag, atol=1e-5, rtol=1e-5)
    assert torch.equal(out[..., rotary_dim:], x[..., rotary_dim:])


def test_scores_depend_on_distance_only() -> None:
    """What rotary embedding is for; holds for every kind while the reach is one number."""
    for name in KINDS:
        spec, _ = _pair(name)
        rotation = Rotation(spec, CPU)
        q, k = torch.randn(1, 1, HEAD_DIM), torch.randn(1, 1, HEAD_DIM)

        def score(query: int, key: int, rotation: Rotation = rotation, q: torch.Tensor = q,
                  k: torch.Tensor = k) -> float:
            reach = torch.tensor([200])
            at = [rotate(x, *rotation.tables(torch.tensor([p]), reach)) for x, p in ((q, query), (k, key))]
            return float((at[0] * at[1]).sum())

        assert score(9, 2) == pytest.approx(score(107, 100), abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rms_norm(dtype: torch.dtype) -> None:
    """Accumulates in float32 whatever the dtype; an all-zero row stays zero."""
    x, weight = torch.randn(3, 37).to(dtype), torch.randn(37).to(dtype)
    x[1] = 0
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(rms_norm(x, weight, 1e-6).double(), exact, atol=tolerance, rtol=tolerance)


def test_equal_specs_are_equal_keys() -> None:
    """Layers share a step's angles by the spec's value."""
    spec, _ = _pair("longrope")
    assert hash(spec) == hash(replace(spec)) and spec != replace(spec, theta=1.0)
