"""Run as a process of its own: kernels that are missing, compiled by others, then found in Triton's cache."""

import json
import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

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
    broken = ahead.Job(ahead.__name__, "nothing", "{}")
    with ahead.missing() as jobs:
        with suppress(AttributeError):  # compiled here, since nothing was slow before; there is no launcher
            kernels.silu_mul_kernel[(4, 1)](x, x, 64, 32, 64)
        for _ in range(2):
            kernels.silu_mul_kernel[(4, 1)](x, x, 63, 31, 64)
        kernels.rms_norm_kernel[(4,)](x, x, x, 1e-5, 64, 64, 64, 0, num_warps=1)
    first = found()
    ahead.compile_all([*jobs, broken], processes=1)
    after = found()
    for job in jobs:
        getattr(import_module(job.module), job.name).preload(job.arguments)
    print(json.dumps({"jobs": [job.name for job in jobs], "found": [first, after, found()]}))


if __name__ == "__main__":
    main()
