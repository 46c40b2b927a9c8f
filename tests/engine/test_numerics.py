"""Protects the choice of numbers: packed where the kernels are, float32 where they cannot be, and why."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.numerics import Numerics, choose_device, choose_gpu, choose_numerics
from ridgeline.engine.startup import Startup
from ridgeline.models.checkpoint import Checkpoint, open_checkpoint
from ridgeline.models.resolve import open_model
from ridgeline.quant.packed import Packing32
from tests.engine.tiny import tiny_folder
from tests.quant.blocks import kernels

ROOT = Path(__file__).resolve().parents[2]


def chosen(checkpoint: Checkpoint | None = None, *, dtype: str = "auto",
           kv_cache_dtype: str = "auto") -> tuple[Numerics, dict[str, dict[str, str]]]:
    """For the default model, or another."""
    startup, config = Startup(WallClock()), EngineConfig(dtype=dtype, kv_cache_dtype=kv_cache_dtype)
    numerics = choose_numerics(config, checkpoint or open_model(None), startup)
    return numerics, startup.as_dict()["choices"]


@pytest.mark.parametrize(("asked", "there", "chosen"), [
    ("auto", False, "cpu"), ("auto", True, "cuda"), ("cpu", True, "cpu"), ("cuda", True, "cuda")])
def test_a_gpu_is_taken_where_there_is_one(asked: str, there: bool, chosen: str,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    startup = Startup(WallClock())
    assert choose_device(EngineConfig(device=asked), startup).type == chosen
    assert startup.choices["device"][0] == chosen


def test_a_device_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device, said in (("cuda", "no NVIDIA GPU"), ("tpu", "not known")):
        with pytest.raises(ConfigError, match=said):
            choose_device(EngineConfig(device=device), Startup(WallClock()))


@pytest.mark.parametrize(("capability", "says"), [
    (None, "Triton is not installed"), ((7, 5), "compute capability 7.5 is below 8.0")])
def test_a_gpu_without_kernels_is_left_to_torch(capability: tuple[int, int] | None, says: str,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    """Said once, with the reason. On a GPU such a start runs in tests/engine/test_gpu.py."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr("ridgeline.kernels.gpu.find_spec", lambda name: capability)
    startup = Startup(WallClock())
    assert choose_gpu(EngineConfig(), torch.device("cuda"), startup) is None
    value, why = startup.choices["kernels"]
    assert value == "torch" and says in why and why.endswith(": the slow reference path")


def test_a_gpu_computes_in_bfloat16(tmp_path: Path) -> None:
    """Whatever the checkpoint is in, its cache too; a dtype that is asked for stands."""
    checkpoint = open_checkpoint(tiny_folder(tmp_path), load_format="dummy")
    for dtype, found in (("auto", torch.bfloat16), ("float32", torch.float32)):
        numerics = choose_numerics(EngineConfig(dtype=dtype), checkpoint, Startup(WallClock()),
                                   torch.device("cuda"))
        assert numerics.activations is numerics.cache is found


def test_a_quantized_checkpoint_stays_packed() -> None:
    """Its matrices, the embedding and the head; norms are plain."""
    kernels()
    numerics, choices = chosen()
    assert (numerics.name, numerics.activations, numerics.cache) == ("packed", torch.float32, torch.bfloat16)
    assert choices["dtype"]["value"] == "packed" and "C kernels" in choices["dtype"]["why"]
    params = dict(open_model(None).spec.params())
    packed = {name for name, param in params.items() if isinstance(numerics.policy(name, param), Packing32)}
    assert packed == {name for name, param in params.items() if param.role in ("linear", "embed")}


def test_plain_numbers_stay_exact(tmp_path: Path) -> None:
    """A checkpoint that nobody quantized runs in float32, its cache too."""
    checkpoint = open_checkpoint(tiny_folder(tmp_path), load_format="dummy")
    numerics, choices = chosen(checkpoint)
    assert numerics.name == "float32" and numerics.cache is torch.float32
    assert "plain numbers" in choices["dtype"]["why"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_dtype_that_is_asked_for(dtype: str) -> None:
    numerics, choices = chosen(dtype=dtype)
    assert numerics.name == dtype and choices["dtype"] == {"value": dtype, "why": "as given"}
    assert numerics.activations is numerics.cache is getattr(torch, dtype)


def test_a_cache_dtype_that_is_asked_for() -> None:
    kernels()
    numerics, _ = chosen(kv_cache_dtype="float32")
    assert numerics.name == "packed" and numerics.cache is torch.float32


def test_without_a_compiler(tmp_path: Path) -> None:
    """A fresh machine serves in float32; the log says so once, the startup record says what to do."""
    script = """
import json, logging
logging.basicConfig(level=logging.WARNING)
from tests.engine.test_numerics import chosen
chosen()
numerics, choices = chosen()
print(json.dumps([numerics.name, str(numerics.cache), choices["dtype"]]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "CC"}
    environment |= {"PATH": str(tmp_path), "RIDGELINE_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT,
                          env=environment, timeout=100)
    assert done.returncode == 0, done.stderr
    name, cache, choice = json.loads(done.stdout)
    assert (name, cache, choice["value"]) == ("float32", "torch.float32", "float32")
    assert choice["why"] == "no C compiler for the packed kernels: install gcc or clang for speed"
    assert done.stderr.count("no C compiler") == 1
