"""The sampler: from a step's logits to one token a row. Torch, on any device.

Owns what each row's request asked of it, and the noise. The order is vLLM's: bias, penalties, min_tokens,
temperature, min_p, top_k, top_p, then the draw. A row's token depends on its logits, its parameters, its seed
and the position alone: never on its place, on other rows or on the path taken (draw.py). Equal logits go to
the lower id.

Legend: S rows of the step, R some of them, V vocabulary, B blocks of X tokens.
"""

from dataclasses import dataclass
from math import log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.runner import noise
from ridgeline.runner.adjust import Adjustments
from ridgeline.runner.draw import Draw, distribution, draw_from_all, draw_from_top, keep_or_replace
from ridgeline.runner.noise import gumbel
from ridgeline.runner.order import BLOCK, first_of_best, in_blocks
from ridgeline.schedule.plan import RowStart

__all__ = ["SampleOut", "Sampler", "gumbel"]

# noise numbers held at once, 4 bytes twice: what a CPU's caches hold; on a GPU few and wide launches
NOISE_TOKENS = {"cpu": 1 << 20, "cuda": 1 << 25}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOut:
    """tokens_S int64 [S]; failed_S bool [S]: the row's logits were not all finite, and its token means
    nothing."""

    tokens_S: Tensor
    failed_S: Tensor


