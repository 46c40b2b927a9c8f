"""Rotation: a RopeSpec made ready, giving each step's cosines and sines. Knows no cache.

The kinds that scale by a length ("dynamic", "longrope") take it, for a token at position p, as reach =
max(length of its prompt, p + 1). That depends on nothing but the request, so the cached keys of a request
are the same whole or in chunks, alone or batched, and after a preemption. It is what a whole forward over
the prompt uses and, for the tokens after it, what generation with a cache uses in transformers. Two
differences are meant: a length seen earlier leaves no trace (transformers keeps the largest base of
"dynamic" that it has seen), and when a generated text crosses "longrope"'s original length its earlier keys
stay as they are (transformers' Phi-3 recomputes them).
"""

import torch
from torch import Tensor

from ridgeline.blocks.norm_rope.reference import (
    attention_factor,
    dynamic_theta,
    frequencies,
    pair_exponents,
)
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.kernels.step_inputs import angles


class Rotation:
    """Angles of one RopeSpec on one device. kernel: by the GPU's kernel, where no length scales them. turns
    [R / 2]: logarithms of what the frequencies are multiplied by, None for none; without the kernel."""

    def __init__(self, spec: RopeSpec, device: torch.device, *, kernel: bool = False,
                 turns: Tensor | None = None) -> None:
        self._spec = spec
        self._kernel = kernel and spec.kind not in ("longrope", "dynamic")
        self._factor = attention_factor(spec)
        original = spec.original_max_position or spec.max_position
        self._plain = frequencies(spec).to(device)
        self._long = frequencies(spec, original + 1).to(device) if spec.kind == "longrope" else None
        self._original = original
        self._pairs = pair_exponents(spec).to(device)
        self._faster = None if turns is None else turns.exp()

    def tables(self, positions_T: Tensor, reach_T: Tensor) -> tuple[Tensor, Tensor]:
        """cos_TR and sin_TR for `rotate`, float32; the first half of the sines is negated."""
        if self._kernel:
            return angles(positions_T, self._plain, self._factor)
        speeds = self._frequencies(reach_T)
        turned = positions_T.float()[:, None] * (speeds if self._faster is None else speeds * self._faster)
        cos, sin = turned.cos() * self._factor, turned.sin() * self._factor
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def _frequencies(self, reach_T: Tensor) -> Tensor:
        """[R / 2], or [T, R / 2] where tokens differ."""
        if self._long is not None:
            return torch.where((reach_T > self._original)[:, None], self._long, self._plain)
        if self._spec.kind == "dynamic":
            return 1.0 / dynamic_theta(self._spec, reach_T.double()).float()[:, None] ** self._pairs
        return self._plain
