"""Memory that a kernel works in: nobody reads it afterwards, so a recording's calls of one kind share it."""

import torch
from torch import Tensor

from ridgeline.kernels.cpu.native import Native


def workspace(native: Native, kind: int, num_bytes: int) -> Tensor:
    """uint8 [num_bytes]. kind: MULTIPLY or ATTEND. The call has to keep it alive."""
    tape = native.tape
    if tape is None:
        return torch.empty(num_bytes, dtype=torch.uint8)
    held = tape.shared.get(kind)
    if held is None or held.numel() < num_bytes:
        held = tape.shared[kind] = torch.empty(num_bytes, dtype=torch.uint8)
    return held
