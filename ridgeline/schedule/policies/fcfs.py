"""Continuous batching, first come, first served (Yu et al. 2022, Orca): a request starts in the first step
that has a row, pages and tokens for its whole prompt. Only a step's first prompt is ever cut, by the step's
limit, so that prompts longer than it run too; rows that decode wait for the prompts beside them."""

from ridgeline.schedule.policies.policy import Limits, Policy, View


class FirstCome(Policy):
    def limits(self, view: View, now: float) -> Limits:
        return Limits(tokens=view.most_tokens, whole=True)
