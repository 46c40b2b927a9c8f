"""Speculation as a user asks for it: the same answers, and refusals that say what helps."""

from pathlib import Path

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.base.errors import ConfigError
from tests.engine.tiny import mamba_folder, tiny_folder

OWN = {"load_format": "dummy", "dtype": "float32", "threads": 1, "max_num_seqs": 8, "progress": False,
       "kv_cache_bytes": 2_000_000}
PROMPTS = ["one two one two one two one", "abc abc abc", "nothing is said twice", "said and said and"]


def answers(folder: Path, speculate: str | None) -> list[tuple[object, ...]]:
    few = dict.fromkeys(range(65, 70), 90.0)  # of which answers are made, so that they say things twice
    params = [
        SamplingParams(temperature=0.0, max_tokens=40, logprobs=1),
        SamplingParams(temperature=0.9, seed=3, max_tokens=40, n=2, stop=("e", "q")),
        SamplingParams(temperature=0.0, max_tokens=40, logit_bias=few, n=2, stop=("fcc",)),
        SamplingParams(temperature=0.0, max_tokens=1000)]  # to the border of the context
    with LLM(str(folder), speculate=speculate, speculate_max=3, max_model_len=96, **OWN) as llm:
        found = llm.generate(PROMPTS, params)
        drafts = llm.stats().get("num_draft_tokens")
    assert drafts if speculate else drafts is None
    return [(one.text, one.token_ids, one.finish_reason, one.stop_reason)
            for output in found for one in output.outputs]


def test_the_same_answers(tmp_path: Path) -> None:
    """Stop strings that end among drafts, n, log-probabilities and the border of the context, by look-up and
    with a draft model of equal width."""
    folder = tiny_folder(tmp_path / "model")
    plain = answers(folder, None)
    assert [stop for *_, stop in plain].count("fcc") == 2
    assert answers(folder, "ngram") == answers(folder, f"draft:{tiny_folder(tmp_path / 'draft')}") == plain
    assert len(plain[-1][1]) + len(PROMPTS[-1]) >= 95


def test_models_with_states(tmp_path: Path) -> None:
    """As target and as draft model: the same answers, with drafts and without."""
    folder = mamba_folder(tmp_path / "model")
    params = SamplingParams(temperature=0.0, max_tokens=40, logit_bias=dict.fromkeys(range(65, 70), 90.0))
    texts = []
    for speculate in (None, "ngram", f"draft:{folder}"):
        with LLM(str(folder), speculate=speculate, speculate_max=3, max_model_len=96, **OWN) as llm:
            texts.append([output.outputs[0].token_ids for output in llm.generate(PROMPTS, params)])
            assert speculate is None or llm.stats()["num_draft_tokens"]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(("speculate", "most", "text"), [
    ("magic", 4, "use ngram, or draft:MODEL"), ("draft:", 4, "use ngram, or draft:MODEL"),
    ("ngram", 0, "at least 1"), ("draft:OTHER", 4, "vocabulary of 300 tokens and the model one of 264")])
def test_refusals(tmp_path: Path, speculate: str, most: int, text: str) -> None:
    folder = tiny_folder(tmp_path / "model")
    other = tiny_folder(tmp_path / "other", vocab_size=300)
    with pytest.raises(ConfigError, match=text):
        LLM(str(folder), speculate=speculate.replace("OTHER", str(other)), speculate_max=most, **OWN)


def test_no_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="from the cache"):
        LLM(str(tiny_folder(tmp_path / "model")), speculate="ngram", cache=False, **OWN)
