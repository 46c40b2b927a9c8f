"""A step on its way through a GPU: its memory on the host, and what becomes of it once it is there. Knows no
model.

Legend: R rows of the plan, N positions that can be sampled: a row's last and one more for each of its drafts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.runner.choose import Scores
from ridgeline.runner.grammar import Masks
from ridgeline.runner.isolate import Broken, Places
from ridgeline.runner.prefixes import Groups
from ridgeline.runner.runner import NOT_FINITE
from ridgeline.runner.speculate.speculator import Proposal
from ridgeline.schedule.plan import SAMPLE_NONE, Drafting, RowLogprobs, StepPlan, StepResult

_Taken = tuple[NDArray[np.int32], NDArray[np.int32]]


class Slot:
    """What a step in flight has to itself, used again once it has been waited for: pinned memory for its
    inputs and results, and the events around it."""

    def __init__(self, num_staged: int, num_out: int, device: torch.device) -> None:
        pinned = device.type == "cuda"
        self._device = device.index or 0
        self.staged = torch.zeros(num_staged, dtype=torch.int32, pin_memory=pinned)
        self.out = torch.zeros(num_out, dtype=torch.int32, pin_memory=pinned)
        self.begun, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def mark(self, event: torch.cuda.Event) -> None:
        """One of both is where this thread's stream is now. Asked by its number, torch finds the stream at
        once."""
        event.record(torch.cuda.current_stream(self._device))


@dataclass(slots=True, kw_only=True)
class Flight:
    """out_2N: pinned, whole once the slot's `ended` is reached: tokens, and 1 for a position that is not
    finite. prompts: (place, first position, scores). experts: pinned, a number each: experts
    that parts of the step read, besides experts_read.

    binds: grammars must have read the step before it until it is sampled. bound: they have. logits_RV: it is
    launched so far, and not sampled. settled: its own tokens were read, and are `tokens` by place where
    anybody reads them; forced: what can alone follow them.
    """

    plan: StepPlan
    ticket: int
    slot: Slot
    out_2N: Tensor
    binds: bool = False
    bound: bool = False
    logits_RV: Tensor | None = None
    settled: bool = False
    proposals: Mapping[int, Proposal] = field(default_factory=dict)
    masks: Masks | None = None
    experts: list[Tensor] = field(default_factory=list)
    experts_read: int = 0
    broken: Broken = field(default_factory=Broken)
    scores: list[Scores] = field(default_factory=list)
    prompts: list[tuple[int, int, Scores]] = field(default_factory=list)
    pooled: dict[int, Tensor] = field(default_factory=dict)
    shared: Groups = ()
    tokens: dict[int, list[int]] | None = None
    forced: dict[int, list[int]] = field(default_factory=dict)
    drafting: Drafting | None = None

    @property
    def sampled(self) -> Places:
        """Places that have a token."""
        return np.flatnonzero(self.plan.sample != SAMPLE_NONE)

    @property
    def firsts(self) -> Places:
        """Where each row's positions begin among the N."""
        firsts = np.arange(self.plan.num_rows)
        draft = self.plan.draft
        return firsts + draft.cumsum() - draft if draft.any() else firsts

    def end(self, out_2N: Tensor) -> None:
        """All of the step is launched: its results start their way back."""
        room = self.slot.out[: out_2N.numel()].view(out_2N.shape)
        self.out_2N = room.copy_(out_2N, non_blocking=True)
        self.slot.mark(self.slot.ended)

    def read(self) -> dict[int, list[int]]:
        """The step's tokens by place, once it has ended: a row's go on as far as they are as drafted."""
        tokens, failed = self.out_2N.numpy()
        firsts, found = self.firsts, dict[int, list[int]]()
        for place in self.sampled.tolist():
            first, drafts = firsts[place], self.proposals[place].tokens if place in self.proposals else []
            new: list[int] = []
            while not failed[first + len(new)]:
                new.append(int(tokens[first + len(new)]))
                if len(new) > len(drafts) or new[-1] != drafts[len(new) - 1]:
                    break
            else:
                self.broken.errors.setdefault(place, NOT_FINITE)
            if place not in self.broken.errors:
                found[place] = new
        self.tokens = found
        return found

    def result(self, started_s: float, finished_s: float) -> StepResult:
        plan = self.plan
        infinite, errors = self.out_2N[1].numpy()[self.firsts], self.broken.errors
        if infinite.any():
            errors |= dict.fromkeys(set(np.flatnonzero(infinite).tolist()) - errors.keys(), NOT_FINITE)
        failed = self.broken.codes(plan.num_rows)
        num_new, tokens = self._taken(failed)
        return StepResult(
            step=plan.step,
            num_new=num_new,
            tokens=tokens,
            failed=failed,
            errors=errors,
            short=self.broken.short,
            forced=self.forced,
            logprobs=self._logprobs(num_new) if self.scores else {},
            prompt_logprobs={p: found for p, found in self._prompt_logprobs().items() if not failed[p]},
            pooled={place: one.numpy() for place, one in self.pooled.items() if not failed[place]},
            returned_tickets=plan.copies.ticket,
            shared=self.shared,
            experts_read=self.experts_read + sum(int(one) for one in self.experts),
            started_s=started_s,
            finished_s=finished_s,
            drafting=self.drafting,
        )

    def _taken(self, failed: NDArray[np.uint8]) -> _Taken:
        """(how many new tokens each row has, all of them)"""
        num_new = np.zeros(self.plan.num_rows, np.int32)
        if self.tokens is None:
            num_new[self.sampled] = 1
            num_new[failed != 0] = 0
            return num_new, self.out_2N[0].numpy()[: len(num_new)][num_new != 0].copy()
        stand = [(place, new) for place, new in sorted(self.tokens.items()) if not failed[place]]
        num_new[[place for place, _ in stand]] = [len(new) for _, new in stand]
        return num_new, np.array([token for _, new in stand for token in new], np.int32)

    def _logprobs(self, num_new: NDArray[np.int32]) -> dict[int, list[RowLogprobs]]:
        """By place, of those that asked."""
        found = {n: one for scores in self.scores for n, (one,) in scores.read().items()}
        return {
            place: [found[n] for n in range(first, first + num)]
            for place, (first, num) in enumerate(zip(self.firsts.tolist(), num_new.tolist()))
            if num and first in found
        }

    def _prompt_logprobs(self) -> dict[int, list[tuple[int, RowLogprobs]]]:
        """By place, in order of positions."""
        found: dict[int, list[tuple[int, RowLogprobs]]] = {}
        for place, low, scores in self.prompts:
            found.setdefault(place, []).extend((low + i, one) for i, (one,) in scores.read().items())
        return found
