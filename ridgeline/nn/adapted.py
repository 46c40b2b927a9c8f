"""Parts of a model that may have adapters: those of `linear`, with what a row's adapter adds.

Where no token of a step is touched, the very part runs that would run without adapters; on a CPU rows
without one have its bits in every step. Rows that an adapter touches take the unfused twin where something
that is not linear follows the product; on a GPU, where a step is touched as a whole, its other rows do too.

Legend: T tokens of a step, t those that are touched, K input features, N output features.
"""

from collections.abc import Sequence

from torch import Tensor

from ridgeline.adapters.stacked import AnySlots
from ridgeline.blocks.mlp.reference import gated
from ridgeline.blocks.norm_rope.reference import rms_norm
from ridgeline.blocks.parts import Linear, LinearAdd
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.linear import BlockParts


class AdaptedParts:
    """The parts of one block, whose weights' full names begin with `prefix`. See blocks.parts.Parts."""

    def __init__(self, inner: BlockParts, prefix: str, slots: AnySlots) -> None:
        self._inner = inner
        self._prefix = prefix
        self._slots = slots

    @property
    def gpu(self) -> Gpu | None:
        return self._inner.gpu

    @property
    def apart(self) -> bool:
        return self._inner.apart

    def linear(self, name: str) -> Linear:
        run, slots, seat = self._inner.linear(name), self._slots, self._seat(name)

        def adapted(x_TK: Tensor, prefill_from: int) -> Tensor:
            out_TN, touched = run(x_TK, prefill_from), slots.touched(seat)
            return out_TN if touched is None else touched.add(out_TN, touched.take(x_TK))

        return adapted

    def norm_linear(self, norm: str, name: str, eps: float) -> Linear:
        run, slots, seat = self._inner.norm_linear(norm, name, eps), self._slots, self._seat(name)
        norm_K = self.tensor(f"{norm}.weight")

        def adapted(x_TK: Tensor, prefill_from: int) -> Tensor:
            out_TN, touched = run(x_TK, prefill_from), slots.touched(seat)
            if touched is None:
                return out_TN
            return touched.add(out_TN, rms_norm(touched.take(x_TK), norm_K, eps))

        return adapted

    def gated_linear(self, norm: str, name: str, eps: float, activation: str) -> Linear:
        run, slots, seat = (
            self._inner.gated_linear(norm, name, eps, activation),
            self._slots,
            self._seat(name),
        )
        plain, norm_K = self._inner.norm_linear(norm, name, eps), self.tensor(f"{norm}.weight")

        def adapted(x_TK: Tensor, prefill_from: int) -> Tensor:
            touched = slots.touched(seat)
            if touched is None:
                return run(x_TK, prefill_from)
            x_tK = touched.take(x_TK)
            both_tN = touched.add_own(plain(x_tK, touched.num_decodes), rms_norm(x_tK, norm_K, eps))
            out_tN = gated(both_tN, activation)
            return out_tN if touched.everyone else touched.put(run(x_TK, prefill_from), out_tN)

        return adapted

    def linear_add(self, name: str, norm: str | None = None, eps: float = 0.0) -> LinearAdd:
        run, slots, seat = self._inner.linear_add(name, norm, eps), self._slots, self._seat(name)
        if norm is None:

            def adapted(x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
                out_TN, touched = run(x_TK, residual_TN, prefill_from), slots.touched(seat)
                return out_TN if touched is None else touched.add(out_TN, touched.take(x_TK))

            return adapted
        plain, norm_N = self._inner.linear(name), self.tensor(f"{norm}.weight")

        def normed(x_TK: Tensor, residual_TN: Tensor, prefill_from: int) -> Tensor:
            touched = slots.touched(seat)
            if touched is None:
                return run(x_TK, residual_TN, prefill_from)
            out_TN = touched.add(plain(x_TK, prefill_from), touched.take(x_TK))
            return rms_norm(out_TN, norm_N, eps).add_(residual_TN)

        return normed

    def experts(self, name: str) -> Sequence[Linear]:
        """As they are: experts take no adapters."""
        return self._inner.experts(name)

    def tensor(self, name: str) -> Tensor:
        return self._inner.tensor(name)

    def _seat(self, name: str) -> str:
        seat = f"{self._prefix}{name}.weight"
        self._slots.seats.add(seat)
        return seat
