"""Shortest predicted answer first. Where the caller predicts nothing and more than its length may end it, the
median of its tenant's latest answers stands in, and what a request asks for at the most before one has
ended."""

from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.request import Request


class Shortest(Policy):
    def order(self, request: Request) -> tuple[float, ...]:
        return (request.predicted_output, request.arrived_s, request.number)
