"""Published shapes as accounts, for the ledger's tests."""

import numpy as np

from ridgeline.ledger.account import Account, account
from ridgeline.ledger.layout import Layout, cut, stages
from ridgeline.models.families import model_spec
from ridgeline.models.shapes import SHAPES
from ridgeline.planner.room import Room
from ridgeline.spec.cache import CacheLayout
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.quant import FORMATS, WeightPlan


def shape(name: str, **changes: object) -> ModelSpec:
    """A published shape, with fields of its config changed."""
    return model_spec({**SHAPES[name], **changes})


def uniform(spec: ModelSpec, dtype: str = "bfloat16") -> Account:
    """Weights and cache in one dtype."""
    plan = WeightPlan.uniform(dtype)
    return account(spec, weight_bytes=plan.num_bytes, cache_element_bytes=FORMATS[dtype].bits / 8)


def room(spec: ModelSpec, layout: CacheLayout, capacity: int, weights: float = 0.0,
         workspace: float = 0.0) -> Room:
    """A planned device of so many bytes that takes no step."""
    (stage,) = stages(cut(spec, Layout()), weight_bytes=WeightPlan.uniform("bfloat16").num_bytes,
                      cache_element_bytes=2)
    return Room(capacity=capacity, weights=weights, step_bytes=0.0, row_bytes=0.0, workspace=workspace,
                draft=0.0, adapters=0.0, layout=layout, stage=stage, element_bytes=2, shared=0)


class Step:
    """A step as the ledger sees it: rows of (start, count)."""

    def __init__(self, rows: list[tuple[int, int]], num_sampled: int | None = None) -> None:
        self.start = np.array([start for start, _ in rows], np.int32)
        self.count = np.array([count for _, count in rows], np.int32)
        self.num_sampled = len(rows) if num_sampled is None else num_sampled


def decodes(batch: int, context: int) -> Step:
    """`batch` rows of one token, each the last of `context` known tokens."""
    return Step([(context - 1, 1)] * batch)
