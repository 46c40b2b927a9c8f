"""What an engine can hold: its weights counted, its cache, rows and steps sized by the memory there is."""

from dataclasses import replace

import torch
from torch import Tensor

from ridgeline.adapters.stacked import AnySlots
from ridgeline.base.config import EngineConfig
from ridgeline.blocks.norm_rope.spec import prompt_borders
from ridgeline.engine.adapters import slots_bytes
from ridgeline.engine.host import decide_host
from ridgeline.engine.machine import available_bytes
from ridgeline.engine.numerics import Numerics
from ridgeline.engine.sizes import (
    GpuRoom,
    block_tokens,
    change_that_fits,
    decide_sizes,
    graph_bytes,
    least_cache_bytes,
    step_tokens,
)
from ridgeline.engine.startup import Startup
from ridgeline.ledger.memory import step_bytes
from ridgeline.nn.load import Weights
from ridgeline.nn.replay import recorded_bytes
from ridgeline.runner.short_graphs import most_tokens
from ridgeline.schedule.executor import Capacity
from ridgeline.spec.cache import CacheLayout, plan_layout
from ridgeline.spec.model import ModelSpec


def decide_capacity(
    config: EngineConfig, spec: ModelSpec, numerics: Numerics, weights: Weights, device: torch.device,
    startup: Startup, slots: AnySlots | None,
) -> Capacity:  # fmt: skip
    on_gpu = device.type == "cuda"
    tokens = block_tokens(config, on_gpu=on_gpu)
    layout = plan_layout(spec.cache(numerics.cache.itemsize), block_tokens=tokens)
    adapter_bytes = slots_bytes(config, spec, slots)
    sizes = decide_sizes(
        config, layout, max_position=spec.max_position, free_bytes=available_bytes(), startup=startup,
        room=_gpu_room(config, spec, numerics, weights, device, layout, adapter_bytes) if on_gpu else None,
        recorded_bytes=recorded_bytes(
            spec, threads=torch.get_num_threads(), max_tokens=config.max_model_len or spec.max_position
        ) if numerics.name == "packed" else 0,
        adapter_bytes=adapter_bytes,
    )  # fmt: skip
    return Capacity(
        layout=layout,
        num_pages=sizes.num_pages,
        num_rows=config.max_num_seqs,
        max_step_tokens=sizes.max_num_batched_tokens,
        max_model_len=sizes.max_model_len,
        vocab_size=spec.vocab_size,
        prompt_borders=prompt_borders(spec, sizes.max_model_len),
        num_host_pages=decide_host(config, layout, free_bytes=available_bytes(), startup=startup),
    )


def _gpu_room(
    config: EngineConfig, spec: ModelSpec, numerics: Numerics, weights: Weights, device: torch.device,
    layout: CacheLayout, adapter_bytes: int,
) -> GpuRoom:
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    size, held = numerics.activations.itemsize, sum(held_bytes(weights).values())

    def room(longest: int, num_seqs: int) -> GpuRoom:
        return GpuRoom(
            total_bytes=total, free_bytes=free, weights_bytes=held, adapter_bytes=adapter_bytes,
            step_bytes=step_bytes(
                spec, step_tokens=longest, num_seqs=num_seqs, element_bytes=size,
                context=config.max_model_len or spec.max_position),
            graph_bytes=graph_bytes(
                spec, num_seqs=num_seqs, num_tokens=most_tokens(spec, longest), element_bytes=size,
                adapted=adapter_bytes > 0),
        )  # fmt: skip

    found, least = room(step_tokens(config, on_gpu=True), config.max_num_seqs), least_cache_bytes(layout)
    if found.cache_bytes >= least:
        return found
    return replace(found, change=change_that_fits(config, room, least))


def held_bytes(weights: Weights) -> dict[str, int]:
    """Bytes of each weight in the form that it is held in."""
    return {
        name: sum(
            part.numel() * part.element_size()
            for part in ([weight] if isinstance(weight, Tensor) else weight.tensors().values())
        )
        for name, weight in weights.items()
    }
