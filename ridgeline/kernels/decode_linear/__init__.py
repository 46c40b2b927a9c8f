"""Linears of a decode step, bound by the bytes of their weights: one row to 128, with what surrounds them
fused.

The door: chooses a kernel by measurement (tuning.py) and launches it. Knows no model, no cache and no graph;
safe to capture. Legend: M rows, K inputs, N outputs.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from ridgeline.kernels.cublaslt import open_cublaslt
from ridgeline.kernels.decode_linear.reference import linear_reference
from ridgeline.kernels.decode_linear.tuning import (
    MAX_ROWS,
    MAX_TILES,
    Choice,
    LinearShape,
    Tuning,
    bucket,
    tuning_for,
)
from ridgeline.kernels.gpu import Gpu, pointer

_TRIGGERS = {"loop": 1, "start": 2, "end": 3}  # PDL of triton.py
_GATED = 2048  # outputs of a program that gates
_APART = Choice(form="dot", block_n=64, block_k=64, warps=4, stages=3, norm_apart=True, block_m=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A linear's operands: residual + f(norm(x) @ weight.T + bias).

    x_MK: rows of stride 1. weight: contiguous, [N, K], or [2 N, K] when gated: gate's rows, then up's, and f
    is silu(gate) * up. norm_K, eps: an RMS norm of x. bias: one entry a row of weight. residual_MN: rows of
    stride 1. out_MN: where the result goes, in its dtype, which may be the residual itself; None for new
    memory in the residual's or x's.
    """

    x_MK: Tensor
    weight: Tensor
    norm_K: Tensor | None = None
    eps: float = 0.0
    gated: bool = False
    bias: Tensor | None = None
    residual_MN: Tensor | None = None
    out_MN: Tensor | None = None

    @property
    def shape(self) -> LinearShape:
        n, k = self.weight.shape
        return LinearShape(n=n // 2 if self.gated else n, k=k, norm=self.norm_K is not None, gated=self.gated)

    def reference(self) -> Tensor:
        """The same by torch."""
        made = linear_reference(self.x_MK, self.weight, norm_K=self.norm_K, eps=self.eps, gated=self.gated,
                                bias=self.bias, residual_MN=self.residual_MN)
        return made if self.out_MN is None else self.out_MN.copy_(made)

    def out(self) -> Tensor:
        """Memory for the result."""
        like = self.x_MK if self.residual_MN is None else self.residual_MN
        if self.out_MN is not None:
            assert self.out_MN.stride(1) == 1
            return self.out_MN
        return torch.empty(len(self.x_MK), self.shape.n, dtype=like.dtype, device=like.device)


class DecodeLinears:
    """Runs linears on one stream of one GPU. Linears of a stream share its locks, one after another."""

    def __init__(self, gpu: Gpu, tuning: Tuning | None = None) -> None:
        """tuning: None for what is known of this GPU."""
        self.gpu = gpu
        self.tuning = tuning_for(gpu.name) if tuning is None else tuning
        self.locks = torch.zeros(MAX_TILES, dtype=torch.int32, device=gpu.device)
        named = any(entry.choice.algorithm for entry in self.tuning.entries.values())
        self.cublaslt = open_cublaslt(gpu.device) if named else None

    def __call__(self, call: Call) -> Tensor:
        """[M, N] in the dtype of the residual, else of x. 16-bit weights and up to 128 rows take a kernel."""
        if call.x_MK.dtype != call.weight.dtype or call.weight.element_size() != 2:
            return call.reference()
        apart = self.gpu.apart
        return self.run(call, _APART if apart else self.tuning.choose(call.shape, len(call.x_MK)))

    def run(self, call: Call, choice: Choice) -> Tensor:
        """One linear by the given choice. "tma" without rows of 16-byte steps goes by "dot" with the same
        tile."""
        x_MK, weight = call.x_MK, call.weight
        assert x_MK.stride(1) == 1 and weight.is_contiguous(), "rows of stride 1"
        if choice.by_library:
            return self.by_library(call, choice)
        if call.norm_K is not None and choice.norm_apart:
            call = replace(call, x_MK=self.norm(x_MK, call.norm_K, call.eps), norm_K=None)
        out_MN = call.out()
        if choice.form == "gemv":
            self._gemv(call, choice, out_MN)
        else:
            self._tiles(call, choice, out_MN)
        return out_MN

    def norm(self, x_MK: Tensor, norm_K: Tensor, eps: float) -> Tensor:
        """RMS norm of each row, contiguous."""
        from ridgeline.kernels.decode_linear.triton import rms_norm_kernel

        rows, k = x_MK.shape
        out_MK = torch.empty(rows, k, dtype=x_MK.dtype, device=x_MK.device)
        rms_norm_kernel[(rows,)](x_MK, norm_K, out_MK, eps, x_MK.stride(0), k, 1 << (k - 1).bit_length(),
                                 self._pdl("loop"), num_warps=4, **self.gpu.launch_options())
        return out_MK

    def by_library(self, call: Call, choice: Choice | None = None) -> Tensor:
        """The product by cuBLAS: for many rows, and where the launches of these kernels would be waited for.
        The norm before it and the gate after it are a kernel each. choice: None for what was measured."""
        if self.gpu.interpret or call.bias is not None or call.weight.element_size() != 2:
            return call.reference()
        if choice is None:
            choice = self.tuning.library(call.shape, len(call.x_MK))
        x_MK, norm_K = call.x_MK, call.norm_K
        if norm_K is not None:  # in graphs of decodes ours starts sooner; torch's is launched sooner
            norm = self.norm if len(x_MK) <= MAX_ROWS else _norm
            call = replace(call, x_MK=norm(x_MK, norm_K, call.eps), norm_K=None)
        if call.gated:
            both = self._product(replace(call, gated=False, residual_MN=None, out_MN=None), choice)
            return self._gate(both, call)
        return self._product(call, choice)

    def _product(self, call: Call, choice: Choice) -> Tensor:
        """Plain, by the library: a weight without norm and gate."""
        x_MK, weight_KN, residual_MN, out_MN = call.x_MK, call.weight.t(), call.residual_MN, call.out_MN
        if choice.form == "lt" and self.cublaslt is not None and self.cublaslt.knows(choice.algorithm):
            made = call.out()
            if self.cublaslt.multiply(x_MK, call.weight, made, choice.algorithm, residual_MN):
                return made
        if residual_MN is not None and out_MN is residual_MN:
            return residual_MN.addmm_(x_MK, weight_KN)
        if residual_MN is not None:
            made = torch.addmm(residual_MN, x_MK, weight_KN)
            return made if out_MN is None else out_MN.copy_(made)
        if out_MN is None or out_MN.dtype == x_MK.dtype:
            return torch.mm(x_MK, weight_KN, out=out_MN)
        return torch.ops.aten.mm.dtype_out(x_MK, weight_KN, out_MN.dtype, out=out_MN)

    def _gate(self, y: Tensor, call: Call) -> Tensor:
        """silu(first half) * second half."""
        from ridgeline.kernels.decode_linear.triton import silu_mul_kernel

        out_MN, n = call.out(), call.shape.n
        assert out_MN.is_contiguous() and call.residual_MN is None
        silu_mul_kernel[(len(y), -(-n // _GATED))](y, out_MN, y.stride(0), n, _GATED)
        return out_MN

    def _pdl(self, trigger: str) -> int:
        return _TRIGGERS[trigger] if self.gpu.programmatic else 0

    def _gemv(self, call: Call, choice: Choice, out_MN: Tensor) -> None:
        from ridgeline.kernels.decode_linear.triton import gemv_kernel

        assert len(call.x_MK) == 1, "gemv is for one row"
        shape, x = call.shape, call.x_MK
        gemv_kernel[(-(-shape.n // choice.block_n),)](
            x, call.weight, out_MN, pointer(call.norm_K, x), pointer(call.residual_MN, x),
            pointer(call.bias, x), shape.n, call.eps, shape.k, choice.block_n, choice.block_k, shape.norm,
            shape.gated, call.residual_MN is not None, call.bias is not None, self._pdl(choice.trigger),
            num_warps=choice.warps, **self.gpu.launch_options())

    def _tiles(self, call: Call, choice: Choice, out_MN: Tensor) -> None:
        from ridgeline.kernels.decode_linear.triton import dot_kernel, tma_kernel

        shape, x, rows = call.shape, call.x_MK, len(call.x_MK)
        block_m = choice.block_m or max(16, bucket(rows))
        tiles_m = -(-rows // block_m)
        tiles = -(-shape.n // choice.block_n) * tiles_m
        assert choice.split == 1 or tiles <= MAX_TILES, "a lock for each tile"
        part_floats = choice.block_n * block_m * (2 if shape.gated else 1) + block_m
        part = torch.empty(tiles * choice.split * part_floats if choice.split > 1 else 1, dtype=torch.float32,
                           device=x.device)
        residual, bias = pointer(call.residual_MN, out_MN), pointer(call.bias, x)
        out_args = (part, self.locks, rows, shape.n)
        tile = (shape.k, block_m, choice.block_n, choice.block_k, choice.split, tiles_m, spread(block_m))
        ends = (shape.gated, call.residual_MN is not None, call.bias is not None, self._pdl(choice.trigger),
                self.gpu.interpret)
        options = {"num_warps": choice.warps, "num_stages": choice.stages, **self.gpu.launch_options()}
        if choice.form == "tma" and _can_describe(x) and _can_describe(call.weight):
            from triton.tools.tensor_descriptor import TensorDescriptor

            assert not shape.norm, "tma takes its norm apart"
            tma_kernel[(tiles, choice.split)](
                TensorDescriptor.from_tensor(x, [block_m, choice.block_k]),
                TensorDescriptor.from_tensor(call.weight, [choice.block_n, choice.block_k]), out_MN, residual,
                bias, *out_args, out_MN.stride(0), residual.stride(0), *tile, *ends, **options)
        else:
            dot_kernel[(tiles, choice.split)](
                x, call.weight, out_MN, pointer(call.norm_K, x), residual, bias, *out_args, call.eps,
                x.stride(0), out_MN.stride(0), residual.stride(0), *tile, shape.norm, *ends, **options)


def spread(block_m: int) -> int:
    """Blocks of K between where neighbouring tiles of so many rows begin. The weights of few rows come sooner
    so; more rows come from L2 because all tiles ask for them at once."""
    return 5 if block_m <= 32 else 0


def _norm(x_MK: Tensor, norm_K: Tensor, eps: float) -> Tensor:
    return rms_norm(x_MK, norm_K.shape, norm_K, eps)


def _can_describe(x: Tensor) -> bool:
    """True when the tensor memory accelerator can address the rows of x."""
    return x.data_ptr() % 16 == 0 and x.stride(0) * x.element_size() % 16 == 0
