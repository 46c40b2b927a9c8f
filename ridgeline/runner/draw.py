"""Drawing tokens: a race of logit / temperature plus noise, among the tokens that min_p, top_k and top_p
admit.

The winner of a race is found exactly without sorting and mostly without looking at all tokens: none beats its
block's highest logit with its block's highest noise. Scores are float64, so that a token scores the same on
every path.

Legend: R rows, V vocabulary, B blocks of a row, X tokens of a block, K candidates, P (row, block) pairs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.runner import noise
from ridgeline.runner.order import block_ids, top

FIRST_BLOCKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Rows to draw for. Scaled logits are (logit - the row's highest) / temperature.

    logits_RBX: fp32, neither NaN nor +inf, -inf beyond the vocabulary; max_RB the blocks' maxima and best,
    float64 [R], the rows'. temperature, top_p, log_min_p float64 [R] (top_p 1: off; log_min_p -inf: off),
    top_k int64 [R] (the vocabulary: off). keys int32 [2, R]: noise.row_keys. codes_BX int32:
    noise.token_codes.
    """

    logits_RBX: Tensor
    max_RB: Tensor
    best: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    log_min_p: Tensor
    keys: Tensor
    codes_BX: Tensor

    @property
    def num_rows(self) -> int:
        return len(self.best)

    def some(self, which: Tensor) -> "Draw":
        """Some of the rows, by index."""
        return Draw(logits_RBX=self.logits_RBX[which], max_RB=self.max_RB[which], best=self.best[which],
                    temperature=self.temperature[which], top_k=self.top_k[which], top_p=self.top_p[which],
                    log_min_p=self.log_min_p[which], keys=self.keys[:, which], codes_BX=self.codes_BX)

    def scaled(self, logits: Tensor, row: Tensor) -> Tensor:
        """Logits of rows `row` (broadcast), scaled, float64."""
        return (logits.double() - self.best[row]) / self.temperature[row]

    def noise(self, codes: Tensor, row: Tensor) -> Tensor:
        """Gumbel numbers of the tokens with these codes in rows `row` (broadcast)."""
        return noise.gumbel_of(noise.bits(codes, self.keys[0][row], self.keys[1][row]))


def draw_from_top(draw: Draw, num: int) -> Tensor:
    """Tokens int64 [R] of rows whose top_k is at most `num`: the race among the first few in order."""
    row_R1 = torch.arange(draw.num_rows, device=draw.best.device).unsqueeze(1)
    values_RK, ids_RK = top(draw.logits_RBX, draw.max_RB, num)
    scaled_RK = draw.scaled(values_RK, row_R1)
    place_K = torch.arange(num, device=draw.best.device)
    admitted_RK = (place_K < draw.top_k[row_R1]) & (scaled_RK >= draw.log_min_p[row_R1])
    mass_RK = scaled_RK.exp().masked_fill_(~admitted_RK, 0.0)
    until_RK = mass_RK.cumsum(1)  # whose last column is the sum, whatever other rows' top_k
    admitted_RK &= until_RK - mass_RK < draw.top_p[row_R1] * until_RK[:, -1:]
    admitted_RK[:, 0] = True
    codes_RK = draw.codes_BX.flatten()[ids_RK]
    score_RK = (scaled_RK + draw.noise(codes_RK, row_R1)).masked_fill_(~admitted_RK, -torch.inf)
    return ids_RK.gather(1, score_RK.argmax(1, keepdim=True)).squeeze(1)


def draw_from_all(draw: Draw, noise_RB: Tensor) -> Tensor:
    """Tokens int64 [R] of rows without top_k. noise_RB int32: block maxima of the rows' noise.bits().

    top_p by rejection: the winner of the whole race is also the winner of the nucleus when it lies in it.
    Else the race is run again among the tokens before it in order, which hold the nucleus.
    """
    least = draw.best + draw.temperature * draw.log_min_p
    before = torch.full_like(draw.top_k, draw.codes_BX.numel())
    tokens = _race(draw, noise_RB, least, before)
    left = (draw.top_p < 1.0).nonzero().squeeze(1)
    if not len(left):
        return tokens
    part, noise_LB = draw.some(left), noise_RB[left]
    nucleus = _Nucleus(part)
    at = torch.arange(len(left), device=left.device)
    while True:
        values, inside = nucleus.holds(tokens[left], at)
        if inside.all():
            return tokens
        left, at, values = left[~inside], at[~inside], values[~inside]
        tokens[left] = _race(part.some(at), noise_LB[at], values.double(), tokens[left])


