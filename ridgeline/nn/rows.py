"""Rows of a stored tensor as torch tensors: plain formats by a view, ggml's blocks by the `gguf` library.

The library is imported when a quantized tensor is met. Legend: R rows, B bytes of a row, G blocks.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.errors import CheckpointError
from ridgeline.models.files.stored import FORMATS, StoredTensor

PLAIN = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16,
         "bfloat16": torch.bfloat16}
# the float16 scales of a block: (offset of the first in bytes, how many stand together)
SCALES = {"q4_0": (0, 1), "q4_1": (0, 2), "q5_0": (0, 1), "q5_1": (0, 2), "q8_0": (0, 1), "q2_k": (80, 2),
          "q3_k": (108, 1), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208, 1)}

BLOCKS = frozenset({*SCALES, "mxfp4"})  # kinds whose blocks are looked at here


def decode(tensor: StoredTensor, raw_RB: NDArray[np.uint8]) -> Tensor:
    """Some rows of a tensor, [R, *shape[1:]]: in the stored dtype when plain (a view), else float32.

    CheckpointError for a format that is no weight (integers, unknown quantizations).
    """
    shape = (raw_RB.shape[0], *tensor.shape[1:])
    if tensor.format in PLAIN:
        return torch.from_numpy(raw_RB).view(PLAIN[tensor.format]).view(shape)
    from gguf import quants
    name = tensor.format.upper()
    try:
        if tensor.format in BLOCKS:  # the general door works in groups of 16 rows, for half the speed
            blocks_GB = raw_RB.reshape(-1, FORMATS[tensor.format][1])
            return torch.from_numpy(getattr(quants, name).dequantize_blocks(blocks_GB)).view(shape)
        return torch.from_numpy(quants.dequantize(raw_RB, quants.GGMLQuantizationType[name])).view(shape)
    except (KeyError, NotImplementedError):
        raise CheckpointError(
            f"{tensor.file}: tensor {tensor.name} is stored as {tensor.format}, which is not read as "
            "a weight: use a checkpoint in F32, F16, BF16 or a GGUF quantization") from None


def finite_scales(kind: str, raw_RB: NDArray[np.uint8]) -> bool:
    """True when the scales of all blocks are finite, so that the weights are. kind: one of SCALES, or
    mxfp4."""
    blocks_GB = raw_RB.reshape(-1, FORMATS[kind][1])
    if kind == "mxfp4":
        return bool((blocks_GB[:, 0] < 255).all())
    offset, count = SCALES[kind]
    scales = np.ascontiguousarray(blocks_GB[:, offset:offset + 2 * count]).view(np.float16)
    return bool(np.isfinite(scales).all())


def joined_mxfp4(halves_RB: NDArray[np.uint8], scales_RG: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Rows of MXFP4 (OCP Microscaling Formats 1.0) that are stored as groups of 16 bytes, neighbours in the
    low and high half of each, beside their scales: as ggml's blocks of a scale and 16 bytes, whose high
    halves are the second half of the group."""
    codes = np.stack((halves_RB & 15, halves_RB >> 4), -1).reshape(*scales_RG.shape, 2, 16)
    return np.concatenate((scales_RG[..., None], codes[..., 0, :] | codes[..., 1, :] << 4), -1).reshape(
        len(scales_RG), -1)
