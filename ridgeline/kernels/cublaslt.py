"""Products by cuBLASLt with an algorithm that was measured, where the one that cuBLAS picks is slower.

Talks to the library that torch has loaded, by its C interface. An algorithm is written "version:bytes", the
library's own 64 bytes in hex, which mean something to the same version of it alone; under any other version
nothing is done here.

Legend: M rows, K inputs, N outputs.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_WORKSPACE = 32 << 20  # bytes, for sums of parts of K
_ALIGNED = 256  # bytes: what the library's rules take for granted of every address
_MOST = 8  # heuristics for one size; it never names more
_BF16, _F32, _COMPUTE_F32 = 14, 0, 68  # cudaDataType_t, cublasComputeType_t
_TRANSPOSE_A, _MAX_WORKSPACE, _COLUMNS = 3, 1, 3  # attributes of a product, of a preference, of a layout


class _Algo(ctypes.Structure):
    _fields_ = [("data", ctypes.c_uint64 * 8)]


class _Heuristic(ctypes.Structure):
    _fields_ = [("algo", _Algo), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
                ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4)]


@dataclass(slots=True, kw_only=True)
class _Product:
    """A product in the library's terms, for `rows` as last told. fits: by (algorithm, rows), whether it
    serves."""

    what: ctypes.c_void_p
    weight: ctypes.c_void_p
    x: ctypes.c_void_p
    out: ctypes.c_void_p
    rows: int
    fits: dict[tuple[str, int], bool] = field(default_factory=dict)


class CublasLt:
    """The library, for bfloat16 products of one stream of one GPU."""

    def __init__(self, library: Any, device: torch.device) -> None:
        self._library = library
        library.cublasLtGetVersion.restype = ctypes.c_size_t
        self._version = str(library.cublasLtGetVersion())
        self._index = torch.cuda.current_device() if device.index is None else device.index
        self._handle = ctypes.c_void_p()
        self._ask("Create", ctypes.byref(self._handle))
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=device)
        self._products: dict[tuple[int, ...], _Product] = {}
        self._algos: dict[str, _Algo | None] = {}
        self._one, self._none = ctypes.c_float(1.0), ctypes.c_float(0.0)

    def knows(self, algorithm: str) -> bool:
        """False for one of another version."""
        return self._algo(algorithm) is not None

    def multiply(self, x_MK: Tensor, weight_NK: Tensor, out_MN: Tensor, algorithm: str,
                 residual_MN: Tensor | None = None) -> bool:
        """out = residual + x @ weight.T in the current stream; residual may be out itself. False, and nothing
        done, where the algorithm does not serve: another version of the library, types, strides, sizes or
        addresses that it is not made for."""
        added, algo = out_MN if residual_MN is None else residual_MN, self._algo(algorithm)
        if algo is None or not _plain(x_MK, weight_NK, out_MN, added) or added.stride() != out_MN.stride():
            return False
        product = self._product(x_MK, weight_NK, out_MN)
        if not self._fits(product, algorithm, algo):
            return False
        stream = ctypes.c_void_p(torch._C._cuda_getCurrentRawStream(self._index))
        beta = self._none if residual_MN is None else self._one
        self._ask("Matmul", self._handle, product.what, ctypes.byref(self._one), _at(weight_NK),
                  product.weight, _at(x_MK), product.x, ctypes.byref(beta), _at(added), product.out,
                  _at(out_MN), product.out, ctypes.byref(algo), _at(self._workspace),
                  ctypes.c_size_t(_WORKSPACE), stream)
        return True

    def algorithms(self, x_MK: Tensor, weight_NK: Tensor, out_MN: Tensor, rows: Iterable[int]) -> list[str]:
        """What the library names for this product, its first choice first, and for other numbers of rows,
        which may serve as well."""
        product, found = self._product(x_MK, weight_NK, out_MN), dict[str, None]()
        preference, results, num = ctypes.c_void_p(), (_Heuristic * _MOST)(), ctypes.c_int()
        workspace = ctypes.c_size_t(_WORKSPACE)
        self._ask("MatmulPreferenceCreate", ctypes.byref(preference))
        self._ask("MatmulPreferenceSetAttribute", preference, _MAX_WORKSPACE, ctypes.byref(workspace),
                  ctypes.c_size_t(8))
        for each in (len(x_MK), *rows):
            self._size(product, each)
            if not self._library.cublasLtMatmulAlgoGetHeuristic(
                    self._handle, product.what, product.weight, product.x, product.out, product.out,
                    preference, _MOST, results, ctypes.byref(num)):
                good = [result.algo for result in results[:num.value] if not result.state]
                found.update(dict.fromkeys(f"{self._version}:{bytes(algo).hex()}" for algo in good))
        self._ask("MatmulPreferenceDestroy", preference)
        return list(found)

    def _product(self, x_MK: Tensor, weight_NK: Tensor, out_MN: Tensor) -> _Product:
        """By columns, as the library reads: out.T [N, M] = (weight [K, N]).T times x.T [K, M]."""
        (n, k), rows, strides = weight_NK.shape, len(x_MK), (x_MK.stride(0), out_MN.stride(0))
        product = self._products.get((n, k, *strides))
        if product is None:
            what, yes = ctypes.c_void_p(), ctypes.c_int32(1)
            self._ask("MatmulDescCreate", ctypes.byref(what), _COMPUTE_F32, _F32)
            self._ask("MatmulDescSetAttribute", what, _TRANSPOSE_A, ctypes.byref(yes), ctypes.c_size_t(4))
            product = self._products[n, k, *strides] = _Product(
                what=what, weight=self._layout(k, n, k), x=self._layout(k, rows, strides[0]),
                out=self._layout(n, rows, strides[1]), rows=rows)
        self._size(product, rows)
        return product

    def _layout(self, height: int, width: int, stride: int) -> ctypes.c_void_p:
        layout = ctypes.c_void_p()
        self._ask("MatrixLayoutCreate", ctypes.byref(layout), _BF16, ctypes.c_uint64(height),
                  ctypes.c_uint64(width), ctypes.c_int64(stride))
        return layout

    def _size(self, product: _Product, rows: int) -> None:
        if rows != product.rows:
            columns, size = ctypes.c_uint64(rows), ctypes.c_size_t(8)
            for layout in (product.x, product.out):
                self._ask("MatrixLayoutSetAttribute", layout, _COLUMNS, ctypes.byref(columns), size)
            product.rows = rows

    def _fits(self, product: _Product, name: str, algo: _Algo) -> bool:
        key = (name, product.rows)
        if key not in product.fits:
            result = _Heuristic()
            refused = self._library.cublasLtMatmulAlgoCheck(
                self._handle, product.what, product.weight, product.x, product.out, product.out,
                ctypes.byref(algo), ctypes.byref(result))
            product.fits[key] = not refused and not result.state and result.workspace <= _WORKSPACE
        return product.fits[key]

    def _algo(self, name: str) -> _Algo | None:
        """The library's bytes; None for those of another version."""
        if name not in self._algos:
            version, _, data = name.partition(":")
            known = version == self._version
            self._algos[name] = _Algo.from_buffer_copy(bytes.fromhex(data)) if known else None
        return self._algos[name]

    def _ask(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name} failed with status {status}")


def open_cublaslt(device: torch.device) -> CublasLt | None:
    """The library that torch has loaded for this GPU; None where there is none."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    try:
        library = ctypes.CDLL(f"libcublasLt.so.{torch.version.cuda.partition('.')[0]}")
    except OSError:
        return None
    return CublasLt(library, device)


def _plain(*tensors: Tensor) -> bool:
    """Whether all are rows of bfloat16 where the library's rules expect them."""
    return all(tensor.dtype == torch.bfloat16 and tensor.stride(1) == 1 and tensor.data_ptr() % _ALIGNED == 0
               for tensor in tensors)


def _at(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())
