"""What a GPU samples with: the requests of all runner rows in tensors, and one token a row in two launches.

Owns which places for texts and biases are free. Nothing is read back; a step's graph can hold it.

Legend: S rows of a step, V vocabulary, K best.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.sampling import Allowed, Requests, Sampling, ask_of, bias_of, marks_of
from ridgeline.runner.rows import Rows
from ridgeline.runner.stage import retrieved, stage
from ridgeline.schedule.plan import RowLogprobs, RowStart


class _Held:
    """Numbered places of which each row holds at most one."""

    def __init__(self, num: int) -> None:
        self._free = list(range(num))
        self._held: dict[int, int] = {}

    def take(self, row: int, wanted: bool) -> int:
        """The row gives back what it held; its new place, -1 when it wants none."""
        if row in self._held:
            self._free.append(self._held.pop(row))
        if wanted:
            self._held[row] = self._free.pop()
        return self.of(row)

    def of(self, row: int) -> int:
        """The row's place, -1 for none."""
        return self._held.get(row, -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities on their way to the host. asked: (position of the step or prompt, row of the
    tensors, top k)."""

    ids_SK: Tensor
    values_SK: Tensor
    ranks_S: Tensor
    asked: tuple[tuple[int, int, int], ...]

    def read(self) -> dict[int, list[RowLogprobs]]:
        """By position, once the copies have arrived."""
        ids, values, ranks = (x.numpy() for x in (self.ids_SK, self.values_SK, self.ranks_S))
        return {
            n: [
                RowLogprobs(
                    token_ids=ids[i, : k + 1].astype(np.int32),
                    logprobs=values[i, : k + 1].copy(),
                    rank=int(ranks[i]),
                )
            ]
            for n, i, k in self.asked
        }


class Chooser:
    """Samples for all runner rows."""

    def __init__(self, gpu: Gpu, rows: Rows, *, num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._sampling = Sampling(gpu, max_rows=num_rows, vocab_size=vocab_size)
        self._requests = Requests.room(
            rows.last_token, vocab_size=vocab_size, marks=num_rows, biases=num_rows
        )
        self._marks, self._biases = _Held(num_rows), _Held(num_rows)
        self._plain = np.ones(num_rows, np.bool_)  # rows that are greedy and change nothing
        self._tops = np.full(num_rows, -1, np.int64)  # log-probabilities asked for

    def start(self, start: RowStart) -> None:
        """A request takes a row (again after a preemption, with what is known of its text by then)."""
        row, params, device = start.row, start.params, self._requests.last_token.device
        self._tops[row] = -1 if params.logprobs is None else params.logprobs
        marked = params.needs_history or params.min_tokens > 0
        plain = params.greedy and not marked and not params.logit_bias
        if plain and self._plain[row]:
            return
        self._plain[row] = plain
        marks = self._marks.take(row, marked)
        bias = self._biases.take(row, bool(params.logit_bias))
        if marks >= 0:
            text = marks_of(
                self._vocab_size, start.prompt.tolist(), start.output.tolist(), start.stop_token_ids
            )
            self._requests.marks_CV[marks] = stage(text.numpy(), device)
        if bias >= 0:
            values = bias_of(self._vocab_size, params.logit_bias)
            self._requests.bias_CV[bias] = stage(values.numpy(), device)
        ask = ask_of(
            params, start.seed, self._vocab_size, marks=marks, bias=bias, num_prompt=len(start.prompt)
        )
        self._requests.write(row, ask)

    def choose(self, logits_SV: Tensor, rows_S: Tensor, lens_S: Tensor, out_2S: Tensor,
               allowed: Allowed | None = None) -> None:
        """Tokens, and 1 where a row failed, to out_2S int32; tokens stay for the next step. rows_S, lens_S
        int32: runner rows, tokens known of each (0: idle). allowed: by the rows' grammars. A row may stand
        here more than once, at several positions, if nothing that it asks for hangs on its text so far; what
        stays of it means nothing then."""
        self._sampling(logits_SV, rows_S, lens_S, self._requests, out_2S, allowed)

    def extend(self, row: int, tokens: list[int]) -> None:
        """The row's text goes on with these without sampling."""
        if (place := self._marks.of(row)) >= 0:
            marks_V = self._requests.marks_CV[place]
            ids = stage(np.array(tokens, np.int64), marks_V.device)
            marks_V.index_add_(0, ids, torch.ones_like(ids, dtype=torch.int32))

    def scores_any(self, rows: np.ndarray) -> bool:
        """Whether one of these runner rows asked for log-probabilities."""
        return bool(self._tops[rows].max(initial=-1) >= 0)

    def scores(
        self, logits_SV: Tensor, lens_S: Tensor, tokens_S: Tensor, rows: np.ndarray, positions: np.ndarray,
        at: np.ndarray | None = None,
    ) -> Scores | None:  # fmt: skip
        """Log-probabilities of the rows (runner rows, at these positions of the step) that asked for them.
        at: where each stands in the tensors, None for one after another."""
        if not self.scores_any(rows):
            return None
        tops, at = self._tops[rows], np.arange(len(rows)) if at is None else at
        asked = tuple((int(positions[i]), int(at[i]), int(tops[i])) for i in np.flatnonzero(tops >= 0))
        return self._scored(logits_SV, lens_S, tokens_S, asked)

    def taken(self, logits_SV: Tensor, tokens_S: Tensor, tops: int) -> Scores:
        """Log-probabilities of these tokens, by row of the logits."""
        lens_S = torch.ones(len(tokens_S), dtype=torch.int32, device=tokens_S.device)
        asked = tuple((i, i, tops) for i in range(len(lens_S)))
        return self._scored(logits_SV, lens_S, tokens_S.int(), asked)

    def _scored(
        self, logits_SV: Tensor, lens_S: Tensor, tokens_S: Tensor, asked: tuple[tuple[int, int, int], ...]
    ) -> Scores:
        found = self._sampling.logprobs(logits_SV, lens_S, tokens_S, max(tops for *_, tops in asked))
        ids, values, ranks = (retrieved(x) for x in found)
        return Scores(ids_SK=ids, values_SK=values, ranks_S=ranks, asked=asked)
