"""The CPU kernels in C, called through ctypes: built, checked and kept by build.py at first use.

Owns which library this process uses. Knows no weight's origin and no block.
"""

import ctypes as c
import logging
import shutil
import subprocess
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.config import cache_dir, compiler
from ridgeline.base.errors import ConfigError
from ridgeline.kernels.cpu.build import built
from ridgeline.kernels.cpu.structs import ATTEND, MULTIPLY, Attention, Call, Matrix, Product
from ridgeline.kernels.cpu.tape import Tape

_log = logging.getLogger(__name__)
ISA = ("scalar", "AVX2", "AVX-512 VNNI")


class Native:
    """The loaded library. isa: one of ISA. A tape that records takes every call that its thread makes."""

    def __init__(self, library: c.CDLL, isa: str) -> None:
        self._library = library
        self.isa = isa
        self._thread = threading.local()  # two engines of a process must not record each other

    @property
    def tape(self) -> Tape | None:
        """What records this thread's calls."""
        return getattr(self._thread, "tape", None)

    @tape.setter
    def tape(self, tape: Tape | None) -> None:
        self._thread.tape = tape

    def multiply(self, matrix: Matrix, product: Product, keep: Sequence[object]) -> None:
        """rl_multiply. keep: what owns the memory that the product points to."""
        self._library.rl_multiply(c.byref(matrix), c.byref(product))
        if self.tape is not None:
            self.tape.add(MULTIPLY, matrix, product, keep)

    def attend(self, attention: Attention, keep: Sequence[object]) -> None:
        """rl_attend."""
        self._library.rl_attend(c.byref(attention))
        if self.tape is not None:
            self.tape.add(ATTEND, None, attention, keep)

    def run(self, tape: Tape, *, counts: NDArray[np.int64], longest: int) -> None:
        """rl_run: a recording's calls for sequences with so many tokens each, the last position of any being
        `longest`."""
        chunks = tape.chunks(counts, longest)
        self._library.rl_run(tape.calls(), len(tape), int(counts.sum()), chunks, tape.threads)

    def pack(self, matrix: Matrix, code: int, scale: int, low: int) -> None:
        """rl_pack: fill the matrix's tiles. code: address of int8 [n, k]; scale, low: of fp16 [n, k / 32]."""
        self._library.rl_pack(matrix.format, matrix.n, matrix.k, code, scale, low, matrix.tiles)

    def rows(self, matrix: Matrix, ids: int, count: int, out: int) -> None:
        """rl_rows: `count` rows as numbers. ids: address of int64 [count]; out: of float32 [count, k]."""
        self._library.rl_rows(c.byref(matrix), ids, count, out)

    def room(self, rows: int) -> int:
        """Rows to make room for: a recorded call serves every number of rows up to the tape's."""
        return rows if self.tape is None else self.tape.max_rows


def native() -> Native | None:
    """The kernels of this machine, built when they are not there yet; None where there can be none."""
    found = _find()
    return found if isinstance(found, Native) else None


def why_none() -> str:
    """The reason, with the change that would help, when `native` gives None; else ""."""
    found = _find()
    return found if isinstance(found, str) else ""


@lru_cache(maxsize=1)
def _find() -> Native | str:
    why = "no C compiler for the packed kernels: install gcc or clang for speed"
    try:
        if cc := compiler() or _installed():
            return load(built(cc, cache_dir() / "kernels"))
    except (OSError, subprocess.SubprocessError, ConfigError) as error:
        why = f"the packed kernels cannot be used: {error}"
    _log.warning("%s; quantized weights run as float32", why)
    return why


def _installed() -> list[str]:
    found = (shutil.which(name) for name in ("cc", "gcc", "clang"))
    return [path for path in found if path][:1]


def load(path: Path) -> Native:
    """A built library. OSError when it cannot be loaded, ConfigError when its structs are not these."""
    library = c.CDLL(str(path))
    library.rl_multiply.argtypes = [c.c_void_p, c.c_void_p]
    library.rl_attend.argtypes = [c.c_void_p]
    library.rl_run.argtypes = [c.c_void_p, c.c_int, c.c_int, c.c_int, c.c_int]
    library.rl_pack.argtypes = [c.c_int, c.c_int, c.c_int, c.c_void_p, c.c_void_p, c.c_void_p, c.c_void_p]
    library.rl_rows.argtypes = [c.c_void_p, c.c_void_p, c.c_int, c.c_void_p]
    for kind in (Matrix, Product, Attention, Call):
        name = f"rl_{kind.__name__.lower()}"
        size = getattr(library, f"{name}_bytes")()
        if size != c.sizeof(kind):
            raise ConfigError(f"{name} has {size} bytes in C and {c.sizeof(kind)} here")
    return Native(library, ISA[library.rl_instruction_set()])
