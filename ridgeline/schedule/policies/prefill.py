"""Continuous batching with prefill priority: while prompts wait that have room, steps hold prompts alone and
rows that decode stall, but never for more than STALL steps in a row."""

from ridgeline.schedule.policies.policy import Limits, Policy, View

STALL = 8


class PrefillFirst(Policy):
    lines_up = False

    def limits(self, view: View, now: float) -> Limits:
        prompting = view.rows.prompting()
        stall = view.held < STALL and ((view.queue and view.rows.num_free) or prompting.any())
        return Limits(tokens=view.most_tokens, rows=prompting if stall else None, whole=True)
