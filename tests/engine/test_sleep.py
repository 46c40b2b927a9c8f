"""LLM.sleep, wake_up and reload_weights: memory goes back, and nothing of old weights is found again."""

from pathlib import Path

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.base.errors import ConfigError, RequestError, RidgelineError
from tests.engine.weights import saved_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
PROMPT = [3 + i % 90 for i in range(40)]


def engine(folder: Path) -> LLM:
    return LLM(str(folder), kv_cache_bytes=4 << 20, threads=1, max_num_seqs=4, progress=False)


def said(llm: LLM) -> object:
    (output,) = llm.generate([PROMPT], GREEDY)
    return output.outputs[0].token_ids, output.outputs[0].logprobs


def test_asleep_and_awake_again(tmp_path: Path) -> None:
    with engine(saved_folder(tmp_path / "a", seed=1)) as llm:
        first = said(llm)
        with pytest.raises(ConfigError, match="level 3"):
            llm.sleep(3)
        llm.sleep(2)
        llm.sleep(1)
        assert llm.is_sleeping and llm.info["family"] == "llama"
        with pytest.raises(RequestError, match="wake_up"):
            llm.generate([PROMPT], GREEDY)
        llm.wake_up()
        llm.wake_up()
        assert not llm.is_sleeping and said(llm) == first
        llm.sleep()  # an LLM may be closed asleep


def test_old_prefixes_are_not_found_by_new_weights(tmp_path: Path) -> None:
    """The same prompt, cached under the old weights, says under the new ones what a new engine says."""
    a, b = saved_folder(tmp_path / "a", seed=1), saved_folder(tmp_path / "b", seed=2)
    with engine(b) as llm:
        expected = said(llm)
    with engine(a) as llm:
        before = said(llm)
        assert said(llm) == before and llm.stats()["num_cached_tokens"] > 0
        llm.reload_weights(str(b))
        assert said(llm) == expected != before
        assert said(llm) == expected and llm.config.model == str(b)
        llm.sleep(2)
        llm.reload_weights(str(a))  # wakes it
        assert said(llm) == before


def test_what_cannot_be_loaded_leaves_the_old_weights(tmp_path: Path) -> None:
    a = saved_folder(tmp_path / "a", seed=1)
    wide = saved_folder(tmp_path / "wide", seed=1, intermediate_size=64)
    broken = saved_folder(tmp_path / "broken", seed=1)
    with (broken / "model.safetensors").open("r+b") as file:
        file.truncate(2000)
    with engine(a) as llm:
        before = said(llm)
        with pytest.raises(ConfigError, match="another shape"):
            llm.reload_weights(str(wide))
        assert said(llm) == before
        with pytest.raises(RidgelineError):
            llm.reload_weights(str(broken))
        assert said(llm) == before and llm.config.model == str(a)
