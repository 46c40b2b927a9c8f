"""Attention of prompts' chunks: many new tokens a row, keys and values in pages, chunks of any lengths side
by side in one launch, each after a cached prefix or none.

The door: a plan, made once a step for all layers of a cache group, deals the rows' queries to programs; calls
attend, a layer at a time, after the new keys and values were written. A long chunk without prefix goes to
cuDNN where that is faster: `choose` says which and why. Nothing is read back.

Legend: T tokens of the chunks, S rows, M query heads, G KV heads, N heads of a token (M + 2 G) or pages of
the arena, D head width, P tokens a page, X pages a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad

from ridgeline.base.errors import ConfigError
from ridgeline.kernels.decode_attention import unfit
from ridgeline.kernels.gpu import Gpu, power_of_two

if TYPE_CHECKING:
    from triton.tools.tensor_descriptor import TensorDescriptor

PAGED, LIBRARY = "paged", "library"
LIBRARY_DIM = 128  # the widest head that cuDNN takes on every GPU
LIBRARY_TOKENS = 4096  # from here on a chunk is faster in cuDNN, rounded up as it is (heads of 128, an H200)
_MANY_TOKENS = 2048
_LIBRARY_STEP = 1024
_LOG2E = 1.4426950408889634
_NO_WINDOW = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A row's new tokens: `first` of the step's flat tokens, at position `start`, `count` of them."""

    first: int
    start: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """path: PAGED for the kernel of this folder, LIBRARY for torch's cuDNN."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """heads: query heads times tokens. tokens: keys. whole: they are a page's, which comes at once."""

    heads: int
    tokens: int
    warps: int
    stages: int
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's work for layers of one geometry and window. choices: of each chunk. work: (row, first token of
    the item within its chunk), the longest first."""

    table_SX: Tensor
    chunks: tuple[Chunk, ...]
    choices: tuple[Choice, ...]
    num_heads: int
    window: int | None
    tile: Tile
    chunks_S3: Tensor
    work: Tensor


def choose(chunk: Chunk, *, dtype: torch.dtype, cache_dtype: torch.dtype, window: int | None, sinks: bool,
           library: bool) -> Choice:
    """Which path a chunk takes. dtype: of the queries. library: there is one to ask."""
    if chunk.start > 0:
        return Choice(path=PAGED, reason=f"{chunk.start} tokens of prefix are in pages")
    if sinks:
        return Choice(path=PAGED, reason="the library knows no sinks")
    if window is not None and chunk.count > window:
        return Choice(path=PAGED, reason=f"a window of {window} is shorter than the chunk")
    if cache_dtype != dtype:
        return Choice(path=PAGED, reason=f"cached keys are {cache_dtype}, and a token sees what is cached")
    if not library or dtype not in (torch.bfloat16, torch.float16):
        return Choice(path=PAGED, reason=f"the library has no fast path for {dtype} here")
    if chunk.count < LIBRARY_TOKENS:
        return Choice(path=PAGED, reason=f"fewer than {LIBRARY_TOKENS} tokens share one launch")
    return Choice(path=LIBRARY, reason=f"{chunk.count} tokens without prefix: cuDNN is faster")


def tile_for(num_tokens: int, dim: int, kv_bytes: int) -> Tile:
    """For chunks of num_tokens together (measured on an H200 with heads of 128): what 8 bits save in bytes
    they cost in conversions, which large tiles do once for many queries."""
    if dim > 128 or kv_bytes > 2:
        return Tile(heads=128, tokens=32, warps=8, stages=2)
    if kv_bytes == 1 and num_tokens >= _MANY_TOKENS:
        return Tile(heads=256, tokens=64, warps=8, stages=2)
    return Tile(heads=64, tokens=64, warps=4, stages=3)


# Two tiles of queries for each fetch of keys, for steps that fill the processors twice with it (an H200: 490
# TFLOP/s where 332 were by single loads, 8,192 tokens; 238 where 197 were, eight chunks of 1,024).
PAGES = Tile(heads=128, tokens=64, warps=4, stages=2, whole=True)


class PrefillAttention:
    """Runs on one stream of one GPU. k_scale, v_scale: what 1.0 in the cache stands for; for fp8."""

    def __init__(self, gpu: Gpu, *, k_scale: float = 1.0, v_scale: float = 1.0) -> None:
        self._gpu, self._k_scale, self._v_scale = gpu, k_scale, v_scale

    def plan(self, chunks: Sequence[Chunk] | Tensor, table_SX: Tensor, keys_NPGD: Tensor,
             values_NPGD: Tensor, *, num_heads: int, dtype: torch.dtype, window: int | None = None,
             sinks: bool = False, tile: Tile | None = None, num_tokens: int | None = None) -> Plan:
        """One copy to the device. chunks: or, for a graph, what `Plan.chunks_S3` says, the last row's start 0
        where it has no tokens; num_tokens is then the most that all have. table_SX: int32 pages on the
        device, a row for each chunk. keys, values: the pages of any layer of the group. dtype: of the
        queries. window counts the query. tile: None for `tile_for`. ConfigError where the kernel cannot
        serve."""
        reason = unfit(keys_NPGD, values_NPGD, num_heads)
        if reason:
            raise ConfigError(f"no prefill attention kernel: {reason}")
        groups, dim = keys_NPGD.shape[2:]
        per_group, width = num_heads // groups, keys_NPGD.element_size()
        count = num_tokens if isinstance(chunks, Tensor) else sum(c.count for c in chunks)
        assert count is not None
        if tile is None:
            fills = count * num_heads >= 2 * PAGES.heads * self._gpu.processors
            pages = fills and not self._gpu.apart and self._takes_pages(keys_NPGD, dtype)
            tile = PAGES if pages else tile_for(count, dim, width)
        if isinstance(chunks, Tensor):
            return Plan(table_SX=table_SX, chunks=(), choices=(), window=window, tile=tile,
                        num_heads=num_heads, chunks_S3=chunks,
                        work=_dealt(chunks, count, tile.heads // per_group))
        own = self._gpu.interpret or self._gpu.apart
        library = not own and dim <= LIBRARY_DIM and torch.backends.cudnn.is_available()
        choices = tuple(choose(chunk, dtype=dtype, cache_dtype=keys_NPGD.dtype, window=window, sinks=sinks,
                               library=library) for chunk in chunks)
        per_item = tile.heads // per_group
        work = [(row, begin) for row, (chunk, choice) in enumerate(zip(chunks, choices, strict=True))
                if choice.path == PAGED for begin in range(0, chunk.count, per_item)]
        work.sort(key=lambda item: -(chunks[item[0]].start + item[1]))
        numbers = [(c.first, c.start, c.count) for c in chunks]
        host = torch.tensor([n for one in (*numbers, *work) for n in one], dtype=torch.int32)
        if not self._gpu.interpret:
            host = host.pin_memory()
        there, at = host.to(table_SX.device, non_blocking=True), 3 * len(chunks)
        return Plan(table_SX=table_SX, chunks=tuple(chunks), choices=choices, window=window, tile=tile,
                    num_heads=num_heads, chunks_S3=there[:at].view(-1, 3), work=there[at:].view(-1, 2))

    def _takes_pages(self, keys_NPGD: Tensor, dtype: torch.dtype) -> bool:
        """True when a head's page is one tile that descriptors can fetch."""
        page, token, head, _ = (stride * keys_NPGD.element_size() for stride in keys_NPGD.stride())
        (tokens, _, dim), steps = keys_NPGD.shape[1:], (page, head, keys_NPGD.data_ptr())
        fits = tokens == PAGES.tokens and dim == power_of_two(dim) <= LIBRARY_DIM
        return (self._gpu.descriptors and fits and keys_NPGD.dtype == dtype
                and token == dim * dtype.itemsize and not any(step % 16 for step in steps))

    def __call__(self, qkv_TND: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, plan: Plan, *, scale: float,
                 sinks_M: Tensor | None = None, out_TE: Tensor | None = None) -> Tensor:
        """[T, M * D] in qkv's dtype, contiguous; tokens of no chunk are left unwritten. qkv: M query, G key
        and G value heads, normed and turned; its keys and values lie in their pages too. Keys that no token
        sees may hold anything, NaN included. sinks_M: a score for each head that takes weight and gives no
        value. out_TE: where the result goes, None for new memory."""
        num_tokens, _, dim = qkv_TND.shape
        if out_TE is None and [choice.path for choice in plan.choices] == [LIBRARY]:
            return _by_library(qkv_TND, plan.num_heads, scale)
        if out_TE is None:
            out_TE = torch.empty(num_tokens, plan.num_heads * dim, dtype=qkv_TND.dtype, device=qkv_TND.device)
        assert out_TE.is_contiguous()
        for chunk, choice in zip(plan.chunks, plan.choices, strict=True):
            if choice.path == LIBRARY:
                part = slice(chunk.first, chunk.first + chunk.count)
                out_TE[part] = _by_library(qkv_TND[part], plan.num_heads, scale)
        if len(plan.work):
            self._by_pages(qkv_TND, keys_NPGD, values_NPGD, plan, scale, sinks_M, out_TE)
        return out_TE

    def _by_pages(self, qkv_TND: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, plan: Plan, scale: float,
                  sinks_M: Tensor | None, out_TE: Tensor) -> None:
        from ridgeline.kernels.prefill_attention.triton import prefill_kernel

        (tokens, groups, dim), tile = keys_NPGD.shape[1:], plan.tile
        assert qkv_TND.stride(2) == 1 and qkv_TND.stride(1) == dim and plan.table_SX.stride(1) == 1
        keys, values = (map(_pages, (keys_NPGD, values_NPGD)) if tile.whole else (keys_NPGD, values_NPGD))
        prefill_kernel[(groups, len(plan.work))](
            qkv_TND, keys, values, plan.table_SX, plan.chunks_S3, plan.work,
            qkv_TND if sinks_M is None else sinks_M, out_TE, qkv_TND.stride(0), plan.table_SX.stride(0),
            *keys_NPGD.stride()[:3], scale * self._k_scale * _LOG2E, self._v_scale,
            _NO_WINDOW if plan.window is None else plan.window, groups, plan.num_heads // groups, dim,
            power_of_two(dim), tokens, tile.heads, tile.tokens, sinks_M is not None,
            plan.window is not None, tile.whole, self._gpu.interpret, num_warps=tile.warps,
            num_stages=tile.stages)


