"""The CPU kernels in C: built by the machine's own compiler at first use, kept, called through ctypes.

Owns the library's making and its C structs. Knows no weight's origin and no block.
"""

import ctypes as c
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from ridgeline.base.config import cache_dir, compiler
from ridgeline.base.errors import ConfigError

_log = logging.getLogger(__name__)
_SOURCES = ("linear.c", "attention.c")
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
ISA = ("scalar", "AVX2", "AVX-512 VNNI")
Q4, Q8 = 4, 8
STORE, ADD, SILU_MUL = 0, 1, 2


class Matrix(c.Structure):
    """rl_matrix of linear.c."""

    _fields_ = [
        ("format", c.c_int32),
        ("planes", c.c_int32),
        ("n", c.c_int32),
        ("k", c.c_int32),
        ("tiles", c.c_void_p),
    ]


class Product(c.Structure):
    """rl_product of linear.c."""

    _fields_ = [
        ("rows", c.c_int32),
        ("epilogue", c.c_int32),
        ("threads", c.c_int32),
        ("eps", c.c_float),
        ("in_stride", c.c_int64),
        ("out_stride", c.c_int64),
        ("residual_stride", c.c_int64),
        ("input", c.c_void_p),
        ("norm", c.c_void_p),
        ("residual", c.c_void_p),
        ("out", c.c_void_p),
        ("codes", c.c_void_p),
        ("scales", c.c_void_p),
        ("sums", c.c_void_p),
    ]


class Attention(c.Structure):
    """rl_attention of attention.c."""

    _fields_ = [
        *(
            (name, c.c_int32)
            for name in (
                "rows",
                "heads",
                "kv_heads",
                "head_dim",
                "rotary_dim",
                "bf16",
                "block_size",
                "window",
                "threads",
            )
        ),
        ("scale", c.c_float),
        ("eps", c.c_float),
        ("chunks", c.c_int32),
        *(
            (name, c.c_void_p)
            for name in (
                "qkv",
                "cosine",
                "sine",
                "q_norm",
                "k_norm",
                "position",
                "table",
                "keys",
                "values",
                "out",
                "queries",
                "partial",
            )
        ),
        *(
            (name, c.c_int64)
            for name in (
                "qkv_stride",
                "angle_stride",
                "table_stride",
                "page_stride",
                "slot_stride",
                "head_stride",
            )
        ),
    ]


@dataclass(frozen=True, slots=True)
class Native:
    """The loaded library. isa: one of ISA."""

    library: c.CDLL
    isa: str


@lru_cache(maxsize=1)
def native() -> Native | None:
    """The kernels of this machine, built when they are not there yet; None, said once, without a compiler."""
    found = compiler() or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if found is None:
        _log.warning(
            "no C compiler found: packed weights run as float32 (install gcc or clang for the fast path)"
        )
        return None
    try:
        library = _load(_built(found))
    except (OSError, subprocess.SubprocessError, ConfigError) as error:
        _log.warning("the CPU kernels could not be built (%s): packed weights run as float32", error)
        return None
    return Native(library, ISA[library.rl_instruction_set()])


def _built(cc: str) -> Path:
    """The library's path; its name holds a hash of the sources, the flags, the compiler and the CPU."""
    root = files("ridgeline.kernels.cpu") / "src"
    texts = {name: (root / name).read_bytes() for name in ("common.h", "tiles.h", *_SOURCES)}
    said = subprocess.run([cc, "--version"], capture_output=True, check=True, timeout=60).stdout
    key = hashlib.sha256(repr((sorted(texts.items()), _FLAGS, said, _cpu())).encode()).hexdigest()[:20]
    folder = cache_dir() / "kernels"
    target = folder / f"cpu-{key}.so"
    if target.is_file():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        for name, text in texts.items():
            (Path(work) / name).write_bytes(text)
        out = Path(work) / "out.so"
        made = subprocess.run(
            [cc, *_FLAGS, *_SOURCES, "-o", str(out), "-lm"],
            cwd=work,
            capture_output=True,
            text=True,
            timeout=300,
        )
        if made.returncode:
            raise ConfigError(f"{cc} failed: {made.stderr.strip()[-500:]}")
        os.replace(out, target)
    return target


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return "\n".join(line for line in lines if line.startswith(("flags", "model name", "Features")))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


def _load(path: Path) -> c.CDLL:
    library = c.CDLL(str(path))
    library.rl_multiply.argtypes = [c.c_void_p, c.c_void_p]
    library.rl_attend.argtypes = [c.c_void_p]
    library.rl_pack.argtypes = [c.c_int, c.c_int, c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]
    library.rl_unpack.argtypes = [c.c_void_p, c.c_void_p, c.c_int, c.c_int, c.c_void_p, c.c_int]
    for name, kind in (("rl_matrix", Matrix), ("rl_product", Product), ("rl_attention", Attention)):
        size = getattr(library, f"{name}_bytes")()
        if size != c.sizeof(kind):
            raise ConfigError(f"{name} has {size} bytes in C and {c.sizeof(kind)} here")
    return library
