"""Protects shares of a model on several devices: what they hold, compute and send adds up to the whole."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.ledger.account import account
from ridgeline.ledger.comm import collectives, ring_share
from ridgeline.ledger.deployment import Deployment, Rates
from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.layout import Layout, Stage, cut, share_of_block, stages, total_weights
from ridgeline.ledger.memory import needed_cache_bytes, weights_bytes
from ridgeline.ledger.price import Price
from ridgeline.ledger.sums import Rows, Summer
from ridgeline.ledger.work import lines_of
from ridgeline.spec.cost import expected_distinct
from ridgeline.spec.hardware import hardware
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import WeightPlan
from tests.ledger.shapes import decodes, shape, uniform

H100 = hardware("h100")
PLAN = WeightPlan.uniform("bfloat16")
MODELS = ("llama-3-8b", "mistral-7b-v0.1", "gemma-3-12b", "deepseek-v2-lite", "qwen3-30b-a3b", "gpt-oss-20b")
ALL = Rates(packed=989e12, plain=989e12)


def staged(spec: ModelSpec, skew: float = 0.0, **degrees: int) -> tuple[Stage, ...]:
    return stages(cut(spec, Layout(**degrees)), weight_bytes=PLAN.num_bytes, cache_element_bytes=2, skew=skew)


def deployed(spec: ModelSpec, skew: float = 0.0, **degrees: int) -> Deployment:
    of_stages = lines_of(staged(spec, skew, **degrees), Layout(**degrees))
    return Deployment(of_stages=of_stages, device=H100, rates=ALL, efficiency=Efficiency())


@pytest.mark.parametrize("name", MODELS)
def test_one_device_is_the_whole_model(name: str) -> None:
    """Floor, bytes and FLOPs of a layout of one are those of the single device's price; nothing is sent."""
    spec = shape(name)
    deployment, price = deployed(spec), Price(uniform(spec), H100, flops_per_s=989e12)
    timing = deployment.decode([Rows(rows=5, start=3000, count=1)])
    read, written, flops = price.moved(decodes(5, 3001))
    assert timing.floor_s == pytest.approx(price(decodes(5, 3001)), rel=1e-12)
    assert timing.total("flops") == pytest.approx(flops, rel=1e-12)
    assert timing.total("moved_bytes") == pytest.approx(read + written, rel=1e-12)
    assert timing.total("sent_bytes") == 0 and timing.total("collectives_s") == 0
    assert total_weights(deployment.stages, Layout()) == weights_bytes(spec, PLAN)


@pytest.mark.parametrize("name", MODELS)
def test_a_share_has_the_shapes_that_its_parameters_name(name: str) -> None:
    """ParamSpec.shard says which axis is cut: the share's own parameters agree, axis by axis. A "down" that
    holds queries beside the latents is cut in part, which an axis cannot say."""
    for layer in shape(name).layers[:2]:
        for _, block in layer.blocks:
            share = {p.name: p for p in share_of_block(block, Layout(tp=2)).params()}
            for param in block.params():
                cut = list(param.shape)
                if param.name == "down.weight" and getattr(block, "q_rank", 0) is None:
                    continue
                if param.shard is not None:
                    cut[param.shard] //= 2
                assert list(share[param.name].shape) == cut, (block.kind, param.name)


@pytest.mark.parametrize(("name", "degrees"), [
    ("llama-3-8b", {"tp": 8}), ("llama-3-8b", {"pp": 4}), ("qwen3-30b-a3b", {"tp": 2, "ep": 2}),
    ("qwen3-30b-a3b", {"tp": 4}), ("qwen3-30b-a3b", {"ep": 4, "pp": 2}), ("gpt-oss-20b", {"tp": 4, "ep": 2})])
def test_shares_add_up_to_the_work_of_the_model(name: str, degrees: dict[str, int]) -> None:
    """FLOPs of all devices are the model's, but for routers, which every device computes."""
    spec, layout = shape(name), Layout(**degrees)
    step = [Rows(rows=16, start=999, count=1)]
    parts = deployed(spec, **degrees).decode(step)
    whole = deployed(spec).decode(step)
    turns = min(layout.pp, 16)
    assert parts.total("flops") * layout.tp * turns == pytest.approx(whole.total("flops"), rel=0.02)


def test_the_cache_is_cut_by_its_heads_and_no_further() -> None:
    spec = shape("llama-3-8b")
    held = [needed_cache_bytes(staged(spec, tp=tp)[0].spec, 1000, 2) for tp in (1, 2, 8, 16)]
    assert held == [131072 * 1000, 131072 * 500, 131072 * 125, 131072 * 125]
    latent = shape("deepseek-v2-lite")
    assert needed_cache_bytes(staged(latent, tp=8)[0].spec, 1000, 2) == needed_cache_bytes(latent, 1000, 2)


