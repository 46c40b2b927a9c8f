"""Linear recurrences over a state, in plain torch: token by token for decodes, in blocks for prompt chunks.

One recurrence serves Mamba-2 and the gated delta rule (Dao & Gu 2024; Yang et al. 2024). For each head, with
key k, query q, value v, log decay g <= 0 and, for the delta rule, write strength b:

    S <- e^g S;   u = v   or   u = b (v - S^T k);   S <- S + k u^T;   o = S^T q

Blocks are anchored at position 0 of the sequence, whatever chunk a step was given. Chunks that are cut at
block borders therefore sum what a whole prompt sums; other cuts, and the step form, agree within float
rounding. Everything is float32 but sums of decays.

Legend: T tokens, S rows, C blocks, Q tokens of a block, M heads, G key heads (each shared by M / G heads), K
key width, V value width, E channels of the convolution, W its width less one.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunks:
    """Prompt chunks of a step, laid out in blocks and, for the convolution, one after another behind their
    tails.

    place_T: each token's place among num_blocks * BLOCK. order_S: rows from the one of most blocks down.
    waves: (blocks, rows) of every row's first block, then of every second one, and so on; rows are the first
    so many of order_S. spot_T: each token's place in the row of tails and tokens, which is num_spots long;
    tail_SW, last_SW: the places of each row's tail before and after the step.
    """

    place_T: Tensor
    num_blocks: int
    order_S: Tensor
    waves: tuple[tuple[slice, int], ...]
    spot_T: Tensor
    num_spots: int
    tail_SW: Tensor
    last_SW: Tensor


Wave = tuple[slice | Tensor, int]  # tokens, one of each of the first so many rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What the tokens bring, in the letters of the module's text. b_TM: None without the delta rule."""

    q_TGK: Tensor
    k_TGK: Tensor
    v_TMV: Tensor
    g_TM: Tensor
    b_TM: Tensor | None

    def part(self, tokens: slice | Tensor) -> "Inputs":
        """Some of the tokens."""
        return Inputs(q_TGK=self.q_TGK[tokens], k_TGK=self.k_TGK[tokens], v_TMV=self.v_TMV[tokens],
                      g_TM=self.g_TM[tokens], b_TM=None if self.b_TM is None else self.b_TM[tokens])


