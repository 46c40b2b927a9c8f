"""Weights in groups of 32 with fp16 scales (4 bits and a minimum, or 8 bits), multiplied as they are in C.

GGUF's Q4_0, Q4_1 and Q8_0 keep their codes and scales to the bit; so does MXFP4 in 8 bits, whose numbers are
no even steps; other quantized types become 8 bits.
Codes are multiplied by codes (activations as 14-bit integers), those of prompts too: one path, bitwise equal
at every number of rows.

Legend: T tokens, K input features, N output features, B bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.structs import ADD, MULTIPLY, Q4, Q8, SILU_MUL, STORE, Matrix, Product
from ridgeline.kernels.cpu.workspace import workspace
from ridgeline.quant.format import GgufBlocks, SourceWeight
from ridgeline.spec.block import ParamSpec

GROUP, TILE = 32, 16
TILE_BYTES = {Q4: 320, Q8: 544}  # of one group of a tile, see tiles.h
_KEPT = {"q4_0": Q4, "q4_1": Q4, "q8_0": Q8, "mxfp4": Q8}
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)  # halves


def product_bytes(rows: int, k: int, planes: int) -> int:
    """Workspace of a product: codes, scales and sums of the activations."""
    return rows * (planes * k + 8 * (k // GROUP))


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """[N, K] as tiles. planes: of the activations (1: 8 bits, 2: 14 bits)."""

    native: Native
    tiles: Tensor
    format: int
    n: int
    k: int
    planes: int
    matrix: Matrix = field(init=False)

    def __post_init__(self) -> None:
        matrix = Matrix(self.format, self.planes, self.n, self.k, self.tiles.data_ptr())
        object.__setattr__(self, "matrix", matrix)

    def tensors(self) -> Mapping[str, Tensor]:
        return {"tiles": self.tiles}

    def rows(self, ids_T: Tensor) -> Tensor:
        """[T, K] float32."""
        if ids_T.numel() and not 0 <= int(ids_T.min()) <= int(ids_T.max()) < self.n:
            raise IndexError("a token id lies outside the vocabulary")
        ids = ids_T.contiguous()
        out = torch.empty(ids.numel(), self.k)
        self.native.rows(self.matrix, ids.data_ptr(), ids.numel(), out.data_ptr())
        return out

    def apply(self, x_TK: Tensor, prefill_from: int) -> Tensor:
        return self._multiply(x_TK, STORE)

    def apply_norm(self, x_TK: Tensor, norm_K: Tensor, eps: float, prefill_from: int) -> Tensor:
        return self._multiply(x_TK, STORE, norm_K, eps)

    def apply_gated(
        self, x_TK: Tensor, norm_K: Tensor, eps: float, activation: str, prefill_from: int
    ) -> Tensor:
        assert self.gates(activation), "an activation or halves that the kernel does not have"
        return self._multiply(x_TK, SILU_MUL, norm_K, eps)

    def apply_add(self, x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
        return self._multiply(x_TK, ADD, residual=residual_TN)

    def gates(self, activation: str) -> bool:
        """True when apply_gated does this activation on these halves."""
        return activation == "silu" and self.n % (2 * TILE) == 0

    def _multiply(self, x: Tensor, epilogue: int, norm: Tensor | None = None, eps: float = 0.0,
                  residual: Tensor | None = None) -> Tensor:
        rows, groups = x.shape[0], self.k // GROUP
        if x.stride(1) != 1:
            x = x.contiguous()
        if residual is not None and residual.stride(1) != 1:
            residual = residual.contiguous()
        held = self.native.room(rows)
        out = torch.empty(held, self.n // 2 if epilogue == SILU_MUL else self.n)[:rows]
        if not rows:
            return out
        room = workspace(self.native, MULTIPLY, product_bytes(held, self.k, self.planes))
        codes = room.data_ptr()
        scales = codes + held * self.planes * self.k
        product = Product(
            rows,
            epilogue,
            torch.get_num_threads(),
            eps,
            x.stride(0),
            out.stride(0),
            0 if residual is None else residual.stride(0),
            x.data_ptr(),
            None if norm is None else norm.data_ptr(),
            None if residual is None else residual.data_ptr(),
            out.data_ptr(),
            codes,
            scales,
            scales + 4 * held * groups,
        )
        self.native.multiply(self.matrix, product, (x, norm, residual, out, room, self))
        return out


@dataclass(frozen=True, slots=True)
class Packing32:
    """Packs what is quantized already; a weight in plain numbers or of odd width stays float32."""

    native: Native
    planes: int

    @property
    def key(self) -> str:
        return "packed32-1"

    @property
    def cached(self) -> bool:
        return True

    def pack(self, weight: SourceWeight, device: torch.device) -> PackedMatrix | Tensor:
        blocks = weight.blocks()
        if blocks is None or weight.param.shape[1] % GROUP:
            return weight.dense(torch.float32, device)
        if len({_KEPT.get(part.kind) for part in blocks}) == 1 and blocks[0].kind in _KEPT:
            parts = [_codes(part) for part in blocks]
            code = np.concatenate([p[0] for p in parts])
            scale, low = np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts])
            # q4_0's -8 scales and MXFP4's may be too large for fp16
            if np.isfinite(low.view(np.float16)).all() and np.isfinite(scale.view(np.float16)).all():
                return self._make(_KEPT[blocks[0].kind], code, scale, low)
        return self._make(Q8, *_eight_bits(weight.dense(torch.float32, device)))

    def restore(
        self, param: ParamSpec, tensors: Mapping[str, Tensor], device: torch.device
    ) -> PackedMatrix | Tensor:
        if "weight" in tensors:
            return tensors["weight"].to(device)
        n, k = param.shape
        tiles = tensors["tiles"]
        per_group = tiles.numel() // (-(-n // TILE) * (k // GROUP))
        kind = next(f for f, size in TILE_BYTES.items() if size == per_group)
        return self._matrix(tiles, kind, n, k)

    def _make(
        self, kind: int, code: NDArray[np.int8], scale: NDArray[np.uint16], low: NDArray[np.uint16]
    ) -> PackedMatrix:
        n, k = code.shape
        tiles = torch.empty(-(-n // TILE) * (k // GROUP) * TILE_BYTES[kind], dtype=torch.uint8)
        packed = self._matrix(tiles, kind, n, k)
        arrays = [np.ascontiguousarray(array) for array in (code, scale, low)]
        self.native.pack(packed.matrix, *(array.ctypes.data for array in arrays))
        return packed

    def _matrix(self, tiles: Tensor, kind: int, n: int, k: int) -> PackedMatrix:
        planes = 2 if kind == Q8 else self.planes
        return PackedMatrix(self.native, tiles, kind, n, k, planes)


def _codes(part: GgufBlocks) -> tuple[NDArray[np.int8], NDArray[np.uint16], NDArray[np.uint16]]:
    """ggml's blocks as codes [N, K], scales and minima [N, K / 32] (fp16 bits)."""
    size = {"q4_0": 18, "q4_1": 20, "q8_0": 34, "mxfp4": 17}[part.kind]
    block = np.ascontiguousarray(part.raw_RB).reshape(part.rows, -1, size)
    if part.kind == "mxfp4":
        with np.errstate(over="ignore", under="ignore"):
            scale = np.ldexp(1.0, block[..., 0].astype(int) - 128).astype(np.float16).view(np.uint16)
        code = np.concatenate((block[..., 1:] & 15, block[..., 1:] >> 4), -1)
        return _E2M1[code].reshape(part.rows, part.columns), scale, np.zeros_like(scale)
    scale = np.ascontiguousarray(block[..., :2]).view(np.uint16)[..., 0]
    if part.kind == "q8_0":
        code = np.ascontiguousarray(block[..., 2:]).view(np.int8).reshape(part.rows, part.columns)
        return code, scale, np.zeros_like(scale)
    packed = block[..., size - 16 :]
    code = np.concatenate((packed & 15, packed >> 4), -1).reshape(part.rows, part.columns).astype(np.int8)
    if part.kind == "q4_1":
        return code, scale, np.ascontiguousarray(block[..., 2:4]).view(np.uint16)[..., 0]
    with np.errstate(over="ignore"):
        low = (scale.view(np.float16) * np.float16(-8)).view(np.uint16)
    return code, scale, low


def _eight_bits(weight_NK: Tensor) -> tuple[NDArray[np.int8], NDArray[np.uint16], NDArray[np.uint16]]:
    """Codes in -127..127 of groups of 32, each with the fp16 scale nearest its largest value over 127."""
    group = weight_NK.view(weight_NK.shape[0], -1, GROUP)
    scale = (group.abs().amax(-1) / 127).half()
    code = (group / scale.float().clamp_min(1e-30)[..., None]).round_().clamp_(-127, 127).to(torch.int8)
    bits = scale.numpy().view(np.uint16)
    return code.view(weight_NK.shape).numpy(), bits, np.zeros_like(bits)
