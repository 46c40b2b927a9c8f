"""--deterministic at the start: what is refused and why, and the default path of plain and packed models."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ridgeline import LLM, SamplingParams
from ridgeline.adapters.slots import Touched
from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.engine import deterministic
from ridgeline.engine.deterministic import deterministic_device, prove_adapter, prove_products
from ridgeline.engine.numerics import Numerics
from ridgeline.engine.startup import Startup
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.apart import ROWS, ApartMethod, unlike
from ridgeline.nn.load import dense
from ridgeline.spec.model import ModelSpec
from tests.adapters.made import ALL, adapter_folder, loaded
from tests.engine.tiny import tiny_folder
from tests.helpers import tiny_latent, tiny_spec

CONFIG, CUDA = EngineConfig(deterministic=True), torch.device("cuda")
GPU = Gpu(device=CUDA, name="some", processors=132, interpret=False, programmatic=True)


def numerics(dtype: torch.dtype) -> Numerics:
    return Numerics(name="some", activations=dtype, cache=dtype, policy=dense(dtype))


@pytest.mark.parametrize(("spec", "dtype", "gpu", "reason"), [
    (tiny_spec(), torch.bfloat16, None, "Triton"),
    (tiny_spec(head_dim=16), torch.float32, GPU, "float32"),
    (tiny_latent(), torch.bfloat16, GPU, "attn"),
])  # fmt: skip
def test_refused_on_a_gpu(spec: ModelSpec, dtype: torch.dtype, gpu: Gpu | None, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        deterministic_device(CONFIG, spec, numerics(dtype), CUDA, gpu)


def test_a_gpu_is_told() -> None:
    told = deterministic_device(CONFIG, tiny_spec(head_dim=16), numerics(torch.bfloat16), CUDA, GPU)
    assert told is not None and told.apart
    assert deterministic_device(EngineConfig(), tiny_latent(), numerics(torch.float32), CUDA, GPU) is GPU


def test_refused_where_the_library_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library whose rows hang on their place: the start names the weight and what helps."""
    weights = {"embed.weight": torch.ones(8, 4), "final_norm.weight": torch.ones(4)}
    prove_products(weights, Startup(WallClock()))
    monkeypatch.setattr(deterministic, "unlike", lambda weight: True)
    with pytest.raises(ConfigError, match=r"embed\.weight \(8 x 4\).*GGUF"):
        prove_products(weights, Startup(WallClock()))


def test_a_library_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """`unlike` sees a row that hangs on its place, and one that hangs on the next."""
    weight, real = torch.randn(24, 16), ApartMethod.apply
    assert not unlike(weight)
    place = torch.arange(ROWS)[:, None] * 1e-6
    monkeypatch.setattr(ApartMethod, "apply", lambda self, x, first: real(self, x, first) + place)
    assert unlike(weight)
    monkeypatch.setattr(ApartMethod, "apply", lambda self, x, first: real(self, x, first) + x.mean() * 1e-3)
    assert unlike(weight)


def test_an_adapter_whose_rows_hang_on_their_place_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = loaded(adapter_folder(tmp_path / "one", tiny_spec(), seed=1, targets=ALL), tiny_spec())
    prove_adapter(adapter)
    real = Touched.add_own
    monkeypatch.setattr(Touched, "add_own", lambda self, out, x: real(self, out, x).add_(x.mean() * 1e-3))
    with pytest.raises(CheckpointError, match="deterministic"):
        prove_adapter(adapter)
    with pytest.raises(ConfigError, match="adapter"):
        deterministic_device(replace(CONFIG, max_loras=1), tiny_spec(), numerics(torch.bfloat16), CUDA, GPU)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 40])
def test_products_apart(rows: int) -> None:
    """Against torch's, and to the bit against each row alone."""
    weight, x = torch.randn(33, 20), torch.randn(rows, 40)[:, ::2]
    out = ApartMethod(weight).apply(x, 0)
    torch.testing.assert_close(out, x @ weight.T)
    assert torch.equal(out, torch.cat([ApartMethod(weight).apply(row, 0) for row in x.split(1)]))


@pytest.mark.parametrize("threads", [1, 2])
def test_alone_is_batched(tmp_path: Path, threads: int) -> None:
    """Through the whole engine, with prefix hits and more than one thread; `info` tells of it."""
    folder = tiny_folder(tmp_path / "model", intermediate_size=44)
    params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=4, prompt_logprobs=3)
    prompts = ["a", "some words", "some words and more of them " * 5]
    with LLM(str(folder), load_format="dummy", deterministic=True, max_num_batched_tokens=24, max_num_seqs=4,
             threads=threads, kv_cache_bytes=4 << 20, progress=False) as llm:
        assert llm.info["deterministic"] and llm.info["startup"]["choices"]["deterministic"]["value"] == "on"
        together = llm.generate(prompts, params)
        for prompt, output in zip(prompts, together, strict=True):
            (alone,) = llm.generate(prompt, params)
            assert alone.outputs[0].logprobs == output.outputs[0].logprobs
            assert alone.prompt_logprobs == output.prompt_logprobs