def lay_out(starts: NDArray[np.int64], counts: NDArray[np.int64], width: int, device: torch.device) -> Chunks:
    """starts, counts [S]: each row's first position and tokens. width: of the convolution, less one."""
    first = starts % BLOCK
    blocks = -(-(first + counts) // BLOCK)
    order = np.argsort(-blocks, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    wave_rows = (blocks[:, None] > np.arange(int(blocks.max()))).sum(0)
    base = np.cumsum(wave_rows) - wave_rows
    row_T = np.repeat(np.arange(len(counts)), counts)
    index_T = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    inside_T = first[row_T] + index_T
    place_T = (base[inside_T // BLOCK] + rank[row_T]) * BLOCK + inside_T % BLOCK
    spot_S = np.cumsum(counts + width) - counts - width
    tail_SW = spot_S[:, None] + np.arange(width)

    def sent(array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(device)

    return Chunks(
        place_T=sent(place_T), num_blocks=int(blocks.sum()), order_S=sent(order),
        waves=tuple((slice(int(b), int(b + n)), int(n)) for b, n in zip(base, wave_rows)),
        spot_T=sent(spot_S[row_T] + width + index_T), num_spots=int(counts.sum()) + width * len(counts),
        tail_SW=sent(tail_SW), last_SW=sent(tail_SW + counts[:, None]))  # fmt: skip


def waves_of(first: NDArray[np.int64], counts: NDArray[np.int64], device: torch.device) -> tuple[Wave, ...]:
    """Every row's first token, then every second one, and so on. first, counts [S]: where each row's tokens
    begin and how many they are, falling."""
    waves = []
    for place in range(int(counts[0])):
        rows = int(np.count_nonzero(counts > place))
        waves.append((torch.from_numpy(first[:rows] + place).to(device), rows))
    return tuple(waves)


def step_rows(x: Inputs, state_SMKV: Tensor) -> Tensor:
    """One token a row: updates the states in place, returns o [S, M, V]."""
    u_SMV, b_SM = x.v_TMV, x.b_TM
    q_SMK, k_SMK = _per_head(x.q_TGK, u_SMV.shape[1]), _per_head(x.k_TGK, u_SMV.shape[1])
    state_SMKV.mul_(x.g_TM.exp()[..., None, None])
    if b_SM is not None:
        u_SMV = b_SM[..., None] * (u_SMV - (k_SMK[..., None, :] @ state_SMKV).squeeze(-2))
    state_SMKV.addcmul_(k_SMK[..., None], u_SMV[..., None, :])
    return (q_SMK[..., None, :] @ state_SMKV).squeeze(-2)


def step_chunks(x: Inputs, state_SMKV: Tensor, chunks: Chunks) -> Tensor:
    """All tokens of the rows' chunks: updates the states in place, returns o [T, M, V].

    Inside a block everything is a product of matrices (the delta rule's sequence of writes is one triangular
    system); from block to block the state is carried, all rows at once. Places without a token write nothing.
    """
    heads = x.v_TMV.shape[1]

    def laid(x_TXY: Tensor) -> Tensor:
        """[C, X, Q, Y]"""
        out = x_TXY.new_zeros(chunks.num_blocks * BLOCK, *x_TXY.shape[1:])
        return out.index_copy_(0, chunks.place_T, x_TXY).unflatten(0, (-1, BLOCK)).transpose(1, 2)

    q_CGQK, k_CGQK, u_CMQV = laid(x.q_TGK), laid(x.k_TGK), laid(x.v_TMV)
    # the sums of near tokens differ by little: float32 would lose it where a block decays far
    exact_CMQ1 = laid(x.g_TM[..., None]).cumsum(2, dtype=torch.float64)
    sum_CMQ1, end_CM11 = exact_CMQ1.float(), exact_CMQ1[:, :, -1:]
    upper_QQ = torch.ones(BLOCK, BLOCK, dtype=torch.bool, device=u_CMQV.device).triu_(1)
    decay_CMQQ = (exact_CMQ1 - exact_CMQ1.transpose(2, 3)).float().masked_fill_(upper_QQ, -torch.inf).exp_()
    seen_CMQQ = _per_head(q_CGQK @ k_CGQK.transpose(2, 3), heads) * decay_CMQQ
    q_CMQK, k_CMQK = _per_head(q_CGQK, heads) * sum_CMQ1.exp(), _per_head(k_CGQK, heads)
    w_CMQK = None
    if x.b_TM is not None:
        b_CMQ1 = laid(x.b_TM[..., None])
        mixed_CMQQ = _per_head(k_CGQK @ k_CGQK.transpose(2, 3), heads) * decay_CMQQ * b_CMQ1
        right = torch.cat((b_CMQ1 * u_CMQV, b_CMQ1 * sum_CMQ1.exp() * k_CMQK), -1)
        # unitriangular: the diagonal counts as ones, whatever stands there
        solved = torch.linalg.solve_triangular(mixed_CMQQ, right, upper=False, unitriangular=True)
        u_CMQV, w_CMQK = solved.split((u_CMQV.shape[-1], k_CMQK.shape[-1]), -1)
    k_CMKQ = (k_CMQK * (end_CM11 - exact_CMQ1).float().exp()).transpose(2, 3)
    kept_CM11 = end_CM11.float().exp()
    carried_SMKV, outs = state_SMKV[chunks.order_S], []
    for blocks, rows in chunks.waves:
        now_SMKV = carried_SMKV[:rows]
        u = u_CMQV[blocks] if w_CMQK is None else u_CMQV[blocks] - w_CMQK[blocks] @ now_SMKV
        outs.append(seen_CMQQ[blocks] @ u + q_CMQK[blocks] @ now_SMKV)
        now_SMKV.mul_(kept_CM11[blocks]).add_(k_CMKQ[blocks] @ u)
    state_SMKV[chunks.order_S] = carried_SMKV
    return torch.cat(outs).transpose(1, 2).flatten(0, 1)[chunks.place_T]


def convolve_rows(x_SE: Tensor, tail_SWE: Tensor, weight_E1W: Tensor, bias_E: Tensor | None) -> Tensor:
    """A causal convolution a channel over one token a row, [S, E]; the tails move on in place."""
    window_SWE = torch.cat((tail_SWE, x_SE[:, None]), 1)
    tail_SWE.copy_(window_SWE[:, 1:])
    return _weighted(list(window_SWE.unbind(1)), weight_E1W, bias_E)


def convolve_chunks(x_TE: Tensor, tail_SWE: Tensor, weight_E1W: Tensor, bias_E: Tensor | None,
                    chunks: Chunks) -> Tensor:
    """The same over the rows' chunks, [T, E]."""
    line_LE = x_TE.new_empty(chunks.num_spots, x_TE.shape[1])
    line_LE[chunks.spot_T] = x_TE
    line_LE[chunks.tail_SW] = tail_SWE
    tail_SWE.copy_(line_LE[chunks.last_SW])
    width = tail_SWE.shape[1]
    shifted = [line_LE[i: chunks.num_spots - width + i] for i in range(width + 1)]
    return _weighted(shifted, weight_E1W, bias_E)[chunks.spot_T - width]


def _per_head(x_XG: Tensor, heads: int) -> Tensor:
    """Groups on axis 1 -> heads."""
    groups = x_XG.shape[1]
    return x_XG.repeat_interleave(heads // groups, 1) if heads > groups else x_XG


def _weighted(parts: list[Tensor], weight_E1W: Tensor, bias_E: Tensor | None) -> Tensor:
    """Sum of the parts times their weights, oldest first, in one order for both forms."""
    weights = weight_E1W[:, 0].unbind(1)
    out = parts[0] * weights[0] if bias_E is None else torch.addcmul(bias_E, parts[0], weights[0])
    for part, weight in zip(parts[1:], weights[1:], strict=True):
        out.addcmul_(part, weight)
    return out
