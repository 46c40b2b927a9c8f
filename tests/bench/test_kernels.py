"""Protects `bench kernels`: what it refuses, what a step of a shape is made of, what the report says."""

import json

import pytest
import torch

from ridgeline.base.errors import ConfigError
from ridgeline.bench.chain import linear_shapes, parts
from ridgeline.bench.kernels import KernelArgs, KernelReport, Step, Timed, run
from ridgeline.bench.split import Part, Split, parts_of
from ridgeline.cli import main
from ridgeline.engine.ceilings import Ceilings
from ridgeline.kernels.decode_linear.tuning import LinearShape
from ridgeline.models.checkpoint import open_shape

CEILINGS = Ceilings(read_bytes_s=4e12, copy_bytes_s=3.6e12, flops_s=8e14, float32_flops_s=5e13)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ConfigError, match="no GPU kernels: "):
        run(KernelArgs(shape="llama-3.1-8b"))


def test_a_wrong_name_comes_before_the_gpu() -> None:
    with pytest.raises(ConfigError, match="no published shape named 'llama-9'"):
        run(KernelArgs(shape="llama-9"))


@pytest.mark.parametrize(("words", "named"), [
    (["kernels", "--concurrency", "2"], "--concurrency"), (["kernels", "--no-cache"], "--no-cache"),
    (["kernels", "--max-num-seqs", "3"], "--max-num-seqs"), (["latency", "--tune"], "--tune")])
def test_a_flag_without_use_is_refused(words: list[str], named: str,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) != 0
    assert f"has no use for {named}" in capsys.readouterr().err


def test_a_step_is_made_of_the_shapes_own_linears() -> None:
    spec = open_shape("llama-3.1-8b").spec
    shapes = linear_shapes(spec)
    assert shapes["gate_up"] == LinearShape(n=14336, k=4096, norm=True, gated=True)
    assert shapes["qkv"] == LinearShape(n=6144, k=4096, norm=True)
    layers = sum(s.weight_elements for name, s in shapes.items() if name != "head") * len(parts(spec))
    assert 0.99 < (layers + 2 * shapes["head"].weight_elements) / spec.num_params <= 1


def test_the_report_holds_rates_and_shares() -> None:
    report = KernelReport(
        shape="tiny", gpu="GPU", context=129, ceilings=CEILINGS, steps=(
            Step(rows=1, launch="plain", seconds=4e-3, floor_s=3e-3),
            Step(rows=32, launch="plain", seconds=5e-3, floor_s=3e-3, split=Split(
                parts=(Part(kernel="tma_kernel", launches=50, seconds=4e-3),), gaps_s=1e-3, replay_s=2e-5,
                launch_s=9e-3))),
        kernels=(Timed(name="qkv", rows=1, seconds=2e-5, num_bytes=40_000_000, flops=40_000_000,
                       floor_s=1e-5, cublas_s=3e-5),
                 Timed(name="attention", rows=128, seconds=1e-3, num_bytes=1000, flops=int(4e11),
                       floor_s=5e-4)))
    text = report.text()
    assert "2000 GB/s" in text and "cuBLAS 30.00" in text and "400 TFLOP/s" in text and "75% of it" in text
    assert "4.000 ms  80%  tma_kernel, 50 launches" in text and "between 50 kernels, 20.00 us each" in text
    data = json.loads(json.dumps(report.as_json()))
    assert data["bench"] == "kernels" and data["kernels"][0]["cublas_s"] == 3e-5
    assert data["ceilings"]["read_bytes_s"] == 4e12 and data["steps"][0]["seconds"] == 4e-3


def test_a_step_is_split_by_kernel() -> None:
    """Of several replays, those of one; the longest together first; names without their arguments."""
    seen = [("void add(int)", 1e-6), ("dot_kernel", 3e-6), ("dot_kernel", 5e-6)] * 3
    assert parts_of(seen, 3) == (Part(kernel="dot_kernel", launches=2, seconds=pytest.approx(8e-6)),
                                 Part(kernel="add", launches=1, seconds=pytest.approx(1e-6)))
    assert parts_of([], 3) == ()
