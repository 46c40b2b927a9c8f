"""Protects the numbers of the fast path: over a text that no model wrote, packed weights, integer products
and a bfloat16 cache must say what exact float32 says."""


import pytest
import torch
from torch import Tensor

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.frontend.files import load_text
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.models.resolve import open_model
from ridgeline.nn.load import Policy, dense
from tests.quality.scored import TEXT, Divergence, Scored, pieces
from tests.quant.blocks import kernels

MOST_KL_NAT, LEAST_AGREEMENT = 2e-3, 0.975
FEW_TOKENS, NUM_TOKENS = 512, 2048
ROWS = 64  # of a decode step


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return open_model(None)


@pytest.fixture(scope="module")
def ids(checkpoint: Checkpoint) -> Tensor:
    tokenizer = load_text(checkpoint.path).tokenizer
    assert tokenizer is not None
    return torch.tensor(tokenizer.encode(TEXT.read_text(encoding="utf-8")))[:NUM_TOKENS]


def packed_policy(checkpoint: Checkpoint) -> Policy:
    """What the engine chooses for this checkpoint on this machine."""
    kernels()
    numerics = choose_numerics(EngineConfig(), checkpoint, Startup(WallClock()))
    assert (numerics.name, numerics.cache) == ("packed", torch.bfloat16)
    return numerics.policy


def check(what: str, found: Divergence) -> None:
    print(f"{what}: {found.num_tokens} tokens, mean KL {found.mean_kl_nat:.1e}, top-1 {found.agreement:.2%}")
    assert found.mean_kl_nat <= MOST_KL_NAT and found.agreement >= LEAST_AGREEMENT


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_tokens", [FEW_TOKENS, pytest.param(NUM_TOKENS, marks=pytest.mark.soak)])
def test_decode(checkpoint: Checkpoint, ids: Tensor, num_tokens: int) -> None:
    """Every token goes through the packed products and the fused attention as a decode row, 64 a step."""
    ids = ids[:num_tokens]
    exact = Scored(checkpoint, dense(torch.float32), torch.float32, len(ids))
    fast, found = Scored(checkpoint, packed_policy(checkpoint), torch.bfloat16, len(ids)), Divergence()
    for part in pieces(len(ids), 8 * ROWS):
        expected = exact.logits(ids[part], part.start, decode=False)
        for rows in pieces(len(expected), ROWS):
            found.add(expected[rows], fast.logits(ids[part][rows], part.start + rows.start, decode=True))
    assert found.num_tokens == num_tokens
    check("decode", found)
    assert found.kl_nat > 1e-3, "the same numbers twice would prove nothing"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_prompt(checkpoint: Checkpoint, ids: Tensor) -> None:
    """Chunks of a prompt."""
    exact = Scored(checkpoint, dense(torch.float32), torch.float32, len(ids))
    fast, found = Scored(checkpoint, packed_policy(checkpoint), torch.bfloat16, len(ids)), Divergence()
    for part in pieces(len(ids), 8 * ROWS):
        expected, logits = (scored.logits(ids[part], part.start, decode=False) for scored in (exact, fast))
        for rows in pieces(len(expected), ROWS):
            found.add(expected[rows], logits[rows])
    check("prompt", found)
