"""Shortest predicted answer first. Nobody predicts? Then what a request asks for at the most stands in."""

from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.request import Request


class Shortest(Policy):
    def order(self, request: Request) -> tuple[float, ...]:
        return (request.predicted_output, request.arrived_s, request.number)
