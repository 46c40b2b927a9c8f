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

FIRST_BLOCKS = 4  # looked at before the bounds of the others are
MASS_BLOCKS = 16  # whose mass is known first


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
    tokens = _race(draw, noise_RB, torch.arange(draw.num_rows, device=least.device), least, before)
    left = (draw.top_p < 1.0).nonzero().squeeze(1)
    if not len(left):
        return tokens
    nucleus = _Nucleus(draw)
    while True:
        values, inside = nucleus.holds(tokens[left], left)
        if inside.all():
            return tokens
        left, values = left[~inside], values[~inside]
        tokens[left] = _race(draw, noise_RB, left, values.double(), tokens[left])


def distribution(logits_RV: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor,
                 log_min_p: Tensor) -> Tensor:
    """What the races draw from, float64 [R, V]; the numbers are a Draw's."""
    scaled_RV = (logits_RV.double() - logits_RV.amax(1, keepdim=True).double()) / temperature.unsqueeze(1)
    mass_RV = scaled_RV.exp().masked_fill_(scaled_RV < log_min_p.unsqueeze(1), 0.0)
    vocab_size = logits_RV.shape[1]
    if bool((top_k < vocab_size).any() or (top_p < 1.0).any()):
        ids_RV = logits_RV.sort(dim=1, descending=True, stable=True).indices
        ordered_RV = mass_RV.gather(1, ids_RV)
        place_V = torch.arange(vocab_size, device=ids_RV.device)
        ordered_RV.masked_fill_(place_V >= top_k.unsqueeze(1), 0.0)
        until_RV = ordered_RV.cumsum(1)
        out_RV = until_RV - ordered_RV >= top_p.unsqueeze(1) * until_RV[:, -1:]
        out_RV[:, 0] = False
        mass_RV = torch.zeros_like(mass_RV).scatter_(1, ids_RV, ordered_RV.masked_fill_(out_RV, 0.0))
    return mass_RV / mass_RV.sum(1, keepdim=True)


def keep_or_replace(q_RV: Tensor, p_RV: Tensor, drafts: Tensor, uniform: Tensor, gumbel_RV: Tensor) -> Tensor:
    """Tokens int64 [R] distributed as q, given drafts [R] drawn from p: the draft with probability
    min(1, q / p), else one drawn from the normalised max(q - p, 0) (Leviathan et al. 2023, theorem 1).

    uniform [R] in (0, 1) and gumbel_RV are independent of the drafts.
    """
    at_R1 = drafts.unsqueeze(1)
    kept = uniform * p_RV.gather(1, at_R1).squeeze(1) < q_RV.gather(1, at_R1).squeeze(1)
    more_RV = (q_RV - p_RV).clamp_min_(0.0)
    more_RV = torch.where(more_RV.sum(1, keepdim=True) > 0.0, more_RV, q_RV)  # p is q, but for rounding
    return torch.where(kept, drafts, (more_RV.log() + gumbel_RV).argmax(1))


