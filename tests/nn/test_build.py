"""Protects assembly: a spec and named weights give the model that the formulas say, or a named error."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.blocks.step import Block, GroupStep, Step
from ridgeline.nn.build import Model, build_model
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from tests.helpers import tiny_spec, tiny_weights, tokens_of
from tests.nn.dense_twin import twin_logits


def _one_prompt(model: Model, spec: ModelSpec, ids: list[int], dtype: torch.dtype = torch.float32,
                wanted: list[int] | None = None) -> Tensor:
    """Logits of a whole prompt, or of the tokens wanted, through an arena of its own, pages in order."""
    step = _whole(model, spec, ids, dtype, wanted)
    return model.logits(model.forward(step), 0)


def _whole(model: Model, spec: ModelSpec, ids: list[int], dtype: torch.dtype = torch.float32,
           wanted: list[int] | None = None) -> Step:
    """A prompt's step, in an arena that the model is bound to."""
    layout = plan_layout(spec.cache(dtype.itemsize), block_tokens=4)
    num_pages = len(ids)
    arena = torch.full((num_pages, layout.page_bytes), 255, dtype=torch.uint8)
    regions = {(r.layer, r.slot): arena[:, r.offset_bytes: r.offset_bytes + r.num_bytes]
               for group in layout.groups for r in group.regions}
    model.bind_cache(layout, lambda layer, slot: regions[(layer, slot)], dtype)
    positions, length = torch.arange(len(ids)), torch.tensor([len(ids)])
    table = torch.arange(num_pages, dtype=torch.int32)[None]
    return Step(ids_T=torch.tensor(ids), positions_T=positions, reach_T=length.expand(len(ids)),
                lengths_S=length, starts=length.numpy() * 0, counts=length.numpy(), num_decodes=0,
                wanted_W=None if wanted is None else torch.tensor(wanted),
                groups=tuple(GroupStep(table_SP=table, slots_T=positions) for _ in layout.groups))


@pytest.mark.parametrize("spec", [
    tiny_spec(), tiny_spec(tied=False, qk_norm=True, qkv_bias=True),
    tiny_spec(windows=(None, 6), num_layers=3), tiny_spec(num_heads=6, num_kv_heads=1, head_dim=4),
], ids=["tied", "untied", "windows", "one kv head"])
def test_equals_the_dense_twin(spec: ModelSpec) -> None:
    weights, ids = tiny_weights(spec), tokens_of(23).tolist()
    logits = _one_prompt(build_model(spec, weights, torch.float32), spec, ids)
    torch.testing.assert_close(logits.double(), twin_logits(spec, weights, ids), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("spec", [tiny_spec(), tiny_spec(windows=(None, 6), num_layers=3)],
                         ids=["plain", "windows"])
def test_only_the_tokens_that_are_wanted_go_to_the_end(spec: ModelSpec) -> None:
    """The last feed-forward sees no others, and what they are to become is the same."""
    model = build_model(spec, tiny_weights(spec), torch.float32)
    ids, wanted = tokens_of(23).tolist(), [4, 21, 22]
    whole = _one_prompt(model, spec, ids)
    last, seen = model._modules[-1], list[int]()
    model._modules[-1] = _Counted(last, seen)
    some = _one_prompt(model, spec, ids, wanted=wanted)
    torch.testing.assert_close(some, whole[wanted])
    assert seen == [3]


@pytest.mark.parametrize("spec, kinds", [
    (tiny_spec(num_layers=3), [5, 5, 0, 0, 0, 0]),
    (tiny_spec(windows=(None, 6), num_layers=3), [5, 5, 5, 0, 0, 0]),
], ids=["all alike", "two kinds of attention"])
def test_blocks_that_differ_run_once(spec: ModelSpec, kinds: list[int]) -> None:
    """What a library loads for a number of tokens is loaded by the first layer that has it."""
    model = build_model(spec, tiny_weights(spec), torch.float32)
    step, seen = _whole(model, spec, tokens_of(5).tolist()), [list[int]() for _ in model._modules]
    model._modules = [_Counted(one, here) for one, here in zip(model._modules, seen, strict=True)]
    model.run_each_kind(step)
    assert [sum(here) for here in seen] == kinds


class _Counted:
    """A block that notes how many tokens it is given."""

    def __init__(self, block: Block, seen: list[int]) -> None:
        self._block, self._seen, self.bind = block, seen, block.bind
        self.share_key, self.prepare = block.share_key, block.prepare

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        self._seen.append(len(x_TH))
        assert step.num_tokens == len(x_TH)
        return self._block(x_TH, step, shared)


def test_multiplier_and_divisor_of_the_ends() -> None:
    """Families scale embeddings and logits."""
    spec = replace(tiny_spec(), embed_multiplier=3.0, logits_divisor=4.0)
    weights, ids = tiny_weights(spec), tokens_of(9).tolist()
    logits = _one_prompt(build_model(spec, weights, torch.float32), spec, ids)
    torch.testing.assert_close(logits.double(), twin_logits(spec, weights, ids), atol=1e-4, rtol=1e-4)


def test_bfloat16_is_near() -> None:
    """Activations and cache in bfloat16: the same model within its rounding, logits float32."""
    spec = tiny_spec()
    weights, ids = tiny_weights(spec), tokens_of(23).tolist()
    logits = _one_prompt(build_model(spec, weights, torch.bfloat16), spec, ids, torch.bfloat16)
    exact = twin_logits(spec, weights, ids)
    assert logits.dtype == torch.float32
    assert float((logits.double() - exact).abs().mean() / exact.std()) < 0.03


def test_a_tied_head_may_have_its_own_copy() -> None:
    """A head in another format than the embedding is given by name."""
    spec = tiny_spec()
    weights, ids = tiny_weights(spec), tokens_of(9).tolist()
    plain = _one_prompt(build_model(spec, weights, torch.float32), spec, ids)
    weights["head.weight"] = weights["embed.weight"] * 2
    torch.testing.assert_close(_one_prompt(build_model(spec, weights, torch.float32), spec, ids), plain * 2)


def test_a_missing_weight_is_named() -> None:
    spec = tiny_spec(tied=False)
    for name in ("layers.1.mlp.down.weight", "embed.weight", "head.weight", "final_norm.weight"):
        weights = tiny_weights(spec)
        del weights[name]
        with pytest.raises(CheckpointError, match=name):
            build_model(spec, weights, torch.float32)
