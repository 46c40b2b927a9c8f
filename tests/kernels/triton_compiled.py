"""Compiles a kernel for sm_90 without a GPU and says what came out."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
_INT32 = {"table_ptr", "lens_ptr", "skip_ptr", "begin_ptr", "share_ptr", "work_ptr",
          "total_ptr", "lock_ptr"}
_FLOAT32 = {"cos_ptr", "sin_ptr", "part_o", "part_ml", "part_ptr"}
_FLOATS = {"eps", "scale", "k_scale", "v_scale", "top"}
# integers that nobody promises to be multiples of 16
_ODD = {"M", "num_rows", "window", "prefix_slots", "row_slots"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """local_bytes: of stack a thread, where registers spill to."""

    ptx: str
    registers: int
    local_bytes: int
    shared_bytes: int


def compile_for_hopper(kernel: Any, folder: Path, *, constants: dict[str, object], descriptors: dict[str,
                                                                                                     str],
                       types: Mapping[str, str] = MappingProxyType({}), **options: object) -> Compiled:
    """constants: the constexpr arguments. descriptors: argument -> "bf16[64,64]". Pointers are to bf16 unless
    `types` (argument -> "*fp32") or the kernel's names say otherwise."""
    names = kernel.arg_names
    signature = {name: types.get(name) or _type(name, descriptors, constants) for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names)
               if (signature[name] == "i32" and name not in _ODD) or signature[name].startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, attrs=aligned,
                       constexprs={(names.index(name),): value for name, value in constants.items()})
    made = triton.compile(source, target=HOPPER, options=options)
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(made.asm["cubin"])
    said = subprocess.run([triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin],
                          capture_output=True,
                          text=True, check=True, timeout=60).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return Compiled(ptx=made.asm["ptx"], registers=numbers["REG"], shared_bytes=made.metadata.shared,
                    local_bytes=numbers["STACK"] + numbers["LOCAL"])


def _type(name: str, descriptors: dict[str, str], constants: dict[str, object]) -> str:
    if name in constants:
        return "constexpr"
    if name in descriptors:
        return f"tensordesc<{descriptors[name]}>"
    if name in _INT32:
        return "*i32"
    if name in _FLOAT32:
        return "*fp32"
    if name.endswith("_ptr"):
        return "*bf16"
    return "fp32" if name in _FLOATS else "i32"
