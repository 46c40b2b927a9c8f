"""Protects the recurrence in blocks: it is the recurrence token by token (a float64 twin), for any cut of
rows into chunks, with and without the delta rule, and cuts at block borders change no bit."""

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.blocks.recurrence import (
    BLOCK,
    Inputs,
    convolve_chunks,
    convolve_rows,
    lay_out,
    step_chunks,
    step_rows,
)

HEADS, GROUPS, KEY, VALUE, CPU = 4, 2, 5, 3, torch.device("cpu")


def inputs(num_tokens: int, delta: bool) -> Inputs:
    random = torch.Generator().manual_seed(num_tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(num_tokens, *shape, generator=random)

    k = torch.nn.functional.normalize(normal(GROUPS, KEY), dim=-1)
    return Inputs(q_TGK=normal(GROUPS, KEY), k_TGK=k, v_TMV=normal(HEADS, VALUE),
                  g_TM=-3 * normal(HEADS).square(), b_TM=normal(HEADS).sigmoid() if delta else None)


def twin(x: Inputs, state: Tensor) -> Tensor:
    """Token by token and head by head in float64; `state` moves on."""
    out = []
    for t in range(len(x.q_TGK)):
        for m in range(HEADS):
            q, k, v = x.q_TGK[t, m // 2].double(), x.k_TGK[t, m // 2].double(), x.v_TMV[t, m].double()
            state[m] *= x.g_TM[t, m].double().exp()
            u = v if x.b_TM is None else x.b_TM[t, m].double() * (v - state[m].T @ k)
            state[m] += torch.outer(k, u)
            out.append(state[m].T @ q)
    return torch.stack(out).view(-1, HEADS, VALUE)


def cut(x: Inputs, rows: list[list[int]]) -> tuple[list[Tensor], Tensor]:
    """Each row is all tokens of x, fed in pieces, the rows' n-th pieces together: outputs and states."""
    states = torch.zeros(len(rows), HEADS, KEY, VALUE)
    done, outs = [0] * len(rows), [[] for _ in rows]
    while alive := [r for r, sizes in enumerate(rows) if sizes]:
        sizes = [rows[r].pop(0) for r in alive]
        parts = [x.part(slice(done[r], done[r] + n)) for r, n in zip(alive, sizes)]
        whole = Inputs(**{name: torch.cat([getattr(p, name) for p in parts]) for name in
                          ("q_TGK", "k_TGK", "v_TMV", "g_TM")},
                       b_TM=None if x.b_TM is None else torch.cat([p.b_TM for p in parts]))
        held = states[alive]
        out = step_chunks(whole, held, lay_out(np.array([done[r] for r in alive]), np.array(sizes), 3, CPU))
        states[alive] = held
        for r, n, piece in zip(alive, sizes, out.split(sizes)):
            outs[r].append(piece)
            done[r] += n
    return [torch.cat(o) for o in outs], states


@pytest.mark.parametrize("delta", [False, True])
def test_blocks_are_the_recurrence(delta: bool) -> None:
    total = 2 * BLOCK + 13
    x, state = inputs(total, delta), torch.zeros(HEADS, KEY, VALUE, dtype=torch.float64)
    want = twin(x, state)
    rows = [[total], [5, 60, total - 65], [1, 2, BLOCK - 3, BLOCK, 13], [BLOCK + 1, total - BLOCK - 1]]
    outs, states = cut(x, [list(sizes) for sizes in rows])
    for out, last in zip(outs, states):
        assert (out - want).abs().max() < 5e-6 and (last - state).abs().max() < 5e-6
    (aligned,), _ = cut(x, [[BLOCK, BLOCK, 13]])
    (whole,), _ = cut(x, [[total]])
    assert torch.equal(aligned, whole), "cuts at block borders sum the same numbers in the same order"
    state.zero_()
    held, ones = torch.zeros(1, HEADS, KEY, VALUE), []
    for t in range(30):
        ones.append(step_rows(x.part(slice(t, t + 1)), held))
    assert (torch.cat(ones) - want[:30]).abs().max() < 5e-6


def test_the_convolution_sees_its_tail() -> None:
    """Whole, in chunks beside other rows, and token by token; silent about what was in the tail's memory."""
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.randn(*s, generator=random) for s in ((11, 6), (6, 1, 4), (6,)))
    want = torch.nn.functional.conv1d(x.T[None], weight, bias, padding=3, groups=6)[0].T[:11]
    tails = torch.zeros(2, 3, 6)
    first = convolve_chunks(torch.cat((x[:4], x[:1])), tails, weight, bias,
                            lay_out(np.array([0, 0]), np.array([4, 1]), 3, CPU))
    second = convolve_chunks(torch.cat((x[4:], x[1:3])), tails, weight, bias,
                             lay_out(np.array([4, 1]), np.array([7, 2]), 3, CPU))
    found = torch.cat((first[:4], second[:7])), torch.cat((first[4:], second[7:]))
    for rows in found:
        assert torch.allclose(rows, want[:len(rows)], atol=1e-6)
    one = convolve_rows(x[3:4], tails[1:], weight, bias)
    assert torch.allclose(one, want[3:4], atol=1e-6)
    assert torch.equal(tails[1], x[1:4]) and torch.equal(tails[0], x[8:])
