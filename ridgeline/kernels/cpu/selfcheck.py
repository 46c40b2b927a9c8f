"""Does a freshly built library compute what it should on this machine? Small cases against numpy.

Runs in a process of its own (build.py), which an instruction that the CPU lacks may end. Knows no torch and
no model.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.kernels.cpu.native import Native, load
from ridgeline.kernels.cpu.structs import ADD, Q4, Q8, SILU_MUL, STORE, Attention, Matrix, Product
from ridgeline.kernels.cpu.tape import MAX_GROUP

Array = NDArray[np.generic]
_EXACT, _ROUNDED = 3e-6, 3e-2  # shares of the largest number: fp32 sums, activations as 8-bit integers
_LARGEST_TILE_BYTES = 544


def main(path: str) -> None:
    """Ends the process with a text that names the first kernel that is wrong. Norms go with two threads."""
    library, random = load(Path(path)), np.random.default_rng(0)
    formats, epilogues = ((Q4, 1), (Q4, 2), (Q8, 2)), (STORE, ADD, SILU_MUL)
    for (bits, planes), epilogue, norm in product(formats, epilogues, (False, True)):
        error = _product_error(library, random, bits, planes, epilogue, norm)
        if not error < (_ROUNDED if norm else _EXACT):
            sys.exit(f"product: {bits} bits, {planes} planes, {epilogue=}, {norm=}, off by {error:.1e}")
    for dim, bf16, norm in product((64, 72, 128), (False, True), (False, True)):
        error = _attention_error(library, random, dim, bf16, norm)
        if not error < _EXACT:
            sys.exit(f"attention: heads of {dim}, {bf16=}, {norm=}, off by {error:.1e}")


def _product_error(native: Native, random: np.random.Generator, bits: int, planes: int, epilogue: int,
                   norm: bool) -> float:
    """Largest error over the largest number. Without a norm the activations' codes are exact."""
    rows, n, k, top = 11, 64, 96, 127 if planes == 1 else 8128
    code = random.integers(*((0, 16) if bits == Q4 else (-127, 128)), (n, k)).astype(np.int8)
    scale, least = random.uniform(-1, 1, (2, n, k // 32)).astype(np.float16)
    weight = code * scale.astype(float).repeat(32, 1)
    if bits == Q4:
        weight += least.astype(float).repeat(32, 1)
    tiles = np.zeros(n // 16 * (k // 32) * _LARGEST_TILE_BYTES, np.uint8)
    matrix = Matrix(format=bits, planes=planes, n=n, k=k, tiles=_at(tiles))
    native.pack(matrix, _at(code), _at(scale), _at(least))
    ids, given = np.arange(n), np.full((n, k), np.nan, np.float32)
    native.rows(matrix, _at(ids), n, _at(given))
    if not np.allclose(given, weight, 1e-6, 1e-6):
        return np.inf
    x = random.integers(-top, top + 1, (rows, k)).astype(np.float32) / 64
    x[:, ::32] = top / 64
    gain, residual = _floats(random, k), _floats(random, rows, n)
    out = np.full((rows, n // 2 if epilogue == SILU_MUL else n), np.nan, np.float32)
    codes, room = np.zeros((rows, planes * k), np.int8), np.zeros((2, rows, k // 32), np.float32)
    call = Product(
        rows=rows, epilogue=epilogue, threads=1 + norm, eps=1e-5, in_stride=k, out_stride=out.shape[1],
        residual_stride=n, input=_at(x), norm=_at(gain) if norm else None, residual=_at(residual),
        out=_at(out), codes=_at(codes), scales=_at(room[0]), sums=_at(room[1]))
    native.multiply(matrix, call, ())
    expected = (_rms(x, gain) if norm else x.astype(float)) @ weight.T
    if epilogue == ADD:
        expected += residual
    if epilogue == SILU_MUL:
        gate, up = np.split(expected, 2, 1)
        expected = gate / (1 + np.exp(-np.clip(gate, -700, 700))) * up
    return float(np.abs(out - expected).max() / np.abs(expected).max())


def _attention_error(native: Native, random: np.random.Generator, dim: int, bf16: bool, norm: bool) -> float:
    """Three rows over a cache that is NaN wherever they may not look; with a norm, cut over threads."""
    position, window, block, heads, kv_heads, pages = np.array([0, 9, 300], np.int32), 290, 8, 6, 2, 38
    table = random.permutation(3 * pages).astype(np.int32).reshape(3, pages)
    cache = np.full((3 * pages, block, 2, kv_heads, dim), np.nan, np.float32)
    for row, end in enumerate(position):
        past = np.arange(max(0, end + 1 - window), end)
        cache[table[row, past // block], past % block] = _floats(random, len(past), 2, kv_heads, dim)
    held: Array = (cache.view(np.uint32) >> 16).astype(np.uint16) if bf16 else cache
    qkv, (q_norm, k_norm) = _floats(random, 3, heads + 2 * kv_heads, dim), _floats(random, 2, dim)
    angle = position[:, None] * 0.1 ** np.arange(dim // 2)
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    out, queries = np.full((2, 3, heads, dim), np.nan, np.float32)
    partial = np.full((3 * kv_heads, 2, MAX_GROUP * (dim + 8)), np.nan, np.float32)
    native.attend(Attention(
        rows=3, heads=heads, kv_heads=kv_heads, head_dim=dim, rotary_dim=dim, bf16=bf16, block_size=block,
        window=window, threads=1 + norm, scale=dim**-0.5, eps=1e-5, chunks=2 * norm, runs=3, qkv=_at(qkv),
        cosine=_at(cosine), sine=_at(sine), q_norm=_at(q_norm) if norm else None,
        k_norm=_at(k_norm) if norm else None, position=_at(position), table=_at(table), keys=_at(held),
        values=_at(held[0, 0, 1]), out=_at(out), queries=_at(queries), partial=_at(partial),
        qkv_stride=qkv[0].size, angle_stride=dim // 2, table_stride=pages, page_stride=held[0].size,
        slot_stride=held[0, 0].size, head_stride=dim), ())
    now = (held.astype(np.uint32) << 16).view(np.float32) if bf16 else held
    worst = 0.0
    for row, end in enumerate(position):
        seen = np.arange(max(0, end + 1 - window), end + 1)
        keys, values = now[table[row, seen // block], seen % block].astype(float).transpose(1, 2, 0, 3)
        query, key = (_turn(_rms(x, gain) if norm else x, cosine[row], sine[row])
                      for x, gain in ((qkv[row, :heads], q_norm), (qkv[row, heads:-kv_heads], k_norm)))
        if not np.allclose(keys[:, -1], key, 1e-2 if bf16 else 1e-5, 1e-5):
            return np.inf
        score = query.reshape(kv_heads, -1, dim) @ keys.transpose(0, 2, 1) * dim**-0.5
        weight = np.exp(score - score.max(-1, keepdims=True))
        expected = (weight / weight.sum(-1, keepdims=True) @ values).reshape(heads, dim)
        worst = max(worst, float(np.abs(out[row] - expected).max() / np.abs(values).max()))
    return worst


def _floats(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape).astype(np.float32)


def _rms(x: Array, gain: Array) -> NDArray[np.float64]:
    wide = x.astype(float)
    return wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-5) * gain


def _turn(x: Array, cosine: Array, sine: Array) -> NDArray[np.float64]:
    first, second = np.split(x.astype(float), 2, -1)
    return np.concatenate((first * cosine - second * sine, second * cosine + first * sine), -1)


def _at(array: Array) -> int:
    """The address of its memory, which the caller keeps."""
    return array.ctypes.data
