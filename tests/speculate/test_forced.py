"""Jump-ahead: where a grammar leaves no choice tokens cost no step each, and answers stay what they were."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.blocks.step import Step
from ridgeline.frontend import structure
from ridgeline.nn.build import Model
from tests.engine.tiny import mamba_folder, tiny_folder

OWN: dict[str, Any] = {"load_format": "dummy", "dtype": "float32", "threads": 1, "max_num_seqs": 8,
                       "progress": False}
ORDER = {"type": "object", "properties": {"customer_id": {"type": "integer", "minimum": 10, "maximum": 99},
         "state_of_order": {"enum": ["shipped", "shelved"]}}, "required": ["customer_id", "state_of_order"],
         "additionalProperties": False}  # fmt: skip
EMOJI = {"enum": ["Grüße 👩🏽‍🚀 你好", "Grüße 👩🏽‍🚀 да"]}
PROMPTS = ["one two one two one", "abc", "nothing is said twice", "said and said and", "x", "two one two"]


def params() -> list[SamplingParams]:
    order, word = structure.json_schema(ORDER), structure.json_schema(EMOJI)
    return [
        SamplingParams(temperature=0.0, max_tokens=120, grammar=order),
        SamplingParams(temperature=0.9, seed=3, max_tokens=120, n=2, grammar=order, repetition_penalty=1.2,
                       frequency_penalty=0.4),
        SamplingParams(temperature=0.0, max_tokens=120, grammar=word, stop=("你",)),
        SamplingParams(temperature=0.0, max_tokens=21, grammar=order, logprobs=1),
        SamplingParams(temperature=1.0, seed=5, max_tokens=33, grammar=order),
        SamplingParams(temperature=0.8, seed=1, max_tokens=40)]


def answers(folder: Path, *, jump_ahead: bool, **settings: Any) -> tuple[list[tuple[Any, ...]], Any]:
    with LLM(str(folder), jump_ahead=jump_ahead, **OWN, **settings) as llm:
        found = llm.generate(PROMPTS, params(), progress=False)
        stats = llm.stats()
    return [(one.text, one.token_ids, one.finish_reason, one.stop_reason)
            for output in found for one in output.outputs], stats


@pytest.mark.parametrize("settings", [
    {"kv_cache_bytes": 2_000_000}, {"kv_cache_bytes": 2_000_000, "speculate": "ngram"},
    {"kv_cache_bytes": 45_000, "policy": "chunked:12", "prefix_caching": False},
    pytest.param({"cache": False}, marks=pytest.mark.soak),
])  # fmt: skip
def test_the_same_answers_in_fewer_steps(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Greedy and seeded, n, penalties, stop strings among forced tokens, limits within them,
    log-probabilities; beside free rows, with drafts, in small chunks and preempted, without a cache."""
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=160)
    plain, slow = answers(folder, jump_ahead=False, **settings)
    jumped, fast = answers(folder, jump_ahead=True, **settings)
    assert jumped == plain
    assert fast["num_steps"] < 0.8 * slow["num_steps"] or "policy" in settings
    assert "policy" not in settings or fast["num_preemptions"]
    assert json.loads(plain[0][0])["customer_id"] in range(10, 100)
    assert plain[3][0] == '"Grüße 👩🏽‍🚀 ' and plain[3][2:] == ("stop", "你")
    assert plain[4][2] == "length" and len(plain[4][1]) == 21


def test_models_with_states(tmp_path: Path) -> None:
    """A forced chunk moves a recurrent state as its tokens one by one do."""
    folder = mamba_folder(tmp_path / "model")
    settings: dict[str, Any] = {"kv_cache_bytes": 2_000_000, "max_model_len": 160}
    plain, slow = answers(folder, jump_ahead=False, **settings)
    jumped, fast = answers(folder, jump_ahead=True, **settings)
    assert jumped == plain and fast["num_steps"] < 0.8 * slow["num_steps"]


@pytest.mark.soak
def test_steps_that_lack_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step that is undone has forced is forced again."""
    folder = tiny_folder(tmp_path / "model", max_position_embeddings=160)
    settings: dict[str, Any] = {"kv_cache_bytes": 2_000_000}
    plain, _ = answers(folder, jump_ahead=False, **settings)
    forward = Model.forward

    def small(model: Model, step: Step) -> Any:
        if len(step.ids_T) > 10:
            raise MemoryError
        return forward(model, step)

    monkeypatch.setattr(Model, "forward", small)
    jumped, stats = answers(folder, jump_ahead=True, **settings)
    assert jumped == plain and stats["num_undone"]
