"""First come, first served; nobody who runs is put aside for somebody who waits."""

from ridgeline.schedule.request import Request


class FirstCome:
    passes: int | None = 0

    def order(self, request: Request) -> tuple[float, ...]:
        return (request.arrived_s, request.number)

    def outranks(self, waiting: Request, running: Request) -> bool:
        return False
