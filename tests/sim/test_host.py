"""Protects the host tier of a simulated engine: the live bookkeeping over copies that take virtual time."""

from dataclasses import replace

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.sim.node import Machine, Serving
from ridgeline.sim.run import simulate
from ridgeline.workload.offered import Offered, Workload
from tests.sim.helpers_sim import machine, workload


def with_host(num_host_pages: int, page_s: float, *, num_pages: int = 40) -> Machine:
    where = machine(num_pages=num_pages)
    return replace(where, page_s=page_s, capacity=replace(where.capacity, num_host_pages=num_host_pages))


def turns(num: int) -> Workload:
    """Three texts in turns, of which the device's cache holds one or two."""
    return Workload(about="turns", requests=[
        Offered(arrived_s=60.0 * i, num_prompt=81, num_output=3, prefix=(i % 3 * 2 + 1, i % 3 * 2 + 2),
                block_tokens=40) for i in range(num)])


def test_evicted_prefixes_come_back_and_their_copies_take_time() -> None:
    alone, slow, fast = (simulate(with_host(pages, page_s), Serving(), turns(9))
                         for pages, page_s in ((0, 0.0), (200, 0.02), (200, 0.0)))
    assert alone.host == {} and slow.host["swaps"] == 0
    assert slow.host["hit_tokens"] == 6 * 80 and slow.host["back_pages"] == 6 * 20
    assert 60 <= slow.host["out_pages"] < 9 * 21  # a page that came back is still there
    assert slow.host["copy_s"] == pytest.approx(
        0.02 * (slow.host["out_pages"] + slow.host["back_pages"]))
    # the last token of a prompt alone is 1.01 s; twenty pages back are 0.4 s
    assert fast.latencies["ttft"]["p50"] == pytest.approx(1.01)
    assert 1.01 + 0.02 * 20 <= slow.latencies["ttft"]["p50"] <= 1.01 + 0.02 * 40 + 1e-9  # and as many out
    assert alone.latencies["ttft"]["p50"] == pytest.approx(2.81)  # in two steps of at most 64 tokens


def test_a_victim_is_swapped_where_that_is_cheaper_and_wastes_nothing() -> None:
    load = workload(*[(0.1 * i, 20, 60) for i in range(4)])
    swapped, computed, dear = (simulate(with_host(pages, page_s), Serving(), load)
                               for pages, page_s in ((200, 0.001), (0, 0.0), (200, 5.0)))
    assert swapped.preemptions and swapped.host["swaps"] == swapped.preemptions
    assert swapped.wasted_tokens < computed.wasted_tokens
    assert dear.preemptions and dear.host["swaps"] == 0
    assert swapped.num_finished == computed.num_finished == dear.num_finished == 4


def test_contiguous_memory_has_no_host_tier() -> None:
    with pytest.raises(ConfigError, match="host-kv-bytes"):
        simulate(with_host(200, 0.1), Serving(kv="contiguous"), turns(2))
