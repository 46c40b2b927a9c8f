"""Protects the probe: it measures something plausible, soon, on as many threads as asked, and says where."""

import time

import pytest
import torch

from ridgeline.engine.probe import FULL, QUICK, Effort, better, probe_machine, read_rate


@pytest.mark.parametrize("effort", [QUICK, FULL])
def test_a_machine_is_measured_in_seconds(effort: Effort) -> None:
    """Bounds so wide that only a unit error or a hang leaves them."""
    started = time.monotonic()
    profile = probe_machine("test", 16_000_000, effort)
    assert time.monotonic() - started < 60
    assert 1e8 < profile.read_bytes_per_s < 1e13
    assert 1e8 < profile.flops_per_s["float32"] < 1e14 and profile.flops_per_s["bfloat16"] > 1e7
    assert {"float32", "bfloat16"} <= set(profile.flops_per_s) <= {"float32", "bfloat16", "int8"}
    assert profile.threads == torch.get_num_threads() and profile.memory_bytes > 10**9
    assert profile.about["torch"] == torch.__version__
    assert set(profile.about) == {"processor", "cores", "torch", "commit", "load"}


def test_the_number_of_threads_is_left_as_it_was() -> None:
    """The engine computes on after the probe, in this thread and in new ones."""
    torch.set_num_threads(2)
    assert read_rate(1000, QUICK) > 0
    assert torch.get_num_threads() == 2


def test_of_two_probes_the_better_rates_count() -> None:
    slow, fast = (probe_machine("test", effort=Effort(read_bytes=2**20, budget_s=0.0)) for _ in range(2))
    both = better(slow, fast)
    assert both.read_bytes_per_s == max(slow.read_bytes_per_s, fast.read_bytes_per_s)
    assert all(both.flops_per_s[name] >= slow.flops_per_s[name] for name in slow.flops_per_s)
