"""Latent attention: absorbed and expanded are one function, over pages with garbage in them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.blocks.mla.reference import expanded, latent_attention
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.paged import Chunk, plan_attention
from ridgeline.blocks.step import GroupStep, Step
from ridgeline.models.families import model_spec
from ridgeline.models.shapes import SHAPES
from tests.helpers import tiny_rope

HEADS, NOPE, ROTARY, LATENT, VALUE, PAGE = 3, 5, 4, 11, 7, 4
SPEC = MlaSpec(hidden_size=16, num_heads=HEADS, q_rank=None, latent_dim=LATENT, nope_dim=NOPE,
               value_dim=VALUE, norm_eps=1e-6, latent_eps=1e-6, rope=tiny_rope(head_dim=ROTARY), scale=0.4)


def step_of(table_SP: Tensor, starts: list[int], counts: list[int], num_decodes: int) -> Step:
    positions = [p for s, c in zip(starts, counts, strict=True) for p in range(s, s + c)]
    rows = np.repeat(np.arange(len(starts)), counts)
    places = torch.tensor(positions)
    slots = table_SP[torch.from_numpy(rows), places // PAGE].long() * PAGE + places % PAGE
    return Step(ids_T=places, positions_T=places, reach_T=places + 1,
                lengths_S=torch.tensor(starts).int() + torch.tensor(counts), starts=np.array(starts),
                counts=np.array(counts), num_decodes=num_decodes,
                groups=(GroupStep(table_SP=table_SP, slots_T=slots),))


def naive(q_TMD: Tensor, kept_KE: Tensor, up_MUC: Tensor, start: int) -> Tensor:
    """One sequence, query by query and head by head, from the definition."""
    out = torch.empty(len(q_TMD), HEADS, VALUE)
    for t, q_MD in enumerate(q_TMD):
        for m in range(HEADS):
            seen = kept_KE[: start + t + 1]
            keys = torch.cat((seen[:, :LATENT] @ up_MUC[m, :NOPE].T, seen[:, LATENT:]), 1)
            weights = (keys @ q_MD[m] * SPEC.scale).softmax(0)
            out[t, m] = weights @ (seen[:, :LATENT] @ up_MUC[m, NOPE:].T)
    return out


@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
def test_absorbed_and_expanded_are_one_function(cache: torch.dtype) -> None:
    """Decode rows of very different length beside chunks, fresh and with a cached prefix; pages hold NaN
    where nobody wrote; what is attended to is what the cache holds."""
    random = torch.Generator().manual_seed(0)
    starts, counts, num_decodes = [0, 30, 6, 0, 9], [1, 1, 1, 6, 5], 3
    table_SP = (torch.randperm(5 * 8, generator=random) + 1).view(5, 8).int()
    entries = torch.full((41, PAGE, SPEC.entry_dim), torch.nan, dtype=cache)
    kept = [torch.randn(s + c, SPEC.entry_dim, generator=random).to(cache)
            for s, c in zip(starts, counts, strict=True)]
    for row, (start, one) in enumerate(zip(starts, kept, strict=True)):
        for position in range(start):
            entries[table_SP[row, position // PAGE], position % PAGE] = one[position]
    step = step_of(table_SP, starts, counts, num_decodes)
    up_MUC = torch.randn(HEADS, NOPE + VALUE, LATENT, generator=random)
    q_TMD = torch.randn(step.num_tokens, HEADS, NOPE + ROTARY, generator=random)
    new_TE = torch.cat([one[start:] for start, one in zip(starts, kept, strict=True)])
    plan = plan_attention(step, step.groups[0], entries, None)
    got = latent_attention(q_TMD, new_TE, entries, plan, up_MUC, scale=SPEC.scale)
    begin = 0
    for start, count, one in zip(starts, counts, kept, strict=True):
        want = naive(q_TMD[begin:begin + count], one.float(), up_MUC, start)
        assert torch.allclose(got[begin:begin + count], want, atol=1e-5), start
        begin += count
    alone = step_of(table_SP, starts, counts, 0)
    plan = plan_attention(alone, alone.groups[0], entries, None)
    other = latent_attention(q_TMD, new_TE, entries, plan, up_MUC, scale=SPEC.scale)
    assert torch.allclose(got, other, atol=1e-5)


def test_decodes_alone_are_decodes_in_company() -> None:
    """To the bit, whatever the others are and how many, where the plan sets rows apart."""
    random = torch.Generator().manual_seed(1)
    lengths, num_rows = torch.randint(1, 60, (33,), generator=random).tolist(), 33
    table_SP = (torch.randperm(num_rows * 16, generator=random) + 1).view(num_rows, 16).int()
    entries = torch.randn(num_rows * 16 + 1, PAGE, SPEC.entry_dim, generator=random)
    up_MUC = torch.randn(HEADS, NOPE + VALUE, LATENT, generator=random)
    q_TMD = torch.randn(num_rows, HEADS, NOPE + ROTARY, generator=random)
    new_TE = torch.randn(num_rows, SPEC.entry_dim, generator=random)

    def attend(rows: list[int]) -> Tensor:
        step = step_of(table_SP[rows], [lengths[row] for row in rows], [1] * len(rows), len(rows))
        plan = plan_attention(step, step.groups[0], entries, None, apart=True)
        return latent_attention(q_TMD[rows], new_TE[rows], entries, plan, up_MUC, scale=SPEC.scale)

    together = attend(list(range(num_rows)))
    for row in (0, 7, 32):
        assert torch.equal(attend([row])[0], together[row])
    assert torch.equal(attend([4, 7]), together[[4, 7]])


def test_heads_may_be_expanded_one_by_one() -> None:
    """Long prefixes are expanded a few heads at a time: the same numbers."""
    random = torch.Generator().manual_seed(2)
    q_TMD = torch.randn(6, HEADS, NOPE + ROTARY, generator=random)
    seen_KE = torch.randn(20, SPEC.entry_dim, generator=random)
    up_MUC = torch.randn(HEADS, NOPE + VALUE, LATENT, generator=random)
    chunk = Chunk(tokens=slice(0, 6), start=14, first_key=0, pages=torch.empty(0), skip=0)
    want = naive(q_TMD, seen_KE, up_MUC, 14)
    for held in (1, 2 * 20 * (NOPE + VALUE), 1 << 20):
        got = expanded(q_TMD, seen_KE, chunk, up_MUC, NOPE, SPEC.scale, held=held)
        assert torch.allclose(got, want, atol=1e-5), held


def test_an_entry_is_the_latent_and_one_rotary_key() -> None:
    """Protects the published size of the cache, whatever the number of heads."""
    for name in ("deepseek-v2-lite", "deepseek-v3"):
        spec = model_spec(SHAPES[name])
        assert {kept.bytes_per_entry for layer in spec.cache(2) for kept in layer} == {576 * 2}
    assert replace(SPEC, num_heads=64).cache(1) == SPEC.cache(1)
