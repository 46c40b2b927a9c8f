"""Published shapes as accounts, for the ledger's tests."""

import numpy as np

from ridgeline.ledger.account import Account, account
from ridgeline.models.families import model_spec
from ridgeline.models.shapes import SHAPES
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import DTYPE_BYTES, WeightPlan


def shape(name: str, **changes: object) -> ModelSpec:
    """A published shape, with fields of its config changed."""
    return model_spec({**SHAPES[name], **changes})


def uniform(spec: ModelSpec, dtype: str = "bfloat16") -> Account:
    """Weights and cache in one dtype."""
    plan = WeightPlan.uniform(dtype)
    return account(spec, weight_bytes=plan.num_bytes, cache_element_bytes=DTYPE_BYTES[dtype])


class Step:
    """A step as the ledger sees it: rows of (start, count)."""

    def __init__(self, rows: list[tuple[int, int]], num_sampled: int | None = None) -> None:
        self.start = np.array([start for start, _ in rows], np.int32)
        self.count = np.array([count for _, count in rows], np.int32)
        self.num_sampled = len(rows) if num_sampled is None else num_sampled


def decodes(batch: int, context: int) -> Step:
    """`batch` rows of one token, each the last of `context` known tokens."""
    return Step([(context - 1, 1)] * batch)