def _pages(pages_NPGD: Tensor) -> "TensorDescriptor":
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(pages_NPGD.transpose(1, 2), [1, 1, *pages_NPGD.shape[1::2]])


def _dealt(chunks_S3: Tensor, num_tokens: int, per_item: int) -> Tensor:
    """`Plan.work`, on the device: as many items as such chunks can have. Those over repeat the last row's
    first."""
    num = len(chunks_S3)
    items_S = (chunks_S3[:, 2] + per_item - 1) // per_item
    ends_S = items_S.cumsum(0)
    item = torch.arange(num_tokens // per_item + num, device=chunks_S3.device)
    row = torch.searchsorted(ends_S, item, right=True).clamp_(max=num - 1)
    begin = (item - (ends_S - items_S)[row]) * per_item
    begin = torch.where(item < ends_S[-1], begin, 0)
    return torch.stack((row, begin), 1).int()


def _by_library(qkv_TND: Tensor, num_heads: int, scale: float) -> Tensor:
    """[T, M * D]: one chunk that sees nothing but itself. cuDNN prepares each new length for tens of
    milliseconds, so lengths are rounded up: no token sees the zeros behind the last."""
    num_tokens = len(qkv_TND)
    if num_tokens % _LIBRARY_STEP:
        qkv_TND = pad(qkv_TND, (0, 0, 0, 0, 0, -num_tokens % _LIBRARY_STEP))
    groups = (qkv_TND.shape[1] - num_heads) // 2
    q, k, v = (x_TND.transpose(0, 1)[None] for x_TND in qkv_TND.split((num_heads, groups, groups), 1))
    out = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, False, 0.0, True, False,
                                                             scale=scale)[0]
    return out[0].transpose(0, 1)[:num_tokens].flatten(1)
