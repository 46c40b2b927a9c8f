"""Run as a process of its own: kernels that are missing, compiled by another, then found on disk."""

import json
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from time import sleep

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ridgeline.runner import ahead


class Memory:
    """Stands for a tensor, so that torch need not be imported."""

    dtype = "bfloat16"

    @staticmethod
    def data_ptr() -> int:
        return 0

    @staticmethod
    def ptr_range() -> int:
        return 0


class NoGpu:
    """A Hopper GPU that nothing can be launched on."""

    def get_current_device(self) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_stream(self, device: int) -> int:
        return 0


def found() -> int:
    return len(list(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin")))


def main() -> None:
    driver.set_active(NoGpu())  # type: ignore[arg-type]
    ahead._leave_doors_shut()
    kernels, x = import_module("ridgeline.kernels.decode_linear.triton"), Memory()
    with ahead.compiled_meanwhile(1) as jobs:
        with suppress(AttributeError):  # compiled here: the first one. There is no launcher
            kernels.silu_mul_kernel[(4, 1)](x, x, 64, 32, 64)
        for _ in range(2):
            kernels.silu_mul_kernel[(4, 1)](x, x, 63, 31, 64)
        while found() < 2:  # compiled while others are still to come
            sleep(0.01)
        kernels.rms_norm_kernel[(4,)](x, x, x, 1e-5, 64, 64, 63, 0, num_warps=1)  # no tile of 63: fails
        kernels.rms_norm_kernel[(4,)](x, x, x, 1e-5, 64, 64, 64, 0, num_warps=1)
    after, (silu, _, rms) = found(), jobs
    with ahead.compiled_meanwhile(2) as missing:
        for job in (silu, rms):
            getattr(import_module(job.module), job.name).preload(job.arguments)
    names = [job.name for job in jobs]
    print(json.dumps({"jobs": names, "missing": len(missing), "found": [after, found()]}))


if __name__ == "__main__":
    main()