class _Nucleus:
    """Which tokens top_p admits: those with less than top_p of the mass ahead of them in order."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        scaled_RBX = draw.logits_RBX - draw.best.float()[:, None, None]
        scaled_RBX.div_(draw.temperature.float()[:, None, None])
        if (draw.log_min_p > -torch.inf).any():
            scaled_RBX.masked_fill_(scaled_RBX < draw.log_min_p.float()[:, None, None], -torch.inf)
        self._mass_RBX = scaled_RBX.exp_()
        self._admitted = draw.top_p * self._mass_RBX.flatten(1).sum(1, dtype=torch.float64)

    def holds(self, tokens: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, whether admitted) of tokens [N] of rows at [N]; the first token in order always is."""
        draw = self._draw
        value = draw.logits_RBX.flatten(1)[at, tokens]
        pair, block = (draw.max_RB[at] >= value.unsqueeze(1)).nonzero().unbind(1)
        row, value_P1 = at[pair], value[pair].unsqueeze(1)
        logits = draw.logits_RBX[row, block]
        behind = logits < value_P1
        behind |= (logits == value_P1) & (block_ids(block) >= tokens[pair].unsqueeze(1))
        mass = self._mass_RBX[row, block].masked_fill_(behind, 0.0).sum(1, dtype=torch.float64)
        ahead = torch.zeros_like(draw.best[at]).index_add_(0, pair, mass)
        return value, (ahead < self._admitted[at]) | (ahead == 0.0)


def _race(draw: Draw, noise_RB: Tensor, least: Tensor, before: Tensor) -> Tensor:
    """The winner, int64 [R], among tokens with logit > least, or == least and id < before (all [R])."""
    row_R1 = torch.arange(draw.num_rows, device=least.device).unsqueeze(1)
    bound_RB = draw.scaled(draw.max_RB, row_R1) + noise.gumbel_of(noise_RB)
    bound_RB.masked_fill_(draw.max_RB < least.unsqueeze(1), -torch.inf)
    blocks = bound_RB.topk(min(FIRST_BLOCKS, bound_RB.shape[1])).indices
    row, block = row_R1.expand_as(blocks).flatten(), blocks.flatten()
    score, token = _best_of_blocks(draw, row, block, least, before)
    reached = torch.full_like(least, -torch.inf).scatter_reduce_(0, row, score, "amax")
    bound_RB.scatter_(1, blocks, -torch.inf)
    more_row, more_block = (bound_RB >= reached.unsqueeze(1)).nonzero().unbind(1)
    if len(more_row):
        more_score, more_token = _best_of_blocks(draw, more_row, more_block, least, before)
        row, score = torch.cat([row, more_row]), torch.cat([score, more_score])
        token = torch.cat([token, more_token])
        reached.scatter_reduce_(0, more_row, more_score, "amax")
    won = score == reached[row]
    return torch.full_like(before, draw.codes_BX.numel()).scatter_reduce_(0, row[won], token[won], "amin")


def _best_of_blocks(draw: Draw, row: Tensor, block: Tensor, least: Tensor,
                    before: Tensor) -> tuple[Tensor, Tensor]:
    """The best score and its token in each of P (row, block) pairs."""
    row_P1 = row.unsqueeze(1)
    logits, ids = draw.logits_RBX[row, block], block_ids(block)
    score = draw.scaled(logits, row_P1) + draw.noise(draw.codes_BX[block], row_P1)
    out = (logits < least[row_P1]) | ((logits == least[row_P1]) & (ids >= before[row_P1]))
    best, place = score.masked_fill_(out, -torch.inf).max(1)
    return best, block * ids.shape[1] + place
