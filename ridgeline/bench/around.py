"""The kernels of a step beside its decode linears and attention: those of prompts' chunks, and sampling.

Legend: T tokens, S rows, E = (M + 2 G) D of M query and G KV heads of D, V vocabulary.
"""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from ridgeline.bench.chain import KV_BYTES, PAGE_TOKENS, Cache, parts
from ridgeline.bench.timed import Timed
from ridgeline.engine.ceilings import Ceilings
from ridgeline.engine.timing import captured, median_s
from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.prefill_attention import Chunk, PrefillAttention
from ridgeline.kernels.rotate_write import rotate_write
from ridgeline.kernels.sampling import Requests, Sampling, ask_of
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams

CHUNKS, CHUNK_TOKENS = 8, 1024  # of a step
SAMPLED = (1, 128)
_GATED = 2048  # outputs of a program that gates, as in decode_linear
_WAYS = {"greedy": SamplingParams(temperature=0.0), "top-p": SamplingParams(temperature=0.8, top_p=0.9)}


def chunk_kernels(gpu: Gpu, spec: ModelSpec, ceilings: Ceilings) -> Iterator[Timed]:
    """Fresh chunks of one step; each kernel's arrays together are larger than the GPU's caches."""
    from ridgeline.kernels.decode_linear.triton import silu_mul_kernel

    attention, mlp = parts(spec)[0]
    num_tokens, dim, bf16 = CHUNKS * CHUNK_TOKENS, attention.head_dim, torch.bfloat16
    cache = Cache.random(gpu, attention, layers=1, rows=CHUNKS, context=CHUNK_TOKENS)
    keys, values = cache.layer(0)
    heads = attention.num_heads + 2 * attention.num_kv_heads
    qkv_TE = torch.randn(num_tokens, heads * dim, device=gpu.device, dtype=bf16)

    def timed(name: str, run: Callable[[], object], num_bytes: int, flops: int) -> Timed:
        return Timed(
            name=name, rows=num_tokens, seconds=median_s(captured(run).replay), num_bytes=num_bytes,
            flops=flops, floor_s=ceilings.floor_s(num_bytes, flops),
        )  # fmt: skip

    places = torch.arange(CHUNK_TOKENS, device=gpu.device)
    pages = cache.rows.table_SX.long()[:, places // PAGE_TOKENS]
    slots_T = (pages * PAGE_TOKENS + places % PAGE_TOKENS).flatten()
    angles = torch.rand(num_tokens, attention.rope.rotary_dim, device=gpu.device)
    cos_TR, sin_TR = angles.cos(), angles.sin()
    q_bytes, kv_bytes = num_tokens * attention.q_size * 2, num_tokens * attention.kv_size * KV_BYTES
    yield timed(
        "turn+write",
        lambda: rotate_write(
            qkv_TE, keys, values, slots_T, cos_TR, sin_TR, num_heads=attention.num_heads
        ),
        2 * q_bytes + 5 * kv_bytes, 0,
    )  # fmt: skip
    attend = PrefillAttention(gpu)
    chunks = [Chunk(first=i * CHUNK_TOKENS, start=0, count=CHUNK_TOKENS) for i in range(CHUNKS)]
    plan = attend.plan(
        chunks, cache.rows.table_SX, keys, values, num_heads=attention.num_heads, dtype=bf16,
        window=attention.window_tokens,
    )  # fmt: skip
    seen = min(CHUNK_TOKENS, attention.window_tokens or CHUNK_TOKENS)
    pairs = CHUNKS * (seen * (seen + 1) // 2 + (CHUNK_TOKENS - seen) * seen)
    yield timed(
        "chunks",
        lambda: attend(qkv_TE.view(num_tokens, heads, dim), keys, values, plan, scale=attention.scale),
        2 * q_bytes + 2 * kv_bytes, 4 * pairs * attention.q_size,
    )  # fmt: skip
    inner = mlp.intermediate_size
    x = torch.randn(num_tokens, 2 * inner, device=gpu.device, dtype=bf16)
    out = torch.empty(num_tokens, inner, device=gpu.device, dtype=bf16)
    grid = (num_tokens, -(-inner // _GATED))
    yield timed(
        "silu mul", lambda: silu_mul_kernel[grid](x, out, x.stride(0), inner, _GATED), 3 * out.nbytes, 0
    )


def sampling_kernels(gpu: Gpu, spec: ModelSpec, ceilings: Ceilings) -> Iterator[Timed]:
    """From float32 logits to tokens."""
    vocab, device = spec.vocab_size, gpu.device
    for name, params in _WAYS.items():
        for num in SAMPLED:
            logits_SV = torch.randn(num, vocab, device=device)
            out_2S = torch.zeros(2, num, dtype=torch.int32, device=device)
            requests = Requests.room(
                torch.zeros(num, dtype=torch.long, device=device), vocab_size=vocab, marks=1, biases=1
            )
            for row in range(num):
                requests.write(row, ask_of(params, row, vocab))
            rows_S = torch.arange(num, dtype=torch.int32, device=device)
            sample, lens_S = Sampling(gpu, max_rows=num, vocab_size=vocab), rows_S + 100
            graph = captured(partial(sample, logits_SV, rows_S, lens_S, requests, out_2S))
            yield Timed(
                name=name, rows=num, seconds=median_s(graph.replay), num_bytes=logits_SV.nbytes, flops=0,
                floor_s=ceilings.floor_s(logits_SV.nbytes, 0),
            )  # fmt: skip
