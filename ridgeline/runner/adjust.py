"""What a request changes in its logits before sampling: logit_bias, penalties, and stop tokens kept out by
min_tokens.

Keeps the text that penalties need, for the rows that ask for them only, and appends the tokens sampled here
by itself, on the device. Knows no temperature and no filter.

Legend: S rows of a step, V vocabulary, C places of texts, L tokens of a text.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.schedule.plan import RowStart

MAX_BIAS = 100.0  # OpenAI's range


@dataclass(slots=True, kw_only=True)
class _Row:
    """What one row changes.

    bias [n] is added at bias_ids [n]; stop_ids stay out while position < stops_from. place: of the text, -1
    without penalties (repetition, presence, frequency). uncounted: position of the last token sampled here,
    -1 when counted.
    """

    bias_ids: Tensor
    bias: Tensor
    stop_ids: Tensor
    stops_from: int
    place: int
    repetition: float
    presence: float
    frequency: float
    uncounted: int = -1


class Adjustments:
    """The adjustments of all runner rows."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._rows: dict[int, _Row] = {}
        self._free: list[int] = []
        self._text_CL = torch.zeros(0, 0, dtype=torch.long, device=device)
        self._counts_CV = torch.zeros(0, vocab_size, dtype=torch.int32, device=device)  # of output tokens

    @property
    def num_places(self) -> int:
        """Texts there is memory for: grows to the most rows that ever had penalties at once."""
        return len(self._counts_CV)

    def start(self, start: RowStart) -> None:
        """A request takes a row, with what is known of its text."""
        before, params = self._rows.pop(start.row, None), start.params
        if before is not None and before.place >= 0:
            self._free.append(before.place)
        if not (params.needs_history or params.logit_bias or params.min_tokens):
            return
        bias = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32, device=self._device)
        self._rows[start.row] = _Row(
            bias_ids=torch.tensor(list(params.logit_bias), dtype=torch.long, device=self._device),
            bias=bias.clamp_(-MAX_BIAS, MAX_BIAS),
            stop_ids=torch.tensor(start.stop_token_ids, dtype=torch.long, device=self._device),
            stops_from=len(start.prompt) + params.min_tokens,
            place=self._keep_text(start) if params.needs_history else -1,
            repetition=params.repetition_penalty, presence=params.presence_penalty,
            frequency=params.frequency_penalty)

    def apply(self, logits_SV: Tensor, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> Tensor:
        """The rows' adjusted logits; the given ones are left as they are, and returned when nothing
        changes."""
        asked = [(i, self._rows[row]) for i, row in enumerate(rows.tolist()) if row in self._rows]
        if not asked:
            return logits_SV
        logits_SV = logits_SV.clone()
        for i, row in asked:
            position = int(positions[i])
            logits_SV[i, row.bias_ids] += row.bias
            if row.place >= 0:
                self._penalize(logits_SV[i], row, position)
            if position < row.stops_from:
                logits_SV[i, row.stop_ids] = -torch.inf
        return logits_SV

    def record(self, tokens_S: Tensor, rows: NDArray[np.int64], positions: NDArray[np.int64]) -> None:
        """Tokens were sampled. They count from the next position on: sampling one again changes nothing."""
        for i, number in enumerate(rows.tolist()):
            row = self._rows.get(number)
            if row is not None and row.place >= 0:
                row.uncounted = int(positions[i])
                self._widen(row.uncounted + 1)
                self._text_CL[row.place, row.uncounted] = tokens_S[i]

    def extend(self, number: int, position: int, tokens: list[int]) -> None:
        """A row's text goes on with output tokens from a position on that were not sampled here."""
        row = self._rows.get(number)
        if row is None or row.place < 0:
            return
        self._count(row, position)
        self._widen(position + len(tokens))
        ids_L = torch.tensor(tokens, dtype=torch.long, device=self._device)
        self._text_CL[row.place, position : position + len(tokens)] = ids_L
        self._counts_CV[row.place] += torch.bincount(ids_L, minlength=self._counts_CV.shape[1]).int()

    def _count(self, row: _Row, position: int) -> None:
        """The last token sampled counts for positions behind it."""
        if 0 <= row.uncounted < position:
            last_1 = self._text_CL[row.place, row.uncounted : row.uncounted + 1]
            self._counts_CV[row.place, last_1] += 1
            row.uncounted = -1

    def _penalize(self, logits_V: Tensor, row: _Row, position: int) -> None:
        """In place. Repetition over prompt and output (Keskar et al. 2019, CTRL, section 4.1); presence and
        frequency over the output, as in OpenAI's API. A token that occurs twice is written twice, with the
        same value."""
        self._count(row, position)
        counts_V = self._counts_CV[row.place]
        ids_L = self._text_CL[row.place, :position]
        logits_L, counts_L = logits_V[ids_L], counts_V[ids_L]
        logits_L = torch.where(logits_L > 0, logits_L / row.repetition, logits_L * row.repetition)
        logits_V[ids_L] = logits_L - row.frequency * counts_L - row.presence * (counts_L > 0)

    def _keep_text(self, start: RowStart) -> int:
        """A place that holds the text so far."""
        have, vocab_size = self._counts_CV.shape
        if not self._free:
            more = max(4, have)
            self._counts_CV = torch.cat([self._counts_CV, self._counts_CV.new_zeros(more, vocab_size)])
            self._text_CL = torch.cat([self._text_CL, self._text_CL.new_zeros(more, self._text_CL.shape[1])])
            self._free = list(range(have, have + more))
        place, output = self._free.pop(), torch.from_numpy(start.output.astype(np.int64))
        text = torch.cat([torch.from_numpy(start.prompt.astype(np.int64)), output])
        self._widen(len(text))
        self._text_CL[place, : len(text)] = text.to(self._device)
        self._counts_CV[place] = torch.bincount(output, minlength=vocab_size).to(self._counts_CV)
        return place

    def _widen(self, num_tokens: int) -> None:
        have = self._text_CL.shape[1]
        if num_tokens > have:
            missing = max(256, num_tokens, 2 * have) - have
            self._text_CL = torch.nn.functional.pad(self._text_CL, (0, missing))
