"""The floor of a step in seconds, fast enough to ask for at every step: equal layers are folded at load, and
a price is one small matrix product. `roofline.floors` is its slow twin with names."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.account import Account, Line
from ridgeline.ledger.sums import StepShape, Summer
from ridgeline.spec.cost import Term, expected_distinct
from ridgeline.spec.hardware import HardwareSpec


def coefficients(lines: Sequence[Line], terms: Sequence[Term], side: str) -> NDArray[np.float64]:
    """One side of the lines ("read", "written", "flops", "sent") as a matrix [L, S], all layers of each."""
    place = {term: i for i, term in enumerate(terms)}
    values_LS = np.zeros((len(lines), len(terms)))
    for i, line in enumerate(lines):
        for term, value in getattr(line, side):
            values_LS[i, place[term]] += value * line.count
    return values_LS


class Price:
    """price(step) -> the least seconds that one device needs for it. Legend: L lines, S sums.

    flops_per_s: the rate of the arithmetic in use. One device only: lines that send bytes belong to several.
    """

    def __init__(self, account: Account, device: HardwareSpec, *, flops_per_s: float) -> None:
        assert not any(line.sent for line in account.lines), "one device sends nothing"
        self._routers = account.layers_by_router()
        self._summer = Summer(account.windows, self._routers, few=account.few)
        self._num_lines = len(account.lines)
        read, written, flops = (coefficients(account.lines, self._summer.terms, side)
                                for side in ("read", "written", "flops"))
        self._read_S, self._written_S, self._flops_S = read.sum(0), written.sum(0), flops.sum(0)
        self._seconds_2L_S = np.concatenate([(read + written) / device.bytes_per_s, flops / flops_per_s])

    def __call__(self, step: StepShape) -> float:
        """The floor of a step, seconds."""
        sums = self._summer.vector(step.start, step.count, step.num_sampled)
        seconds: list[float] = self._seconds_2L_S.dot(sums).tolist()
        return sum(map(max, seconds[:self._num_lines], seconds[self._num_lines:]))

    def request(self, num_prompt: int, num_cached: int, num_output: int) -> float:
        """The floor of a request with the machine to itself, seconds: the prompt's tokens that were not
        cached in one step, then one step for each further token. 0 for a request without output."""
        if not num_output:
            return 0.0
        prompt_S = self._summer.vector([num_cached], [max(num_prompt - num_cached, 1)], 1)
        decodes_SN = self._summer.decodes(np.arange(num_prompt, num_prompt + num_output - 1))
        seconds = self._seconds_2L_S @ np.column_stack((prompt_S, decodes_SN))
        return float(np.maximum(seconds[:self._num_lines], seconds[self._num_lines:]).sum())

    def experts(self, num_tokens: int) -> float:
        """Distinct experts that a step of so many tokens is expected to read, over all layers."""
        return sum(layers * expected_distinct(router, num_tokens) for router, layers in self._routers.items())

    def moved(self, step: StepShape) -> tuple[float, float, float]:
        """(bytes read, bytes written, FLOPs) of a step."""
        sums = self._summer.vector(step.start, step.count, step.num_sampled)
        return float(self._read_S @ sums), float(self._written_S @ sums), float(self._flops_S @ sums)