def test_stages_hold_each_layer_once() -> None:
    spec = shape("llama-3-8b")
    found = staged(spec, pp=3)
    assert [len(stage.spec.layers) for stage in found] == [11, 11, 10]
    assert sum(stage.weights_bytes for stage in found) == weights_bytes(spec, PLAN)
    assert [(s.first, s.last) for s in found] == [(True, False), (False, False), (False, True)]
    tied = shape("llama-3.2-1b")
    assert sum(s.weights_bytes for s in staged(tied, pp=2)) == (
        weights_bytes(tied, PLAN) + 2 * tied.vocab_size * tied.hidden_size)


def test_what_is_sent() -> None:
    """Two all-reduces a layer and one of the embedding, of B d s bytes each; an exchange there and back for
    experts that serve several groups; a hand-over between stages."""
    spec = shape("llama-3-8b")
    assert collectives(staged(spec)[0], Layout()) == ()
    reduce, logits = collectives(staged(spec, tp=4)[0], Layout(tp=4))
    assert (reduce.line.count, logits.line.count) == (65, 1)
    assert dict(reduce.line.sent)["tokens", None] == ring_share(4) * 4096 * 2 == 1.5 * 8192
    moe = shape("qwen3-30b-a3b")
    (exchange,) = collectives(staged(moe, ep=8)[0], Layout(ep=8))
    assert (exchange.line.op, exchange.line.count, exchange.ways) == ("all-to-all", 96, 8)
    assert dict(exchange.line.sent)["tokens", None] == 8 * 2048 * 2 * 7 / 8
    first, last = (collectives(stage, Layout(pp=2)) for stage in staged(spec, pp=2))
    assert dict(first[0].line.sent) == {("tokens", None): 8192.0} and last[0].line.op == "hand-over"


def test_a_lone_sequence_leaves_stages_empty_and_many_fill_them() -> None:
    deployment = deployed(shape("llama-3-8b"), pp=4)
    lone, many = (deployment.decode([Rows(rows=n, start=999, count=1)]) for n in (1, 64))
    assert lone.bubble == 0.75 and many.bubble == 0
    single = deployed(shape("llama-3-8b")).decode([Rows(rows=1, start=999, count=1)])
    assert lone.floor_s >= single.floor_s  # stages do not make one token faster
    prefill = deployment.prefill(Rows(rows=1, start=0, count=4096), chunks=4)
    assert 0 < prefill.bubble < 0.75 and prefill.floor_s < prefill.estimate_s


@pytest.mark.parametrize(("name", "degrees", "says"), [
    ("llama-3-8b", {"tp": 3}, "sizes that work are 1, 2, 4, 8, 16, 32"),
    ("qwen2.5-7b", {"tp": 8}, "heads 28 of attention: sizes that work are 1, 2, 4"),
    ("llama-3-8b", {"pp": 33}, "32 layers"), ("llama-3-8b", {"ep": 2}, "mixture of experts"),
    ("mixtral-8x7b", {"ep": 3}, "sizes that work are 1, 2, 4, 8")])
def test_a_layout_that_does_not_divide_is_refused(name: str, degrees: dict[str, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        staged(shape(name), **degrees)


def test_sums_of_equal_rows_are_those_of_the_rows() -> None:
    for name in ("mistral-7b-v0.1", "deepseek-v3", "gpt-oss-20b"):
        acct = account(shape(name), weight_bytes=PLAN.num_bytes, cache_element_bytes=2)
        summer = Summer(acct.windows, acct.layers_by_router(), few=acct.few)
        start, count = [5000] * 3 + [0] * 2, [4] * 3 + [700] * 2
        mine = summer.of([Rows(rows=3, start=5000, count=4, projected=4), Rows(rows=2, start=0, count=700)])
        assert mine == pytest.approx(summer.vector(start, count, 14), rel=1e-12), name
        for part in (Rows(rows=1, start=900, count=5, projected=5, shared=300),
                     Rows(rows=1, start=0, count=99)):
            several = summer.multiples(part, np.array([0.5, 1.0, 7.0]))
            for rows, sums in zip((0.5, 1.0, 7.0), several.T, strict=True):
                assert sums == pytest.approx(summer.of([replace(part, rows=rows)]), rel=1e-12), (name, rows)


def test_a_shared_prefix_is_read_once_where_the_kernel_can() -> None:
    deployment = deployed(shape("llama-3-8b"))
    each, once = (deployment.decode([Rows(rows=8, start=2999, count=1, shared=n)]) for n in (0, 2000))
    assert each.total("cache_bytes") - once.total("cache_bytes") == pytest.approx(7 * 2000 * 131072)


def test_skewed_routing_reads_fewer_experts() -> None:
    """Zipf-like favourites are hit again; a token takes k experts at every skew, and none is the closed
    form."""
    even = expected_distinct((128, 8), 32)
    some, more = (expected_distinct((128, 8, skew, 1), 32) for skew in (0.5, 1.5))
    assert even > some > more >= 8
    assert expected_distinct((128, 8, 0.0, 1), 32) == even
    for skew in (0.3, 1.0, 4.0):
        assert expected_distinct((128, 8, skew, 1), 1) == pytest.approx(8)
    assert expected_distinct((128, 8, 0.0, 4), 8) == even
