"""What the Triton kernels need of a device, and what they may ask of it. Imports Triton only when asked
to."""

from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from ridgeline.base.errors import ConfigError

_MIN_CAPABILITY = (8, 0)  # bfloat16 on the tensor cores
_HOPPER = (9, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A device that runs the kernels. processors: streaming multiprocessors.

    interpret: there is no GPU; Triton's interpreter runs the kernels on the CPU, for tests.
    programmatic: kernels start while the one before them drains (programmatic dependent launch).
    descriptors: tiles come by the tensor memory accelerator. max_rows:
    most rows of a decode step, for which kernels keep locks. apart: not a bit of a row may hang on others.
    """

    device: torch.device
    name: str
    processors: int
    interpret: bool
    programmatic: bool
    max_rows: int = 1024
    apart: bool = False
    descriptors: bool = False

    def launch_options(self) -> dict[str, bool]:
        """Keyword arguments of every launch."""
        return {"launch_pdl": True} if self.programmatic else {}


def why_none(device: torch.device) -> str:
    """Why the Triton kernels cannot run on `device`; "" when they can."""
    if find_spec("triton") is None:
        return "Triton is not installed (pip install 'ridgeline[gpu]')"
    if device.type == "cpu":
        import triton

        return "" if triton.knobs.runtime.interpret else "the device is a CPU"
    if device.type != "cuda" or not torch.cuda.is_available():
        return "there is no CUDA GPU"
    if torch.version.hip is not None:
        return "ROCm GPUs are not supported"
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        return f"the GPU's compute capability {capability[0]}.{capability[1]} is below 8.0"
    return ""


def open_gpu(device: torch.device, *, programmatic: bool = True, max_rows: int = 1024) -> Gpu:
    """The device for the kernels; ConfigError when `why_none`. programmatic: where the GPU can."""
    reason = why_none(device)
    if reason:
        raise ConfigError(f"no GPU kernels: {reason}")
    if device.type == "cpu":
        return Gpu(device=device, name="interpreter", processors=2, interpret=True, programmatic=False,
                   max_rows=max_rows, descriptors=True)
    able = torch.cuda.get_device_capability(device) >= _HOPPER
    about = torch.cuda.get_device_properties(device)
    return Gpu(device=device, name=about.name, processors=about.multi_processor_count, interpret=False,
               programmatic=programmatic and able, max_rows=max_rows, descriptors=able)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << (n - 1).bit_length()


def pointer(tensor: Tensor | None, unused: Tensor) -> Tensor:
    """A pointer that the kernel does not read stands in for what is absent."""
    return unused if tensor is None else tensor
