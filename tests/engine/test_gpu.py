"""The whole engine on a GPU, from the outside: what a start refuses and what it says; --deterministic; memory
that runs out; a request whose numbers are not finite."""

import logging
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ridgeline import LLM, SamplingParams
from ridgeline.base.errors import ConfigError
from ridgeline.engine.outputs import RequestOutput
from tests.engine.tiny import mamba_folder, tiny_folder
from tests.helpers import tokens_of
from tests.kernels.devices import ONLY_GPU

pytestmark = ONLY_GPU
DEVICE = "cuda"
FIELDS = {"head_dim": 16, "tie_word_embeddings": False, "max_position_embeddings": 4096, "vocab_size": 97,
          "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
GREEDY = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True, logprobs=4, detokenize=False)
PROMPTS = [tokens_of(n, seed=n).tolist() for n in (3, 41, 18, 130)]
LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 64,
    "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 1, "first_k_dense_replace": 2, "moe_layer_freq": 1, "routed_scaling_factor": 1.0,
    "topk_method": "greedy", "n_group": None, "topk_group": None, "scoring_func": "softmax",
    "norm_topk_prob": False, "rms_norm_eps": 1e-6,
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of a GPU that others work on meanwhile is nobody else's."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


def start(path: Path, *, fields: dict[str, object] | None = None, **config: object) -> LLM:
    """A tiny Llama of random weights whose heads the kernels serve."""
    folder = tiny_folder(path / "model", tokenizer=False, **(FIELDS | (fields or {})))
    sizes = {"max_num_seqs": 4, "kv_cache_bytes": 8 << 20, "device": DEVICE}
    return LLM(str(folder), load_format="dummy", progress=False, **(sizes | config))  # type: ignore[arg-type]


def texts(outputs: list[RequestOutput]) -> list[object]:
    """Tokens and log-probabilities as they are held."""
    assert all(output.outputs[0].finish_reason == "length" for output in outputs), outputs
    return [(one.outputs[0].token_ids, one.outputs[0].logprobs, one.prompt_logprobs) for one in outputs]


# ---- --deterministic


def test_deterministic_alone_is_batched(tmp_path: Path) -> None:
    """Long prompts that share steps and beginnings, alone whole and in company in chunks: the longest steps
    would fill the GPU twice with larger tiles. To the bit, prompts' log-probabilities too."""
    long = tokens_of(1500, seed=0).tolist()
    prompts = [long, [*long[:700], *tokens_of(600, seed=1).tolist()], *PROMPTS]
    asks = [GREEDY, SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, prompt_logprobs=2,
                                   logprobs=2, detokenize=False)]
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 64}
    with start(tmp_path, fields=heads, deterministic=True, max_num_batched_tokens=1600,
               kv_cache_bytes=32 << 20) as llm:
        choices = llm.info["startup"]["choices"]
        assert llm.info["deterministic"] and choices["deterministic"]["value"] == "on"
        assert DEVICE == "cpu" or "deterministic" in choices["decode"]["why"]
        for params in asks:
            together, again = (texts(llm.generate(prompts, params)) for _ in range(2))
            alone = [texts(llm.generate(prompt, params))[0] for prompt in prompts]
            assert together == again == alone
        assert llm.stats()["num_cached_tokens"]


@pytest.mark.parametrize(("config", "says"), [
    ({"max_loras": 1}, "on a GPU a library makes an adapter's products"),
    ({"dtype": "float32"}, "a GPU multiplies float32 by a library"),
])  # fmt: skip
def test_deterministic_is_refused(tmp_path: Path, config: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=f"deterministic: {says}.*device cpu"):
        start(tmp_path, deterministic=True, **config)


def test_deterministic_is_refused_for_blocks_without_such_a_path(tmp_path: Path) -> None:
    """States and latents: by their names, and what helps."""
    folders = {"mamba": mamba_folder(tmp_path / "states")}
    folders["attn"] = tiny_folder(tmp_path / "latents", tokenizer=False, **LATENT)
    for block, folder in folders.items():
        with pytest.raises(ConfigError, match=rf"only plain attention.*\(.*{block}.*\); use device cpu"):
            LLM(str(folder), load_format="dummy", device=DEVICE, deterministic=True, progress=False)


# ---- without the kernels


