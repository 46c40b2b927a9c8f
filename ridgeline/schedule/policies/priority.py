"""Priority classes, lower is sooner; first come inside a class. A class may take the place of a strictly
lower one."""

from ridgeline.schedule.policies.policy import Policy
from ridgeline.schedule.request import Request


class Priority(Policy):
    def order(self, request: Request) -> tuple[float, ...]:
        return (request.priority, request.arrived_s, request.number)

    def outranks(self, waiting: Request, running: Request) -> bool:
        return waiting.priority < running.priority
