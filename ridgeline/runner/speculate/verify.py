"""Verification: which drafts stand, and what stands where the first of them falls.

A row's tokens are taken one position after another as if it decoded, and go on while each is the draft that
the next position was computed from. So a seeded row, whose noise hangs on (seed, position) alone, says what
it would say without drafts. A row without a seed of its own keeps a draft drawn from p with probability
min(1, q / p) and else draws from what q has more than p (Leviathan et al. 2023, theorem 1; Chen et al. 2023),
which agrees more often. Both give the target's distribution, q.

Legend: S flat positions, N some of them, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.runner.sampler import Sampler
from ridgeline.runner.speculate.speculator import Proposal
from ridgeline.schedule.plan import RowStart


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A row's positions among the flat ones: its first is `at`, where the token at `position` is sampled; one
    more for each draft. ordered: a position must be taken before the next can be."""

    start: RowStart
    at: int
    position: int
    proposal: Proposal

    @property
    def ordered(self) -> bool:
        return self.start.params.needs_history or self.proposal.p_GV is not None

    def stage(self, index: int) -> int:
        return index if self.ordered else 0

    def drawn(self, index: int) -> bool:
        """True where there is a draft with a distribution of its own."""
        return self.proposal.p_GV is not None and index < len(self.proposal.tokens)


def draws_freely(start: RowStart) -> bool:
    """True for a row whose drafts may be drawn by noise of their own: nobody can ask for its text again."""
    return not start.params.greedy and start.params.seed is None


def verify(sampler: Sampler, logits_SV: Tensor, spans: Sequence[Span]) -> tuple[list[list[int]], list[bool]]:
    """(tokens, whether it failed) of each span: at least one token, at most one more than drafts.

    A failed span's logits were not finite where it had got to.
    """
    taken: list[list[int]] = [[] for _ in spans]
    alive, failed = [True] * len(spans), [False] * len(spans)
    last = max(span.stage(len(span.proposal.tokens)) for span in spans)
    for stage in range(last + 1):
        chosen = [(number, index) for number, span in enumerate(spans) if alive[number]
                  for index in range(len(span.proposal.tokens) + 1) if span.stage(index) == stage]
        if not chosen:
            break
        for (number, index), token, broken in zip(chosen, *_tokens(sampler, logits_SV, spans, chosen)):
            if not alive[number]:
                continue
            taken[number].append(token)
            failed[number] = broken
            drafts = spans[number].proposal.tokens
            alive[number] = not broken and index < len(drafts) and token == drafts[index]
    return taken, failed


def _tokens(sampler: Sampler, logits_SV: Tensor, spans: Sequence[Span],
            chosen: Sequence[tuple[int, int]]) -> tuple[list[int], list[bool]]:
    """Of positions (span, index), each taken as its row takes tokens."""
    tokens, failed = [0] * len(chosen), [False] * len(chosen)
    for drawn in (False, True):
        part = [i for i, (number, index) in enumerate(chosen) if spans[number].drawn(index) is drawn]
        if not part:
            continue
        places = [(spans[chosen[i][0]], chosen[i][1]) for i in part]
        rows_N = torch.tensor([span.start.row for span, _ in places])
        positions_N = torch.tensor([span.position + index for span, index in places])
        logits_NV = logits_SV[[span.at + index for span, index in places]]
        if drawn:
            drafts_N = torch.tensor([span.proposal.tokens[index] for span, index in places])
            p_NV = torch.stack([span.proposal.p_GV[index] for span, index in places
                                if span.proposal.p_GV is not None])
            out = sampler.sample_against(logits_NV, rows_N, positions_N, drafts_N.to(p_NV.device), p_NV)
        else:
            out = sampler.sample(logits_NV, rows_N, positions_N)
        for i, token, broken in zip(part, out.tokens_S.tolist(), out.failed_S.tolist()):
            tokens[i], failed[i] = token, broken
    return tokens, failed
