"""What a process runs once before its first request, so that no request waits for it. Nobody asked for these
tokens: they go into a page that no request has yet."""

import torch

from ridgeline.blocks.step import Step
from ridgeline.nn.build import Model
from ridgeline.runner.inputs import build_step, idle_prompts
from ridgeline.runner.rows import Rows
from ridgeline.schedule.executor import Capacity

# By how many rows cuBLAS picks another kernel. It loads each when it is first needed, and waits for all work
# on the GPU before it does: up to a step's 170 ms where nothing else can be launched.
_FEW, _SOME, _MANY = range(32, 512, 32), range(512, 2048, 128), 256


def prompts(model: Model, rows: Rows, capacity: Capacity, num_tokens: int) -> None:
    """Prompts of so many tokens together through the model."""
    with torch.inference_mode():
        model.forward(_idle_step(rows, capacity, num_tokens))


def products(model: Model, rows: Rows, capacity: Capacity) -> None:
    """Blocks that differ, once each, at all numbers of tokens for which libraries may have other kernels."""
    most = capacity.max_step_tokens
    with torch.inference_mode():
        for num_tokens in (*_FEW, *_SOME, *range(_SOME.stop, most + 1, _MANY)):
            if num_tokens <= most:
                model.run_each_kind(_idle_step(rows, capacity, num_tokens))


def _idle_step(rows: Rows, capacity: Capacity, num_tokens: int) -> Step:
    plan = idle_prompts(num_tokens, most_rows=capacity.num_rows, most=capacity.max_model_len)
    return build_step(plan, rows, capacity.layout)
