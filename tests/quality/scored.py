"""The default model's logits over a text that no model wrote, by any numerics and road of the engine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.blocks.step import GroupStep, Step
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.nn.build import Model, build_model
from ridgeline.nn.load import Policy, load_weights
from ridgeline.runner.cache import PageCache
from ridgeline.spec.cache import plan_layout

TEXT = Path(__file__).resolve().parents[2] / "LICENSE"  # Apache-2.0: fixed words, written by people
BLOCK_TOKENS = 16


class Scored:
    """A model of some numerics with one sequence in its cache."""

    def __init__(self, checkpoint: Checkpoint, policy: Policy, cache: torch.dtype, num_tokens: int) -> None:
        weights = load_weights(checkpoint, policy, progress=False)
        self.model: Model = build_model(checkpoint.spec, weights, torch.float32)  # type: ignore[arg-type]
        layout = plan_layout(checkpoint.spec.cache(cache.itemsize), block_tokens=BLOCK_TOKENS)
        self.num_groups, num_pages = len(layout.groups), -(-num_tokens // BLOCK_TOKENS)
        pages = PageCache(layout, num_pages, torch.device("cpu"))
        self.model.bind_cache(layout, pages.region, cache)
        self.table = torch.randperm(num_pages, generator=torch.Generator().manual_seed(0)).int()

    def logits(self, ids: Tensor, start: int, *, decode: bool) -> Tensor:
        """float32 [T, V] of ids, which stand at positions from `start` on.

        decode: each token is a row of its own that shares the sequence's pages. A layer writes all rows'
        keys before any row attends, and a row sees no later position: a causal forward by the decode path.
        """
        count = len(ids)
        positions = torch.arange(start, start + count)
        rows = count if decode else 1
        slots = self.table[positions // BLOCK_TOKENS].long() * BLOCK_TOKENS + positions % BLOCK_TOKENS
        group = GroupStep(table_SP=self.table.expand(rows, -1).contiguous(), slots_T=slots)
        starts = positions if decode else positions[:1]
        counts = torch.ones_like(starts) if decode else torch.tensor([count])
        step = Step(ids_T=ids, positions_T=positions, reach_T=positions + 1, starts=starts.numpy(),
                    counts=counts.numpy(), lengths_S=(starts + counts).int(),
                    num_decodes=rows if decode else 0, groups=(group,) * self.num_groups)
        return self.model.logits(self.model.forward(step), prefill_from=count if decode else 0)


@dataclass
class Divergence:
    """Of a road's distributions from the exact ones, over all tokens so far."""

    num_tokens: int = 0
    kl_nat: float = 0.0
    agreed: int = 0

    def add(self, exact: Tensor, found: Tensor) -> None:
        """Logits [T, V] of the same tokens; few at a time stay in the CPU's cache."""
        p, q = exact.log_softmax(-1), found.log_softmax(-1)
        self.kl_nat += float(q.sub_(p).mul_(p.exp_()).sum(dtype=torch.float64).neg_())
        self.agreed += int((exact.argmax(-1) == found.argmax(-1)).sum())
        self.num_tokens += len(p)

    @property
    def mean_kl_nat(self) -> float:
        return self.kl_nat / self.num_tokens

    @property
    def agreement(self) -> float:
        return self.agreed / self.num_tokens


def pieces(num_tokens: int, size: int) -> Iterator[slice]:
    return (slice(at, min(at + size, num_tokens)) for at in range(0, num_tokens, size))
