"""Protects the default mode, packed weights and a bfloat16 cache: the default model says alone what it says
in company, to the bit of every log-probability."""

from collections.abc import Iterator

import pytest

from ridgeline import LLM, SamplingParams
from ridgeline.engine.outputs import RequestOutput
from tests.quant.blocks import kernels

PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=5)
LONG = "List the planets: " + "Mercury, Venus, Earth, Mars, " * 30
PROMPTS = ("The capital of France is", "def fibonacci(n):\n", "Once upon a time", "2 + 2 =", "Water boils at",
           LONG, "a")  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    kernels()
    with LLM(max_model_len=512, max_num_seqs=16, threads=1, prefix_caching=False, progress=False) as llm:
        yield llm


def said(output: RequestOutput) -> tuple[object, object]:
    choice = output.outputs[0]
    assert len(choice.token_ids) == PARAMS.max_tokens
    return choice.token_ids, choice.logprobs


def test_alone_is_batched(llm: LLM) -> None:
    """Seven prompts of very different length, together and one after another."""
    choices = llm.info["startup"]["choices"]
    assert choices["dtype"]["value"] == "packed" and choices["kv_cache_dtype"]["value"] == "bfloat16"
    batched = llm.generate(list(PROMPTS), PARAMS)
    for prompt, output in zip(PROMPTS, batched):
        (alone,) = llm.generate([prompt], PARAMS)
        assert said(alone) == said(output), prompt
