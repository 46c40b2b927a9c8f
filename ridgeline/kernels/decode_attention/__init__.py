"""Attention of a decode step: one new token a row, keys and values in pages, any lengths side by side.

The door: plans a step once for all layers of a cache group, then attends a layer at a time. Takes pages by
strides, so that it knows no layout, and qkv as the linear leaves it. Safe to capture: nothing depends on a
length on the host.

Legend: S rows, M query heads, G KV heads, D head width, R rotary width, N arena pages, P tokens a page, X
pages a row.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.base.errors import ConfigError
from ridgeline.kernels.cascade import Shared, tile_heads
from ridgeline.kernels.gpu import Gpu, pointer, power_of_two

MAX_DIM = 256
MAX_GROUP = 64  # query heads of a KV head: they are the rows of a tensor-core tile
CACHE_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)
_NO_WINDOW = 1 << 30
_PARTIAL_BYTES = 64 << 20
_SHARED_BYTES, _REGISTERS = 220 << 10, 65536  # of a processor
_MERGED = 8  # pieces at once
_PLANNED_ROWS = 512  # one kernel plans up to so many
_LEAST_TOKENS, _FEW = 256, 8  # a program takes so many tokens, or fewer where that cuts no row in more pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """A step's rows, on the device. lens_S: int32 tokens with the new one, 0 for a row that is idle.

    table_SX: int32 pages. cos_SR, sin_SR: float32 of the new tokens; the pairs' cosines twice over, the sines
    negated in the first half (pair: element i and i + R / 2). Rows of table and angles have stride 1.
    """

    lens_S: Tensor
    table_SX: Tensor
    cos_SR: Tensor
    sin_SR: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """tokens: of a tile. programs: of a processor; all of them must run at once, so that each gets its share
    of the registers and no more."""

    tokens: int
    warps: int
    stages: int
    programs: int

    @property
    def registers(self) -> int:
        """Of a thread, at most."""
        return min(_REGISTERS // (32 * self.warps * self.programs) // 8 * 8, 255)


_FEW_HEADS, _MANY_HEADS = 128, 512
# By the bytes of an entry of the cache.
_SMALL = {2: Tile(tokens=32, warps=2, stages=3, programs=6),
          1: Tile(tokens=16, warps=1, stages=4, programs=12)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A step's work for layers of one geometry and window. begin, share: who takes which tiles, see
    `plan_kernel`. programs: of all processors, a slot of sums for the first and the last tiles of each."""

    rows: Rows
    num_heads: int
    page_tokens: int
    window: int | None
    tile: Tile
    programs: int
    begin: Tensor
    share: Tensor
    shared: Shared | None


