"""Protects the account's FLOPs against what torch counts while the model built from the same spec runs."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.ledger.sums import Summer
from ridgeline.nn.build import build_model
from ridgeline.spec.cache import State, plan_layout
from ridgeline.spec.model import ModelSpec
from tests.helpers import tiny_spec, tiny_weights, tokens_of
from tests.ledger.shapes import uniform

LINEAR_OPS = ("qkv", "out", "gate_up", "down", "head")


def counted_flops(spec: ModelSpec, num_tokens: int) -> int:
    """Matrix products of one whole prompt whose last position is projected, attention's left out."""
    layout = plan_layout(spec.cache(4), block_tokens=16)
    arena = torch.zeros(8, layout.page_bytes, dtype=torch.uint8)
    regions = {(r.layer, r.slot): arena if group.kind is State else arena[:, r.offset_bytes:][:, :r.num_bytes]
               for group in layout.groups for r in group.regions}
    model = build_model(spec, tiny_weights(spec), torch.float32)
    model.bind_cache(layout, lambda layer, slot: regions[(layer, slot)], torch.float32)
    positions = torch.arange(num_tokens)
    groups = tuple(GroupStep(table_SP=torch.arange(1, 8, dtype=torch.int32)[None],
                             slots_T=group.tokens_per_page + positions) for group in layout.groups)
    step = Step(ids_T=torch.from_numpy(tokens_of(num_tokens).astype(np.int64)), positions_T=positions,
                reach_T=torch.full_like(positions, num_tokens), groups=groups, num_decodes=0,
                lengths_S=torch.tensor([num_tokens], dtype=torch.int32), starts=np.array([0]),
                counts=np.array([num_tokens]))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        model.logits(model.forward(step)[-1:], 0)
    counts = counter.get_flop_counts()["Global"]
    outside = ("bmm", "attention")
    return sum(flops for op, flops in counts.items() if not any(name in str(op) for name in outside))


@pytest.mark.parametrize("changes", [
    {}, {"num_kv_heads": 4, "qkv_bias": True}, {"qk_norm": True, "tied": False}])
@pytest.mark.parametrize("num_tokens", [1, 23])
def test_linear_flops_are_what_torch_counts(changes: dict[str, bool], num_tokens: int) -> None:
    spec = tiny_spec(**changes)
    acct = uniform(spec, "float32")
    lines = acct.at(Summer(acct.windows).sums([0], [num_tokens], 1))
    ours = sum(line.flops for line in lines if line.op in LINEAR_OPS)
    assert ours == counted_flops(spec, num_tokens)
