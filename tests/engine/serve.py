"""A service over the fake executor, in a thread: for tests of the socket without a model."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import zmq

from ridgeline.base.clock import WallClock
from ridgeline.engine.service import Service
from ridgeline.kv.manager import KVManager
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.scheduler import Scheduler
from tests.helpers_schedule import EOS, FakeExecutor, layout_of


def fake_loop(*, before_step: Callable[[StepPlan], None] = lambda plan: None, num_pages: int = 64) -> Loop:
    """A loop over the fake model. before_step: called as a step is finished; may sleep or raise."""

    def blow_up(plan: StepPlan) -> Exception | None:
        before_step(plan)
        return None

    executor = FakeExecutor(layout=layout_of("paged"), num_pages=num_pages, blow_up=blow_up)
    scheduler = Scheduler(
        executor.capacity(), KVManager(executor.layout, num_pages), make_policy("fcfs"),
        max_num_batched_tokens=64, max_num_seqs=8, eos_token_ids=EOS)  # fmt: skip
    return Loop(scheduler, executor, WallClock())


@contextmanager
def service_over(loop: Loop) -> Iterator[tuple[Service, str]]:
    """(service, address) while the block runs; the loop is empty and sound afterwards."""
    with TemporaryDirectory(prefix="ridgeline-test-") as folder:
        address = f"ipc://{Path(folder) / 'engine.sock'}"
        context = zmq.Context()
        socket = context.socket(zmq.ROUTER)
        socket.set(zmq.ROUTER_MANDATORY, 1)
        socket.set(zmq.LINGER, 0)
        socket.bind(address)
        service = Service(loop, socket, {"vocab_size": 40}, WallClock())
        broken: list[BaseException] = []

        def run() -> None:
            try:
                service.run()
            except BaseException as error:
                broken.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield service, address
        finally:
            service.stop()
            thread.join(20)
            alive = thread.is_alive()
            socket.close()
            context.term()
        assert not alive and not broken, broken
        assert loop.idle()
        loop.check()