@pytest.mark.parametrize("lacking", ["Triton is not installed", "compute capability 7.5 is below 8.0"])
def test_without_kernels_torch_runs_the_model_and_says_so_once(
    tmp_path: Path, lacking: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No Triton, or a GPU of an older generation: the texts of a CPU, drawn ones and such with drafts too."""
    prompts = [*PROMPTS, [4] * 8]
    drawn = replace(GREEDY, temperature=0.8, top_p=0.9, seed=1, repetition_penalty=1.2)
    asks = [GREEDY, GREEDY, drawn, GREEDY, replace(GREEDY, logit_bias={4: 30.0})]
    same: dict[str, object] = {"dtype": "float32", "speculate": "ngram"}
    if "Triton" in lacking:
        monkeypatch.setattr("ridgeline.kernels.gpu.find_spec", lambda name: None)
    else:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    with caplog.at_level(logging.INFO, "ridgeline"), start(tmp_path, **same) as llm:
        found = llm.generate(prompts, asks)
        assert llm.stats()["num_accepted_tokens"]
    said = [text for text in caplog.messages if "reference path" in text]
    assert len(said) == 1 and lacking in said[0], said
    assert llm.info["startup"]["choices"]["kernels"]["value"] == "torch"
    with start(tmp_path, **same, device="cpu") as twin:
        for got, want in zip(found, twin.generate(prompts, asks), strict=True):
            assert got.outputs[0].token_ids == want.outputs[0].token_ids
            pair = (one.outputs[0].cumulative_logprob for one in (got, want))
            np.testing.assert_allclose(*pair, atol=1e-2)
    with pytest.raises(ConfigError, match="deterministic: without the Triton kernels"):
        start(tmp_path, deterministic=True)


# ---- memory


def test_a_gpu_that_is_too_small_is_refused_with_the_change_that_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bytes, weights, steps and graphs against what is free; what the errors name starts and answers, in
    the memory that there is."""
    free, total = 900_000_000, 4_000_000_000
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, total))
    wide: dict[str, object] = {"intermediate_size": 4096}
    with pytest.raises(ConfigError) as small:
        start(tmp_path, fields=wide, kv_cache_bytes=None)
    size = r"[\d.]+ [kMGT]?B"
    found = re.fullmatch(
        rf"of 4 GB on the GPU 900 MB are free beside weights of {size}; steps take {size} of it, graphs "
        rf"{size}: 0 B are left for the KV cache, which needs {size} at least; set max_num_batched_tokens to "
        r"(\d+)", str(small.value))  # fmt: skip
    assert found is not None, str(small.value)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    fits = int(found[1])
    with start(tmp_path, fields=wide, kv_cache_bytes=None, max_num_batched_tokens=fits) as llm:
        assert len(texts(llm.generate(PROMPTS, GREEDY))) == 4
    assert torch.cuda.max_memory_reserved() - before < free

    free = 1_500_000_000
    with pytest.raises(ConfigError, match=rf"kv_cache_bytes {size} do not fit") as much:
        start(tmp_path, kv_cache_bytes=10**12)
    most = re.search(r"set it to at most (\d+)$", str(much.value))
    assert most is not None, str(much.value)
    with start(tmp_path, kv_cache_bytes=int(most[1])) as llm:
        assert len(texts(llm.generate(PROMPTS, GREEDY))) == 4

    free = 10_000
    with pytest.raises(ConfigError, match=rf"the weights take {size} and 10 kB of the GPU's 4 GB are free"):
        start(tmp_path)


def test_a_step_that_finds_no_memory_goes_in_parts(tmp_path: Path) -> None:
    """The allocator may take half of what the prompts' step took: steps become shorter, and the texts are the
    same."""
    prompts = [tokens_of(240, seed=n).tolist() for n in range(8)]
    device = torch.cuda.current_device()
    with start(tmp_path, fields={"intermediate_size": 16384}, deterministic=True, max_num_seqs=8,
               max_num_batched_tokens=2048, prefix_caching=False) as llm:
        llm.generate(prompts, GREEDY)  # what a library takes for good
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_reserved()
        wanted = texts(llm.generate(prompts, GREEDY))
        taken = torch.cuda.max_memory_reserved() - held
        assert taken > 50_000_000 and not llm.stats()["num_short_steps"]
        torch.cuda.empty_cache()
        limit = (torch.cuda.memory_reserved() + taken // 2) / torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(limit, device)
        try:
            found = texts(llm.generate(prompts, GREEDY))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, device)
        assert llm.stats()["num_short_steps"] and llm.stats()["step_token_limit"] < 2048
        assert found == wanted


# ---- numbers that are not finite


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_request_that_is_not_finite_fails_alone(tmp_path: Path, deterministic: bool) -> None:
    """A token whose weights are NaN, in the middle of a batch: its request says why, the others go on, then
    and later."""
    with start(tmp_path, deterministic=deterministic, prefix_caching=False) as llm:
        wanted = llm.generate(PROMPTS, GREEDY)
        known = {token for one in wanted for token in (*one.prompt_token_ids, *one.outputs[0].token_ids)}
        bad = next(token for token in range(3, 97) if token not in known)
        with torch.inference_mode():
            llm._engine.executor._model._embedding._weight[bad] = torch.nan  # type: ignore[index]
        outputs = llm.generate([*PROMPTS[:2], [5, bad, 7], *PROMPTS[2:]], GREEDY)
        (broken,) = outputs.pop(2).outputs
        assert broken.finish_reason == "error" and not broken.token_ids
        assert "not finite" in (broken.error or "")
        later = llm.generate(PROMPTS, GREEDY)
    for found in (outputs, later):
        same = texts(found) == texts(wanted)
        assert same or not deterministic  # else near ties may change with the batch
