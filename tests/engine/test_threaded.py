"""A loop in a thread: news to whoever asked, and its end told to all."""

import queue
import threading
import time
from typing import Any

import numpy as np
import pytest

from ridgeline.base.errors import EngineDeadError, RequestError
from ridgeline.engine.threaded import LoopThread
from ridgeline.frontend.protocol import News
from ridgeline.schedule.plan import StepPlan
from ridgeline.schedule.request import NewRequest
from ridgeline.spec.sampling import SamplingParams
from tests.engine.serve import fake_loop
from tests.helpers_schedule import expected

LONG = SamplingParams(max_tokens=100, ignore_eos=True)


def new(name: str, prompt: list[int], params: SamplingParams) -> NewRequest:
    return NewRequest(id=name, prompt=np.array(prompt, np.int32), params=params)


def wait_for(items: "queue.SimpleQueue[Any]") -> list[News]:
    """All news until the end; raises what came instead."""
    found: list[News] = []
    while True:
        item = items.get(timeout=10)
        if isinstance(item, Exception):
            raise item
        found += item
        if any(news.finish for news in item):
            return found


def test_requests_from_many_threads() -> None:
    thread = LoopThread(fake_loop())
    results: dict[int, list[int]] = {}

    def ask(seed: int) -> None:
        items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        thread.submit(new(str(seed), [3, 4], SamplingParams(max_tokens=9, seed=seed)), items.put)
        results[seed] = [token for news in wait_for(items) for token in news.new_tokens]

    askers = [threading.Thread(target=ask, args=(seed,)) for seed in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(20)
    thread.close()
    assert results == {
        seed: expected([3, 4], SamplingParams(max_tokens=9), seed, 128)[0] for seed in range(12)
    }


def test_refusal_abort_and_close() -> None:
    thread = LoopThread(fake_loop(before_step=lambda plan: time.sleep(0.002)))
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread.submit(new("bad", [99], LONG), items.put)
    with pytest.raises(RequestError):
        wait_for(items)
    thread.submit(new("a", [3], LONG), items.put)
    items.get(timeout=10)
    thread.abort("a")
    assert wait_for(items)[-1].finish == "abort"
    thread.submit(new("b", [3], LONG), items.put)
    items.get(timeout=10)
    thread.close()
    with pytest.raises(EngineDeadError, match="closed"):
        wait_for(items)
    thread.submit(new("c", [3], LONG), items.put)
    with pytest.raises(EngineDeadError):
        wait_for(items)


def test_a_broken_loop_tells_everybody() -> None:
    """An executor that is gone takes the thread down, and nobody waits for ever."""

    def die(plan: StepPlan) -> None:
        raise EngineDeadError("the device is gone")

    thread = LoopThread(fake_loop(before_step=die))
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread.submit(new("a", [3], LONG), items.put)
    with pytest.raises(EngineDeadError, match="the device is gone"):
        wait_for(items)
    thread.submit(new("b", [3], LONG), items.put)
    with pytest.raises(EngineDeadError):
        wait_for(items)
    thread.close()


def test_a_sink_that_raises_loses_its_request_only() -> None:
    """An event loop that was closed cannot take news; its neighbour's request goes on."""
    thread = LoopThread(fake_loop())

    def broken(news: object) -> None:
        raise RuntimeError("closed")

    thread.submit(new("a", [3], LONG), broken)
    items: queue.SimpleQueue[Any] = queue.SimpleQueue()
    thread.submit(new("b", [3], SamplingParams(max_tokens=30, ignore_eos=True)), items.put)
    assert wait_for(items)[-1].finish == "length"
    thread.close()