class _Nucleus:
    """Which tokens top_p admits: those with less than top_p of the mass ahead of them in order.

    Mass is exp(scaled logit). The whole of it is summed only for a row whose token lies near the border: else
    a few blocks, which bound it from below, tell that the token is inside.
    """

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._has_min_p = bool((draw.log_min_p > -torch.inf).any())
        blocks = draw.max_RB.topk(min(MASS_BLOCKS, draw.max_RB.shape[1])).indices
        row_R1 = torch.arange(draw.num_rows, device=blocks.device).unsqueeze(1)
        self._least = self._mass(row_R1, blocks)[0].flatten(1).sum(1, dtype=torch.float64)
        self._whole = torch.full_like(self._least, torch.nan)

    def holds(self, tokens: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, whether admitted) of tokens [N] of rows at [N]; the first token in order always is."""
        draw = self._draw
        value = draw.logits_RBX.flatten(1)[at, tokens]
        pair, block = (draw.max_RB[at] >= value.unsqueeze(1)).nonzero().unbind(1)
        mass, logits = self._mass(at[pair], block)
        value_P1 = value[pair].unsqueeze(1)
        is_ahead, tied = logits > value_P1, logits == value_P1
        if tied.sum() > len(tokens):
            is_ahead |= tied & (block_ids(block) < tokens[pair].unsqueeze(1))
        ahead = torch.zeros_like(draw.best[at])
        ahead.index_add_(0, pair, mass.mul_(is_ahead).sum(1, dtype=torch.float64))
        inside = (ahead < draw.top_p[at] * self._least[at]) | (ahead == 0.0)
        if not inside.all():
            inside |= ahead < draw.top_p[at] * self._total(at, ~inside)
        return value, inside

    def _total(self, at: Tensor, needed: Tensor) -> Tensor:
        """The whole mass of rows at [N], exact where needed [N]."""
        due = at[needed & self._whole[at].isnan()]
        every = torch.arange(self._draw.max_RB.shape[1], device=at.device)
        self._whole[due] = self._mass(due.unsqueeze(1), every)[0].flatten(1).sum(1, dtype=torch.float64)
        return self._whole[at]

    def _mass(self, row: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """(mass, logits) of the tokens in blocks `block` of rows `row` (broadcast), both [..., X]."""
        draw = self._draw
        logits = draw.logits_RBX[row, block]
        scaled = logits - draw.best.float()[row].unsqueeze(-1)
        scaled.div_(draw.temperature.float()[row].unsqueeze(-1))
        if self._has_min_p:
            scaled.masked_fill_(scaled < draw.log_min_p.float()[row].unsqueeze(-1), -torch.inf)
        return scaled.exp_(), logits


def _race(draw: Draw, noise_RB: Tensor, at: Tensor, least: Tensor, before: Tensor) -> Tensor:
    """The winners, int64 [N], of rows at [N], each among the tokens with logit > least, or == least and id <
    before (both [N])."""
    at_N1 = at.unsqueeze(1)
    max_NB = draw.max_RB[at]
    bound_NB = draw.scaled(max_NB, at_N1) + noise.gumbel_of(noise_RB[at])
    bound_NB.masked_fill_(max_NB < least.unsqueeze(1), -torch.inf)
    first_NB = bound_NB.topk(min(FIRST_BLOCKS, bound_NB.shape[1])).indices
    place = torch.arange(len(at), device=at.device).unsqueeze(1).expand_as(first_NB).flatten()
    score, token = _best_of_blocks(draw, at[place], first_NB.flatten(), least[place], before[place])
    reached = torch.full_like(least, -torch.inf).scatter_reduce_(0, place, score, "amax")
    bound_NB.scatter_(1, first_NB, -torch.inf)
    more, block = (bound_NB >= reached.unsqueeze(1)).nonzero().unbind(1)
    if len(more):
        further = _best_of_blocks(draw, at[more], block, least[more], before[more])
        reached.scatter_reduce_(0, more, further[0], "amax")
        place, score = torch.cat([place, more]), torch.cat([score, further[0]])
        token = torch.cat([token, further[1]])
    won = score == reached[place]
    return torch.full_like(at, draw.codes_BX.numel()).scatter_reduce_(0, place[won], token[won], "amin")


def _best_of_blocks(draw: Draw, row: Tensor, block: Tensor, least: Tensor,
                    before: Tensor) -> tuple[Tensor, Tensor]:
    """The best score and its token in each of P (row, block) pairs; least and before as in _race, [P]."""
    row_P1, least_P1 = row.unsqueeze(1), least.unsqueeze(1)
    logits = draw.logits_RBX[row, block]
    score = draw.scaled(logits, row_P1) + draw.noise(draw.codes_BX[block], row_P1)
    out = (logits < least_P1) | ((logits == least_P1) & (block_ids(block) >= before.unsqueeze(1)))
    best, place = score.masked_fill_(out, -torch.inf).max(1)
    return best, block * draw.codes_BX.shape[1] + place
