"""Log-probabilities of the model's own distribution, before temperature, penalties and bias. Only the best
few leave.

Legend: S positions, V vocabulary, K best.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.nn.build import Model
from ridgeline.runner.order import in_blocks, top
from ridgeline.runner.rows import Rows
from ridgeline.runner.stage import stage
from ridgeline.schedule.plan import RowLogprobs, StepPlan

SLICE_BYTES = 32 << 20  # float32 logits of prompt positions held at once


def top_logprobs(logits_SV: Tensor, tokens_S: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is reported of each position: ids int64 [S, 1 + K], values fp32 [S, 1 + K], ranks int64 [S].

    logits_SV: fp32, as the model gave them. tokens_S: the tokens taken, int64 [S]; they come first, then the
    K = min(k, V) best, equal ones by the lower id. values: natural logarithms. A rank counts the tokens that
    are strictly more probable: 0 is the best.
    """
    logits_SBX = in_blocks(logits_SV)
    max_SB = logits_SBX.amax(2)
    best_S1, k = max_SB.amax(1, keepdim=True), min(k, logits_SV.shape[1])
    # block by block, because one long sum is dealt to threads and then hangs on their number and on S
    total_S1 = in_blocks((logits_SV - best_S1).exp_(), 0.0).sum(2, dtype=torch.float64).sum(1, keepdim=True)
    taken_S1 = logits_SV.gather(1, tokens_S.unsqueeze(1))
    ranks_S = (logits_SV > taken_S1).sum(1)
    values, ids = top(logits_SBX, max_SB, k) if k > 0 else (taken_S1[:, :0], tokens_S.unsqueeze(1)[:, :0])
    values, ids = torch.cat([taken_S1, values], 1), torch.cat([tokens_S.unsqueeze(1), ids], 1)
    return ids, (values.double() - best_S1.double() - total_S1.log()).float(), ranks_S


def row_logprobs(logits_SV: Tensor, tokens_S: Tensor, tops: list[int]) -> list[RowLogprobs]:
    """One RowLogprobs a row, each cut to its own number of top tokens."""
    ids, values, ranks = top_logprobs(logits_SV, tokens_S, max(tops))
    ids_np, values_np = ids.cpu().numpy().astype(np.int32), values.cpu().numpy().astype(np.float32)
    return [RowLogprobs(token_ids=ids_np[i, : k + 1], logprobs=values_np[i, : k + 1], rank=rank)
            for i, (k, rank) in enumerate(zip(tops, ranks.tolist()))]


class PromptScores:
    """Log-probabilities of prompts, for the rows that asked for them."""

    def __init__(self, model: Model, rows: Rows, vocab_size: int, most: int | None = None) -> None:
        """most: positions at once, None for as many as SLICE_BYTES hold."""
        self._model = model
        self._rows = rows
        held = max(1, SLICE_BYTES // (4 * vocab_size))
        self._at_once = held if most is None else min(held, most)

    def concerns(self, plan: StepPlan) -> bool:
        """True when a chunk of the plan owes some."""
        return bool(self.rows(plan).any())

    def rows(self, plan: StepPlan) -> NDArray[np.bool_]:
        """[R] chunks that owe some, so that all their tokens are needed."""
        asked = np.zeros(plan.num_rows, np.bool_)
        for place, row in enumerate(plan.row[plan.num_decodes:].tolist(), plan.num_decodes):
            asked[place] = self._rows.request(row).params.prompt_logprobs is not None
        return asked

    def owed(self, plan: StepPlan, place: int, x_CH: Tensor) -> Iterator[tuple[int, Tensor, Tensor, int]]:
        """Of the prompt positions that this chunk's hidden states predict and that are still owed, slice by
        slice: (first position, logits, int64 tokens that stand there, top tokens asked for)."""
        row, start = int(plan.row[place]), int(plan.start[place])
        request = self._rows.request(row)
        if request.params.prompt_logprobs is None:
            return
        first = max(start + 1, int(self._rows.logprobs_from[row]))
        end = min(start + len(x_CH), len(request.prompt) - 1) + 1
        for low in range(first, end, self._at_once):
            high = min(low + self._at_once, end)
            logits_SV = self._model.logits(x_CH[low - 1 - start: high - 1 - start], 0)
            targets_S = stage(request.prompt[low:high].astype(np.int64), x_CH.device)
            yield low, logits_SV, targets_S, request.params.prompt_logprobs
        self._rows.logprobs_from[row] = max(first, end)

    def of(self, plan: StepPlan, place: int, x_CH: Tensor) -> list[tuple[int, RowLogprobs]]:
        """The same, waited for: (position, its log-probabilities)."""
        found: list[tuple[int, RowLogprobs]] = []
        for low, logits_SV, targets_S, tops in self.owed(plan, place, x_CH):
            found += enumerate(row_logprobs(logits_SV, targets_S, [tops] * len(targets_S)), low)
        return found
