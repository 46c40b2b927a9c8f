"""Host arrays on their way to the device, and tensors on their way back, without anyone waiting.

A copy to a GPU starts in pinned memory of its own, which torch's allocator gives out again only when the copy
is done; so nothing that is on its way is ever overwritten.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def stage(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """The array as a tensor on the device, contiguous as the array has to be; on a CPU the same memory."""
    assert array.flags.c_contiguous
    host = torch.from_numpy(array)
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)



def retrieved(x: Tensor) -> Tensor:
    """A copy on the host, whole once the stream has come so far."""
    host = torch.empty(x.shape, dtype=x.dtype, pin_memory=x.device.type == "cuda")
    return host.copy_(x, non_blocking=True)
