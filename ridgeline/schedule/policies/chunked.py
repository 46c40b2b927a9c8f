"""Chunked prefill (Agrawal et al. 2024, Sarathi-Serve): steps of a fixed number of tokens, in which decodes
come first and prompts, cut where they must be, fill the rest."""

from ridgeline.schedule.policies.policy import Limits, Policy, View


class Chunked(Policy):
    """tokens: of a step, decodes included. It holds one of each row that runs in any case, so that a prompt
    always goes on."""

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens

    def limits(self, view: View, now: float) -> Limits:
        return Limits(tokens=min(max(self._tokens, view.rows.num_running + 1), view.most_tokens))