def tile_for(*, group: int, dim: int, kv_bytes: int, heads: int = 0) -> Tile:
    """The tile for `group` query heads of a KV head and `heads` KV heads of all rows together, as measured on
    an H200 in steps with heads of 128.

    Few heads: no tile is in flight beside the one in use, and registers are left for the kernel behind, whose
    weights come meanwhile. Many heads begin and end: small tiles waste less of the last one, and more
    programs hide the way to the first, most where lengths differ. Between them two are in flight, by threads
    of up to 255 registers.
    """
    width = power_of_two(dim)
    tokens = 64 if width <= 128 else 32  # as many bytes, and sums that stay in registers
    if kv_bytes in _SMALL and heads > _MANY_HEADS and width <= 128 and group <= 16:
        return _SMALL[kv_bytes]
    buffers = 1 if heads <= _FEW_HEADS and kv_bytes == 2 else 2
    warps = max(4, min(8, power_of_two(group) * width // 1024))
    fit = _SHARED_BYTES // (2 * tokens * width * kv_bytes * buffers)
    programs = min((12 if buffers == 1 else 8) // warps, fit)
    return Tile(tokens=tokens, warps=warps, stages=buffers + 1, programs=programs)


def unfit_heads(num_heads: int, kv_heads: int, dim: int, rotary: int) -> str:
    """Why the kernel cannot serve heads of this geometry; "" when it can."""
    if dim % 16 or not 16 <= dim <= MAX_DIM:
        return f"a head of {dim} is no multiple of 16 up to {MAX_DIM}"
    if num_heads % kv_heads or num_heads // kv_heads > MAX_GROUP:
        return f"{num_heads} query heads do not share {kv_heads} KV heads by at most {MAX_GROUP}"
    if rotary % 2 or rotary > dim:
        return f"{rotary} of {dim} elements cannot turn in pairs"
    return ""


def unfit(keys_NPGD: Tensor, values_NPGD: Tensor, num_heads: int, rotary: int = 0) -> str:
    """Why the kernel cannot serve these pages; "" when it can."""
    reason = unfit_heads(num_heads, keys_NPGD.shape[2], keys_NPGD.shape[3], rotary)
    if reason:
        return reason
    if keys_NPGD.dtype not in CACHE_TYPES:
        return f"a cache of {keys_NPGD.dtype} is not supported"
    if keys_NPGD.stride() != values_NPGD.stride() or keys_NPGD.stride(3) != 1:
        return "keys and values need equal strides and heads of stride 1"
    return ""


class DecodeAttention:
    """Runs decode attention on one stream of one GPU. Layers share its locks, one after another.
    Where a row's sums are cut hangs on the rows beside it: they are float32, and merged as such.

    k_scale, v_scale: what 1.0 in the cache stands for; for float8."""

    def __init__(self, gpu: Gpu, *, max_rows: int, max_kv_heads: int, k_scale: float = 1.0,
                 v_scale: float = 1.0) -> None:
        self._gpu, self._k_scale, self._v_scale = gpu, k_scale, v_scale
        self.locks = torch.zeros(max_rows * max_kv_heads, dtype=torch.int32, device=gpu.device)

    def plan(self, rows: Rows, keys_NPGD: Tensor, values_NPGD: Tensor, *, num_heads: int,
             window: int | None = None, tile: Tile | None = None, shared: Shared | None = None) -> Plan:
        """One kernel, launched in order. keys, values: the pages of any layer of the group. window counts the
        query.

        At least one kernel launched without PDL, such as any of torch's, must follow before the first
        attention. tile: None for `tile_for`. shared: prefixes to read once for all their rows; none with a
        window. ConfigError where the kernel cannot serve.
        """
        from ridgeline.kernels.decode_attention.triton import plan_kernel

        reason = unfit(keys_NPGD, values_NPGD, num_heads, rows.cos_SR.shape[1])
        if reason:
            raise ConfigError(f"no decode attention kernel: {reason}")
        num_rows, (tokens, kv_heads, dim) = len(rows.lens_S), keys_NPGD.shape[1:]
        assert num_rows * kv_heads <= len(self.locks), "a lock for each row and KV head"
        assert rows.lens_S.dtype == rows.table_SX.dtype == torch.int32
        if tile is None:
            tile = tile_for(group=num_heads // kv_heads, dim=dim, kv_bytes=keys_NPGD.element_size(),
                            heads=num_rows * kv_heads if shared is None else 0)
        assert shared is None or (window is None and shared.piece % tile.tokens == 0)
        longest = rows.table_SX.shape[1] * tokens
        seen = longest if window is None else min(longest, window + tile.tokens - 1)
        slot_bytes = 4 * num_heads // kv_heads * (power_of_two(dim) + 2)
        programs = min(self._gpu.processors * tile.programs, num_rows * kv_heads * -(-seen // tile.tokens),
                       max(self._gpu.processors, _PARTIAL_BYTES // (2 * slot_bytes)))
        begin, share = (torch.empty(size, dtype=torch.int32, device=rows.lens_S.device)
                        for size in (4 * programs, 2))
        skip_S = rows.lens_S if shared is None else shared.skip_S
        plan_kernel[(num_rows,)](rows.lens_S, skip_S, begin, share, num_rows,
                                 _NO_WINDOW if window is None else window, programs, kv_heads, tile.tokens,
                                 max(1, _LEAST_TOKENS // tile.tokens), _FEW,
                                 power_of_two(max(num_rows, _PLANNED_ROWS)), shared is not None, num_warps=1)
        return Plan(rows=rows, num_heads=num_heads, page_tokens=tokens, window=window, tile=tile,
                    programs=programs, begin=begin, share=share, shared=shared)

    def __call__(self, qkv_SE: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, plan: Plan, *, scale: float,
                 q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 0.0,
                 sinks_M: Tensor | None = None, early: bool = True, out_SE: Tensor | None = None) -> Tensor:
        """[S, M * D] in qkv's dtype; rows of length 0 are left unwritten. Writes the new keys and values.

        qkv_SE: M query, G key and G value heads of D, before norm and rotation. Keys that a row does not see
        may hold anything, NaN included. sinks_M: a score for each head that takes weight and gives no value.
        early: under PDL, let the next kernel start at once. out_SE: where the result goes, None for new
        memory.
        """
        from ridgeline.kernels.decode_attention.triton import decode_kernel

        rows, tile, num_heads = plan.rows, plan.tile, plan.num_heads
        num_rows, (kv_heads, dim) = len(qkv_SE), keys_NPGD.shape[2:]
        assert qkv_SE.shape[1] == (num_heads + 2 * kv_heads) * dim and qkv_SE.stride(1) == 1
        group, width, shared = num_heads // kv_heads, power_of_two(dim), plan.shared
        prefix_slots = 0 if shared is None else shared.most + 1
        slots = 2 * plan.programs + num_rows * kv_heads * prefix_slots
        part_o = torch.empty(slots * group * width, dtype=torch.float32, device=qkv_SE.device)
        part_ml = torch.empty(slots * group * 2, dtype=torch.float32, device=qkv_SE.device)
        if out_SE is None:
            out_SE = torch.empty(num_rows, num_heads * dim, dtype=qkv_SE.dtype, device=qkv_SE.device)
        pdl = (2 if early else 1) if self._gpu.programmatic else 0
        if shared is not None:
            self._shared(shared, qkv_SE, keys_NPGD, values_NPGD, plan, scale, q_norm, eps, part_o, part_ml)
        skip_S, piece = (rows.lens_S, tile.tokens) if shared is None else (shared.skip_S, shared.piece)
        decode_kernel[(plan.programs,)](
            qkv_SE, keys_NPGD, values_NPGD, rows.table_SX, rows.lens_S, skip_S, plan.begin, plan.share,
            rows.cos_SR, rows.sin_SR, pointer(q_norm, qkv_SE), pointer(k_norm, qkv_SE),
            pointer(sinks_M, qkv_SE), part_o, part_ml, self.locks, out_SE, num_rows, qkv_SE.stride(0),
            out_SE.stride(0),
            rows.table_SX.stride(0), rows.cos_SR.stride(0), keys_NPGD.stride(0), keys_NPGD.stride(1),
            keys_NPGD.stride(2), scale, self._k_scale, self._v_scale, torch.finfo(keys_NPGD.dtype).max,
            _NO_WINDOW if plan.window is None else plan.window, eps, prefix_slots, kv_heads, group,
            max(16, power_of_two(group)), dim, width, rows.cos_SR.shape[1], plan.page_tokens, tile.tokens,
            piece, *_merged(tile, group, width), q_norm is not None, sinks_M is not None,
            plan.window is not None, shared is not None, pdl, self._gpu.interpret, num_warps=tile.warps,
            num_stages=tile.stages, maxnreg=tile.registers, **self._gpu.launch_options())
        return out_SE

    def _shared(self, shared: Shared, qkv_SE: Tensor, keys_NPGD: Tensor, values_NPGD: Tensor, plan: Plan,
                scale: float, q_norm: Tensor | None, eps: float, part_o: Tensor, part_ml: Tensor) -> None:
        """The sums of the shared pieces, before the rows' own."""
        from ridgeline.kernels.cascade.triton import shared_kernel

        rows, tile, (kv_heads, dim) = plan.rows, plan.tile, keys_NPGD.shape[2:]
        assert shared.num_heads == plan.num_heads // kv_heads
        shared_kernel[(min(len(shared.work) * kv_heads, 2 * self._gpu.processors),)](
            qkv_SE, keys_NPGD, values_NPGD, rows.table_SX, shared.members_L, shared.work, shared.total,
            rows.cos_SR, rows.sin_SR, pointer(q_norm, qkv_SE), part_o, part_ml, self.locks,
            qkv_SE.stride(0), rows.table_SX.stride(0), rows.cos_SR.stride(0), keys_NPGD.stride(0),
            keys_NPGD.stride(1), keys_NPGD.stride(2), scale * self._k_scale, eps, 2 * plan.programs,
            shared.most + 1, kv_heads, shared.num_heads, tile_heads(shared), dim, power_of_two(dim),
            rows.cos_SR.shape[1], plan.page_tokens, shared.piece, tile.tokens,
            q_norm is not None, int(self._gpu.programmatic), self._gpu.interpret,
            num_warps=8, num_stages=2, **self._gpu.launch_options())


def _merged(tile: Tile, group: int, width: int) -> tuple[int, int]:
    """(pieces, query heads) that are merged at once, by the registers that there are."""
    room = 32 * 32 * tile.warps // width
    heads = min(power_of_two(group), max(1, room // _MERGED))
    return max(1, min(room // heads, _MERGED)), heads
