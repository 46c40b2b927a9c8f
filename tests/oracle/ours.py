"""The engine's own road from a checkpoint to logits: loader, modules, paged cache; text fed whole or in
chunks."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ridgeline.adapters.load import Adapter
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.blocks.step import GroupStep, Step
from ridgeline.engine.numerics import choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.kernels.gpu import Gpu
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.nn.build import build_model
from ridgeline.nn.load import dense, load_weights
from ridgeline.runner.cache import PageCache
from ridgeline.spec.cache import plan_layout

BLOCK_TOKENS = 8  # the fused decode kernel takes whole eights


class Ours:
    """One checkpoint, loaded in float32 or another dtype, on the CPU or, with a GPU's kernels, there."""

    def __init__(self, path: Path, dtype: torch.dtype = torch.float32, gpu: Gpu | None = None) -> None:
        self.checkpoint = checkpoint = open_checkpoint(path)
        self.spec = checkpoint.spec
        self.dtype, self.gpu = dtype, gpu
        self.device = torch.device("cpu") if gpu is None else gpu.device
        self.weights = load_weights(checkpoint, dense(dtype), device=self.device)

    def pack(self) -> None:
        """Hold the weights as an engine that is asked for no dtype holds those of a quantized file."""
        numerics = choose_numerics(EngineConfig(), self.checkpoint, Startup(WallClock()))
        assert numerics.name == "packed"
        self.weights = load_weights(self.checkpoint, numerics.policy, progress=False)

    def logits(self, ids: list[int], chunks: list[int] | None = None,
               adapter: Adapter | None = None) -> Tensor:
        """[tokens, vocabulary] of one text, fed in pieces of so many tokens (whole by default), fresh cache.
        adapter: that the text takes.

        A piece of one token takes the decode road.
        """
        layout = plan_layout(self.spec.cache(self.dtype.itemsize), block_tokens=BLOCK_TOKENS)
        wanted = [group.state_pages or -(-len(ids) // group.tokens_per_page) for group in layout.groups]
        num_pages = sum(wanted) + 1
        cache = PageCache(layout, num_pages, self.device)
        cache.arena.fill_(0x7F)  # floats of 0x7f7f7f7f: a read of an unwritten place shows
        slots = None if adapter is None else AdapterSlots(2)
        model = build_model(self.spec, self.weights, self.dtype, self.gpu, slots)
        if slots is not None:
            slots.put(2, adapter)
        model.bind_cache(layout, cache.region, self.dtype)
        pages, tables = np.random.default_rng(0).permutation(np.arange(1, num_pages)).tolist(), []
        for count in wanted:
            mine = [[pages.pop() for _ in range(count)]]
            tables.append(torch.tensor(mine, dtype=torch.int32, device=self.device))
        out, start = [], 0
        for size in chunks or [len(ids)]:
            positions = torch.arange(start, start + size, device=self.device)
            groups = []
            for group, table in zip(layout.groups, tables, strict=True):
                slots = positions[:0]
                if group.tokens_per_page:
                    page = table[0, positions // group.tokens_per_page].long()
                    slots = page * group.tokens_per_page + positions % group.tokens_per_page
                groups.append(GroupStep(table_SP=table, slots_T=slots))
            step = Step(
                ids_T=torch.tensor(ids[start : start + size], device=self.device),
                positions_T=positions,
                reach_T=torch.full((size,), len(ids), device=self.device),
                lengths_S=torch.tensor([start + size], dtype=torch.int32, device=self.device),
                starts=np.array([start]),
                counts=np.array([size]),
                num_decodes=int(size == 1),
                groups=tuple(groups),
                adapter_T=None if adapter is None else np.full(size, 2),
            )
            out.append(model.logits(model.forward(step), prefill_from=int(size == 1)).cpu())
            step.land()
            start += size
        assert start == len(ids)
        return torch.cat(out)
