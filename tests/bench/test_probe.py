"""Protects the probe: it measures something plausible within seconds, and says where."""

import time

import torch

from ridgeline.bench.probe import probe_machine


def test_a_machine_is_measured_in_seconds() -> None:
    """Bounds so wide that only a unit error or a hang leaves them."""
    started = time.monotonic()
    profile = probe_machine("test", model_bytes=16_000_000)
    assert time.monotonic() - started < 60
    assert 1e8 < profile.read_bytes_per_s < 1e13
    assert 1e8 < profile.flops_per_s["float32"] < 1e14 and profile.flops_per_s["bfloat16"] > 1e7
    assert profile.threads == torch.get_num_threads() and profile.memory_bytes > 10**9
    assert profile.about["torch"] == torch.__version__
    assert set(profile.about) == {"processor", "cores", "torch", "commit", "load"}
