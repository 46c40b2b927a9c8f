"""The price of latent attention: what decodes read and multiply, and what prompts do, counted by hand."""

import numpy as np
import pytest

from ridgeline.ledger.price import Price
from ridgeline.ledger.sums import Summer
from ridgeline.spec.hardware import hardware
from tests.ledger.shapes import Step, decodes, shape, uniform

HEADS, LATENT, ROTARY, NOPE, VALUE, LAYERS = 128, 512, 64, 128, 128, 61
UP_BYTES = HEADS * (NOPE + VALUE) * LATENT * 2


def attention(step: Step) -> tuple[float, float]:
    """(FLOPs, bytes read) of one layer of DeepSeek-V3."""
    acct = uniform(shape("deepseek-v3"))
    sums = Summer(acct.windows, acct.layers_by_router(), few=acct.few).sums(
        step.start, step.count, step.num_sampled)
    (line,) = (x for x in acct.at(sums) if x.op == "attention")
    return line.flops / LAYERS, line.read_bytes / LAYERS


@pytest.mark.parametrize(("batch", "context"), [(1, 1), (7, 5000)])
def test_decodes_are_absorbed(batch: int, context: int) -> None:
    """Each head multiplies its query into the latents' space and the mean latent out of it, and a key costs
    2 (512 + 64) + 2 * 512 FLOP a head; every key is 576 elements, read once for all heads."""
    flops, read = attention(decodes(batch, context))
    absorbed = 2 * HEADS * LATENT * (NOPE + VALUE) + context * HEADS * 2 * (LATENT + ROTARY + LATENT)
    assert flops == batch * absorbed
    assert read == UP_BYTES + batch * context * (LATENT + ROTARY) * 2


def test_prompts_are_expanded() -> None:
    """All keys that a chunk sees are made again, the cached ones too; a pair then costs 192 + 128
    products."""
    flops, read = attention(Step([(0, 100), (50, 20)]))
    pairs = 100 * 101 // 2 + sum(range(51, 71))
    expanded = (100 + 70) * 2 * HEADS * LATENT * (NOPE + VALUE)
    assert flops == expanded + pairs * HEADS * 2 * (NOPE + ROTARY + VALUE)
    assert read == UP_BYTES + 170 * (LATENT + ROTARY) * 2


def test_a_step_of_both_is_their_sum() -> None:
    """Rows of few tokens are told from chunks, by the fast price and by its slow twin."""
    mixed = Step([(499, 1), (50, 20), (7, 1), *[(3, 12)] * 9, (100, 3)])
    parts = [Step([(499, 1), (7, 1), *[(100 + i, 1) for i in range(3)]]), Step([(50, 20), *[(3, 12)] * 9])]
    assert attention(mixed)[0] == sum(attention(part)[0] for part in parts)
    acct = uniform(shape("deepseek-v3"))
    device = hardware("h100")
    price = Price(acct, device, flops_per_s=device.rate("bfloat16"))
    alone = [price(decodes(1, context)) for context in range(100, 110)]
    assert price.request(99, 0, 11) == pytest.approx(price(Step([(0, 99)])) + np.sum(alone))