class Sampler:
    """Fixed rows of sampling parameters, written by start() when a request takes a row."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._adjust = Adjustments(vocab_size, device)
        num_blocks = -(-vocab_size // BLOCK)
        self._codes_BX = noise.token_codes(num_blocks * BLOCK).view(num_blocks, BLOCK).to(device)
        self._noise_rows = max(1, min(num_rows, NOISE_TOKENS[device.type] // (num_blocks * BLOCK)))
        shape = (self._noise_rows, num_blocks, BLOCK)
        self._noise = torch.empty(shape, dtype=torch.int32, device=device)
        self._scratch = torch.empty(shape, dtype=torch.int32, device=device)
        # on the host, by row; a temperature of 0 is greedy
        self._temperature = np.zeros(num_rows)
        self._top_k = np.zeros(num_rows, np.int64)
        self._top_p = np.zeros(num_rows)
        self._log_min_p = np.zeros(num_rows)
        self._seed = np.zeros(num_rows, np.uint64)

    def start(self, start: RowStart) -> None:
        """A request takes a row (again after a preemption, with what is known of its text by then)."""
        row, params = start.row, start.params
        self._temperature[row] = 0.0 if params.greedy else params.temperature
        self._top_k[row] = params.top_k if 0 < params.top_k < self._vocab_size else self._vocab_size
        self._top_p[row] = params.top_p
        self._log_min_p[row] = log(params.min_p) if params.min_p > 0.0 else -np.inf
        self._seed[row] = np.uint64(start.seed % 2**64)
        self._adjust.start(start)

    def sample(self, logits_SV: Tensor, rows_S: Tensor, positions_S: Tensor,
               given_S: Tensor | None = None) -> SampleOut:
        """One token for each row. logits_SV: fp32 [S, V], left as they are. rows_S, positions_S: int64 [S],
        best on the host; a position is where the token that is sampled will stand. given_S: int64 [S] on the
        host, tokens of rows that have no choice, -1 for those that do."""
        rows, positions = rows_S.cpu().numpy(), positions_S.cpu().numpy()
        adjusted_SBX = in_blocks(self._adjust.apply(logits_SV, rows, positions))
        max_SB = adjusted_SBX.amax(2)
        failed_S = ~(logits_SV.sum(1).isfinite() & max_SB.amax(1).isfinite())
        tokens_S = first_of_best(adjusted_SBX, max_SB)
        drawn = (self._temperature[rows] > 0.0) & ~failed_S.cpu().numpy()
        if given_S is not None:
            drawn &= given_S.numpy() < 0
            tokens_S = torch.where(given_S.to(self._device) < 0, tokens_S, given_S.to(self._device))
        random = np.flatnonzero(drawn)
        for part in self._parts(rows, random):
            draw = self._draw_of(adjusted_SBX, max_SB, rows, positions, part)
            tokens_S[torch.from_numpy(part).to(self._device)] = self._draw(draw)
        tokens_S.masked_fill_(failed_S, 0)
        self._adjust.record(tokens_S, rows, positions)
        return SampleOut(tokens_S=tokens_S, failed_S=failed_S)

    def filters(self, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whose winner may not win among fewer tokens: rows with top_k, top_p or min_p."""
        filtered = (self._top_k[rows] < self._vocab_size) | (self._top_p[rows] < 1.0)
        return (self._temperature[rows] > 0.0) & (filtered | (self._log_min_p[rows] > -np.inf))

    def extend(self, row: int, position: int, tokens: list[int]) -> None:
        """The row's text goes on with these, from a position on, without sampling."""
        self._adjust.extend(row, position, tokens)

    def distribution(self, logits_SV: Tensor, rows_S: Tensor, positions_S: Tensor) -> Tensor:
        """What sample() draws from, float64 [S, V]; of rows with a temperature."""
        rows, positions = rows_S.cpu().numpy(), positions_S.cpu().numpy()
        return self._distribution(self._adjust.apply(logits_SV, rows, positions), rows)

    def sample_against(self, logits_SV: Tensor, rows_S: Tensor, positions_S: Tensor, drafts_S: Tensor,
                       p_SV: Tensor) -> SampleOut:
        """sample() of rows with a temperature, for which drafts int64 [S] were drawn from p float64 [S, V]:
        the same distribution, and the draft as often as can be."""
        rows, positions = rows_S.cpu().numpy(), positions_S.cpu().numpy()
        adjusted_SV = self._adjust.apply(logits_SV, rows, positions)
        failed_S = ~(logits_SV.sum(1).isfinite() & adjusted_SV.amax(1).isfinite())
        xor, multiplier = noise.row_keys(self._seed[rows], positions).to(self._device).unsqueeze(2).unbind(0)
        codes_V = self._codes_BX.flatten()[: self._vocab_size]
        tokens_S = keep_or_replace(
            self._distribution(adjusted_SV, rows), p_SV, drafts_S,
            noise.uniform(self._seed[rows], positions).to(self._device),
            noise.gumbel_of(noise.bits(codes_V, xor, multiplier)))
        tokens_S.masked_fill_(failed_S, 0)
        self._adjust.record(tokens_S, rows, positions)
        return SampleOut(tokens_S=tokens_S, failed_S=failed_S)

    def _distribution(self, adjusted_SV: Tensor, rows: NDArray[np.int64]) -> Tensor:
        asked = (self._temperature, self._top_k, self._top_p, self._log_min_p)
        return distribution(adjusted_SV, *(torch.from_numpy(each[rows]).to(self._device) for each in asked))

    def _parts(self, rows: NDArray[np.int64], random: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Places to draw together: those of about the same top_k, and those without in bounded numbers."""
        top_k = self._top_k[rows[random]]
        free = random[top_k == self._vocab_size]
        parts = [free[at : at + self._noise_rows] for at in range(0, len(free), self._noise_rows)]
        size = np.where(top_k == self._vocab_size, -1, np.ceil(np.log2(top_k) / 2).astype(np.int64))
        return parts + [random[size == one] for one in np.unique(size) if one >= 0]

    def _draw_of(self, logits_SBX: Tensor, max_SB: Tensor, rows: NDArray[np.int64],
                 positions: NDArray[np.int64], part: NDArray[np.int64]) -> Draw:
        row, device = rows[part], self._device
        if len(part) < len(rows):
            at = torch.from_numpy(part).to(device)
            logits_SBX, max_SB = logits_SBX[at], max_SB[at]
        return Draw(
            logits_RBX=logits_SBX, max_RB=max_SB, best=max_SB.amax(1).double(),
            temperature=torch.from_numpy(self._temperature[row]).to(device),
            top_k=torch.from_numpy(self._top_k[row]).to(device),
            top_p=torch.from_numpy(self._top_p[row]).to(device),
            log_min_p=torch.from_numpy(self._log_min_p[row]).to(device),
            keys=noise.row_keys(self._seed[row], positions[part]).to(device), codes_BX=self._codes_BX)

    def _draw(self, draw: Draw) -> Tensor:
        num = int(draw.top_k.max())
        if num < self._vocab_size:
            return draw_from_top(draw, num)
        xor, multiplier = draw.keys[:, :, None, None].unbind(0)
        noise_RBX = noise.bits(self._codes_BX, xor, multiplier, self._noise[: draw.num_rows],
                               self._scratch[: draw.num_rows])
        return draw_from_all(draw, noise_RBX.amax(2))
