"""Tokens of rows that follow grammars, one a row, mostly without masks.

The highest of all logits, and the winner of a race among all tokens, would win among fewer too. So such a row
is sampled as if it were free, and only where its grammar does not take the token, its mask is filled and it
is sampled again. A token that is forced needs no logits, and a row with top_k, top_p or min_p a mask before.

Knows no grammar and no noise. Legend: S rows of the step, N some of them, V vocabulary.
"""

import numpy as np
import torch
from torch import Tensor

from ridgeline.runner.grammar import Grammars
from ridgeline.runner.sampler import SampleOut, Sampler


def sample_within(sampler: Sampler, grammars: Grammars, logits_SV: Tensor, rows_S: Tensor,
                  positions_S: Tensor, *, keep: bool) -> SampleOut:
    """sampler.sample() of what the rows' grammars leave of the logits. keep: these stay as they are.

    Filled all before, masks give the same tokens (of a race, but for the rounding of scores that are equal to
    15 digits).
    """
    rows = rows_S.numpy()
    follow = grammars.follow(rows)
    if not follow.any():
        return sampler.sample(logits_SV, rows_S, positions_S)
    given = grammars.given(rows)
    chooses = follow & (given < 0)
    masked = chooses & sampler.filters(rows)
    if masked.all():
        logits_SV = logits_SV.clone() if keep else logits_SV
        grammars.forbid(rows, logits_SV)
        return sampler.sample(logits_SV, rows_S, positions_S)
    given[masked] = 0  # nobody reads it
    out = sampler.sample(logits_SV, rows_S, positions_S, torch.from_numpy(given))
    tokens, failed = out.tokens_S.tolist(), out.failed_S.cpu().numpy()
    for i in np.flatnonzero(chooses & ~masked & ~failed).tolist():
        masked[i] = not grammars.takes(int(rows[i]), tokens[i])
    if len(late := np.flatnonzero(masked & ~failed)):
        at_N = torch.from_numpy(late)
        logits_NV = logits_SV[at_N.to(logits_SV.device)]
        grammars.forbid(rows[late], logits_NV)
        again = sampler.sample(logits_NV, rows_S[at_N], positions_S[at_N])
        out.tokens_S[at_N.to(logits_SV.device)] = again.tokens_S
    return out
