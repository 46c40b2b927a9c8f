"""The seconds of steps as an engine runs them, fast enough for a simulator: a plan's rows go in, and runs of
decodes are priced many steps at once.

Legend: M linear forms of a stage (twice its lines, its collectives, one that is plain), S sums, K steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.closed import Shape, kv_bytes
from ridgeline.ledger.deployment import Deployment, StageForm
from ridgeline.ledger.efficiency import Calibration
from ridgeline.ledger.sums import StepShape
from ridgeline.spec.cost import CONTEXT, FEW_KEYS, FEW_PAIRS, PAIRS, PROJECTS, TOKENS, expected_distinct

_LEVELS = 16  # numbers of tokens in each doubling at which a calibration's factors are drawn


class StepSeconds(Protocol):
    """What a simulated executor asks. Both ways give the same number for the same step, to the last bit."""

    def __call__(self, step: StepShape) -> float:
        """Seconds of a step."""
        ...

    def decodes(self, start: NDArray[Any], num_steps: int) -> NDArray[np.float64]:
        """Seconds [K] of num_steps steps one after another, in each of which all rows decode one token;
        start [R]: tokens before the first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decodes:
    """Steps of so many decodes on one stage: what is the same in all of them [M], and what a key adds [W, M],
    by window (None: full attention). share: of the rows that are in the stage at once."""

    form: StageForm
    share: float
    fixed_M: NDArray[np.float64]
    windows: tuple[int | None, ...]
    key_WM: Sequence[NDArray[np.float64]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NominalSteps:
    """StepSeconds by the closed forms (`ledger.closed`): 2P a token and 4Ld a pair at flops_per_s, or s_w P
    and every cached key at bytes_per_s, whichever takes longer."""

    shape: Shape
    weight_bytes: float
    cache_bytes: float
    flops_per_s: float
    bytes_per_s: float

    def __call__(self, step: StepShape) -> float:
        start, count = np.asarray(step.start, np.float64), np.asarray(step.count, np.float64)
        pairs = float((start * count + count**2 / 2).sum())
        return float(self._seconds(float(count.sum()), pairs, float((start + count).sum())))

    def decodes(self, start: NDArray[Any], num_steps: int) -> NDArray[np.float64]:
        rows, keys_K = len(start), float(start.sum()) + np.arange(num_steps) * len(start)
        seconds_K: NDArray[np.float64] = self._seconds(rows, keys_K + rows / 2, keys_K + rows)
        return seconds_K

    def _seconds(self, tokens: float, pairs: Any, keys: Any) -> Any:
        flops = 2 * self.shape.num_params * tokens + 4 * self.shape.num_layers * self.shape.width * pairs
        moved = self.weight_bytes * self.shape.num_params + kv_bytes(self.shape, 1, self.cache_bytes) * keys
        return np.maximum(flops / self.flops_per_s, moved / self.bytes_per_s)


class Steps:
    """StepSeconds of a deployment's replica, as floors or as estimates.

    A replica's groups share the rows evenly, and its pipeline stages take them in turns: a step lasts until
    the last of them is through.
    """

    def __init__(self, deployment: Deployment, *, estimate: bool,
                 calibration: Calibration | None = None) -> None:
        """calibration: factors by the tokens of a step, instead of the deployment's; of estimates only."""
        assert estimate or calibration is None, "a floor has no factors"
        self._deployment, self._estimate, self._calibration = deployment, estimate, calibration
        self._layout = deployment.layout
        self._forms: dict[tuple[int, bool], tuple[float, tuple[StageForm, ...]]] = {}
        self._decodes: dict[int, tuple[float, int, list[_Decodes]]] = {}

    def __call__(self, step: StepShape) -> float:
        count, num_sampled = np.asarray(step.count), step.num_sampled
        num_tokens = int(np.add.reduce(count))
        if num_sampled == len(count) == num_tokens:
            return float(self.decodes(np.asarray(step.start), 1)[0])
        share, turns = self._share(len(count))
        beside_s, forms = self._forms_at(num_tokens * share, prompts=num_sampled < num_tokens)
        seconds = []
        for form in forms:
            sums_S = _scaled(form, form.summer.vector(step.start, count, num_sampled), share)
            seconds.append(max(form.seconds(sums_S), form.host_s))
        return max(sum(seconds), turns * max(seconds)) + beside_s

    def decodes(self, start: NDArray[Any], num_steps: int) -> NDArray[np.float64]:
        num_rows = len(start)
        if num_rows not in self._decodes:
            share, turns = self._share(num_rows)
            beside_s, forms = self._forms_at(num_rows * share, prompts=False)
            self._decodes[num_rows] = beside_s, turns, [_decodes(form, num_rows, share) for form in forms]
        beside_s, turns, stages = self._decodes[num_rows]
        keys: dict[int | None, NDArray[np.float64]] = {}
        total_PK = []
        for one in stages:
            y_KM = one.fixed_M if one.windows else np.broadcast_to(one.fixed_M, (num_steps, len(one.fixed_M)))
            for window, key_M in zip(one.windows, one.key_WM, strict=True):
                if window not in keys:
                    keys[window] = one.share * _keys(start, num_steps, window)[:, None]
                y_KM = y_KM + keys[window] * key_M
            total_PK.append(one.form.total(y_KM))
        if len(total_PK) == 1:
            return total_PK[0] + beside_s
        return np.maximum(np.sum(total_PK, 0), turns * np.max(total_PK, 0)) + beside_s

    def _share(self, num_rows: int) -> tuple[float, int]:
        """(share of a step's rows that are in a stage at once, turns that the stages take)."""
        turns = max(min(self._layout.pp, num_rows), 1)
        return 1.0 / (turns * self._layout.groups), turns

    def _forms_at(self, tokens: float, prompts: bool) -> tuple[float, tuple[StageForm, ...]]:
        """(seconds beside the stages, the stages' forms) of steps of so many tokens."""
        calibration = self._calibration
        level = 0 if calibration is None else max(round(np.log2(max(tokens, 1.0)) * _LEVELS), 0)
        if (level, prompts) not in self._forms:
            deployment = self._deployment
            if calibration is not None:
                levels = calibration.prompts if prompts else calibration.decodes
                deployment = replace(deployment, efficiency=levels.at(2.0 ** (level / _LEVELS)))
            beside_s = deployment.efficiency.step_s if self._estimate else 0.0
            self._forms[level, prompts] = beside_s, deployment.forms(estimate=self._estimate)
        return self._forms[level, prompts]


def _scaled(form: StageForm, sums_S: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """The sums of a share of a step's rows."""
    if share == 1.0:
        return sums_S
    scaled_S = sums_S * share
    for i, (name, of) in enumerate(form.summer.terms):
        if isinstance(of, tuple):
            scaled_S[i] = expected_distinct(of, float(sums_S[1]) * share)
        elif i == 0 or name == PROJECTS:
            scaled_S[i] = sums_S[i]
    return scaled_S


def _decodes(form: StageForm, num_rows: int, share: float) -> _Decodes:
    terms = form.summer.terms
    assert terms[1] == (TOKENS, None)
    sums_S = form.summer.vector(np.zeros(num_rows, np.int64), np.ones(num_rows, np.int64), num_rows)
    columns: dict[int | None, list[int]] = {}
    for i, (name, of) in enumerate(terms):
        if name in (PAIRS, CONTEXT, FEW_PAIRS, FEW_KEYS):
            assert not isinstance(of, tuple)
            columns.setdefault(of, []).append(i)
            sums_S[i] = 0.0
    key_WM = [form.rows_MS[:, at].sum(1) for at in columns.values()]
    return _Decodes(form=form, share=share, fixed_M=form.rows_MS @ _scaled(form, sums_S, share),
                    windows=tuple(columns), key_WM=key_WM)


def _keys(start: NDArray[Any], num_steps: int, window: int | None) -> NDArray[np.float64]:
    """Keys [K] that all rows read in each step; exact, since they are whole numbers."""
    if window is None:
        first = int(np.add.reduce(start)) + len(start)
        return np.arange(first, first + num_steps * len(start), len(start), dtype=np.float64)
    ahead_K = np.arange(num_steps, dtype=np.int64)
    return np.minimum(start[None] + ahead_K[:, None], window - 1).sum(1).astype(np.float64) + len(start)
