"""Sends a workload to a client at its times, whatever the answers do, and collects what came of it.

Open arrivals: each request has an intended time, and its latency counts from there, also while it waits for a
place under a cap or for a client that is late itself. Closed arrivals: so many at a time, each from when its
place was free; such a load slows down with the server, and its latencies say less.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from time import perf_counter

from ridgeline.bench.serve.client import Observed
from ridgeline.workload.offered import Offered, Workload

Send = Callable[[int, Offered, float], Awaitable[Observed]]
_LEAD_S = 0.05  # from now to the workload's start


async def drive(workload: Workload, send: Send, *, max_concurrency: int | None, duration_s: float | None,
                done: Callable[[Observed], object]) -> list[Observed]:
    """All requests in the order of the workload. done: called with each as it ends."""
    observed: list[Observed | None] = [None] * len(workload.requests)

    async def one(number: int, intended_s: float) -> None:
        async with places:
            result = await send(number, workload.requests[number], intended_s)
        observed[number] = result
        done(result)

    with _steady():
        start_s = perf_counter() + _LEAD_S
        if workload.num_at_a_time is None:
            places = asyncio.Semaphore(max_concurrency) if max_concurrency else nullcontext()
            async with asyncio.TaskGroup() as tasks:
                for number, offered in enumerate(workload.requests):
                    await _until(start_s + offered.arrived_s)
                    tasks.create_task(one(number, start_s + offered.arrived_s))
        else:
            places, numbers = nullcontext(), iter(range(len(workload.requests)))
            ends_s = start_s + duration_s if duration_s is not None else float("inf")
            at_a_time = min(workload.num_at_a_time, max_concurrency or workload.num_at_a_time)
            async with asyncio.TaskGroup() as tasks:
                for _ in range(at_a_time):
                    tasks.create_task(_in_turn(numbers, one, ends_s))
    return [result for result in observed if result is not None]


async def _in_turn(numbers: Iterator[int], one: Callable[[int, float], Awaitable[None]],
                   ends_s: float) -> None:
    """One of the clients of a closed load."""
    for number in numbers:
        if perf_counter() >= ends_s:
            return
        await one(number, perf_counter())


async def _until(time_s: float) -> None:
    while (left_s := time_s - perf_counter()) > 0:
        await asyncio.sleep(left_s)


@contextmanager
def _steady() -> Iterator[None]:
    """Garbage collection passes over what is there already: its pauses would be taken for the server's."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
