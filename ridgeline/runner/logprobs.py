"""Log-probabilities of the model's own distribution, before temperature, penalties and bias. Only the best
few leave.

Legend: S positions, V vocabulary, K best.
"""

import torch
from torch import Tensor

from ridgeline.runner.order import in_blocks, top


def top_logprobs(logits_SV: Tensor, tokens_S: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """What is reported of each position: ids int64 [S, 1 + K], values fp32 [S, 1 + K], ranks int64 [S].

    logits_SV: fp32, as the model gave them. tokens_S: the tokens taken, int64 [S]; they come first, then the
    K = min(k, V) best, equal ones by the lower id. values: natural logarithms. A rank counts the tokens that
    are strictly more probable: 0 is the best.
    """
    logits_SBX = in_blocks(logits_SV)
    max_SB = logits_SBX.amax(2)
    best_S1, k = max_SB.amax(1, keepdim=True), min(k, logits_SV.shape[1])
    total_S1 = (logits_SV - best_S1).exp_().sum(1, keepdim=True, dtype=torch.float64)
    taken_S1 = logits_SV.gather(1, tokens_S.unsqueeze(1))
    ranks_S = (logits_SV > taken_S1).sum(1)
    values, ids = top(logits_SBX, max_SB, k) if k > 0 else (taken_S1[:, :0], tokens_S.unsqueeze(1)[:, :0])
    values, ids = torch.cat([taken_S1, values], 1), torch.cat([tokens_S.unsqueeze(1), ids], 1)
    return ids, (values.double() - best_S1.double() - total_S1.log()).float(), ranks_S
