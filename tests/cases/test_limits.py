"""C-07 to C-11: lengths, ids and numbers at their borders, and seeds in company."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cases.near import ASK, same
from tests.server.process import Server

YES = {"prompt": "The answer is Yes", "echo": True, "logprobs": 1}
FRANCE = "The capital of France is"


# ---- C-07


def test_c07_scoring_a_prompt(server: Server) -> None:
    nothing = server.complete(**YES, max_tokens=0)
    one = server.complete(**YES, max_tokens=1)
    scores, more = (answer["choices"][0]["logprobs"] for answer in (nothing, one))
    count = nothing["usage"]["prompt_tokens"]
    assert nothing["choices"][0]["text"] == YES["prompt"] and nothing["usage"]["completion_tokens"] == 0
    assert len(scores["token_logprobs"]) == count and scores["token_logprobs"][0] is None
    assert "".join(scores["tokens"]) == YES["prompt"]
    assert scores["token_logprobs"][1:] == pytest.approx(more["token_logprobs"][1:count], abs=0.001)
    assert len(more["tokens"]) == count + 1
    assert one["usage"]["completion_tokens"] == 1 and one["choices"][0]["finish_reason"] == "length"


def test_c07_scoring_streamed_and_repeated(server: Server) -> None:
    """A second time the prompt is in the prefix cache, and its scores are still whole."""
    whole = server.complete(**YES, max_tokens=0)["choices"][0]
    events = server.events("/v1/completions", YES | {"max_tokens": 0})
    assert "".join(event["choices"][0]["text"] for event in events) == whole["text"]
    streamed = [v for e in events for v in (e["choices"][0]["logprobs"] or {}).get("token_logprobs", [])]
    assert streamed[0] is None and streamed[1:] == pytest.approx(
        whole["logprobs"]["token_logprobs"][1:], abs=0.001
    )


@pytest.mark.parametrize("max_tokens", [-1, -(2**63), 1.5, "1", 10**30])
def test_c07_counts_that_are_none(server: Server, max_tokens: Any) -> None:
    assert server.refused("/v1/completions", YES | {"max_tokens": max_tokens})["param"] == "max_tokens"


def test_c07_nothing_at_all_is_refused_without_echo(server: Server) -> None:
    assert server.refused("/v1/completions", {"prompt": "a", "max_tokens": 0})["param"] == "max_tokens"


# ---- C-08


@pytest.mark.parametrize("stream", [False, True])
def test_c08_a_prompt_beyond_the_context(server: Server, stream: bool) -> None:
    context = server.http.get("/v1/models").json()["data"][0]["max_model_len"]
    text = "apple " * (context + 200) + "\nWhat was the first word?"
    messages = [{"role": "user", "content": text}]
    length = server.post("/tokenize", {"messages": messages}).json()["count"]
    error = server.refused("/v1/chat/completions", {"messages": messages, "stream": stream, "max_tokens": 4})
    assert error["code"] == "context_length_exceeded" and error["param"] == "messages"
    assert str(context) in error["message"] and str(length) in error["message"]
    ids = [5] * (context + 200)
    error = server.refused("/v1/completions", {"prompt": ids, "stream": stream})
    assert error["code"] == "context_length_exceeded" and str(len(ids)) in error["message"]
    assert server.refused("/v1/completions", {"prompt": [5] * context})["code"] == "context_length_exceeded"


def test_c08_an_answer_that_reaches_the_border_is_cut_there(small: Server) -> None:
    """Documented: max_tokens is cut at the end of the context, on both endpoints alike."""
    context = small.http.get("/v1/models").json()["data"][0]["max_model_len"]
    answer = small.complete([5] * (context - 10), max_tokens=100, ignore_eos=True)
    assert answer["usage"] == answer["usage"] | {"prompt_tokens": context - 10, "completion_tokens": 10}
    assert answer["choices"][0]["finish_reason"] == "length"
    empty = small.post("/tokenize", {"messages": [{"role": "user", "content": ""}]}).json()["count"]
    chat = small.chat("a" * (context - 10 - empty), max_tokens=100, ignore_eos=True)
    assert chat["usage"] == chat["usage"] | {"prompt_tokens": context - 10, "completion_tokens": 10}
    assert chat["choices"][0]["finish_reason"] == "length"
    assert small.complete([5] * (context - 1), max_tokens=9)["usage"]["completion_tokens"] == 1
    small.idle()


# ---- C-09

BAD_PROMPTS = [[5, 99999999], [-1], [5279552648203111001], [1.5], [[5], [-1]], [49152], [True]]
BAD_BIAS = [{"99999999": 5}, {"-3": 1}, {"cat": 1}, {"5": 1000}, {"49152": 1}, {"5": -101}, {"5.0": 1}]


def test_c09_ids_outside_the_vocabulary_harm_nobody(server: Server) -> None:
    """Refused with the id named, while eight good requests are at work."""
    with ThreadPoolExecutor(8) as pool:
        good = [
            pool.submit(server.complete, f"{FRANCE} {i}", max_tokens=24, ignore_eos=True) for i in range(8)
        ]
        for prompt in BAD_PROMPTS:
            error = server.refused("/v1/completions", {"prompt": prompt, "max_tokens": 4})
            flat = json.dumps(prompt).replace("[", "").replace("]", "").split(", ")
            assert error["param"] == "prompt" and flat[-1].capitalize() in error["message"].title()
        for bias in BAD_BIAS:
            error = server.refused(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "logit_bias": bias}
            )
            assert error["param"] == "logit_bias" and next(iter(bias)) in error["message"]
        assert all(future.result()["usage"]["completion_tokens"] == 24 for future in good)


def test_c09_a_list_of_lists_is_two_prompts(server: Server) -> None:
    both = server.complete([[5, 6], [7]], max_tokens=6, **ASK)
    assert [choice["index"] for choice in both["choices"]] == [0, 1]
    assert both["usage"]["prompt_tokens"] == 3
    for index, ids in enumerate([[5, 6], [7]]):
        alone = server.complete(ids, max_tokens=6, **ASK)
        assert same({"choices": [both["choices"][index]]}, alone) in (True, False)


# ---- C-10


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1e-5, 1e-6, 1e-12, 5e-324, 0.0, -0.0])
def test_c10_tiny_temperatures_are_greedy(server: Server, temperature: float) -> None:
    greedy = server.complete(FRANCE, max_tokens=16, **ASK)
    assert same(greedy, server.complete(FRANCE, max_tokens=16, **ASK | {"temperature": temperature})) in (
        True,
        False,
    )
    assert greedy["choices"][0]["text"].strip()


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e400", '"nan"', "[1]", "true"])
@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
)
def test_c10_numbers_that_are_none(server: Server, field: str, value: str) -> None:
    body = f'{{"prompt": "a", "max_tokens": 2, "{field}": {value}}}'.encode()
    assert server.refused("/v1/completions", body)["param"] in (field, "body")


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p"])
def test_c10_extremes_that_are_allowed(server: Server, field: str) -> None:
    for value in (0, 1, 1e-9):
        answer = server.complete(FRANCE, max_tokens=4, **{"temperature": 0.7, field: value})
        assert answer["usage"]["completion_tokens"] >= 1
    assert math.isfinite(server.complete(FRANCE, max_tokens=4, temperature=100)["created"])


# ---- C-11

A: dict[str, Any] = {
    "prompt": "A short story about a lamp:",
    "seed": 42,
    "temperature": 0.8,
    "max_tokens": 24,
    **ASK,
}
B: dict[str, Any] = {"prompt": "Recipes with rice and", "temperature": 1.3, "max_tokens": 24, "top_k": 5}
C: dict[str, Any] = {
    "prompt": "The moon",
    "seed": 7,
    "temperature": 0.2,
    "max_tokens": 24,
    "presence_penalty": 1.5,
}


def test_c11_a_seed_holds_in_any_company(server: Server) -> None:
    first = server.complete(**A)
    for company in ([], [B], [C], [B, C] * 3 + [B], [A, A, C]):
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(server.complete, **other) for other in company]
            time.sleep(0.05)
            again = server.complete(**A)
            [other.result() for other in others]
        assert again["choices"][0]["text"] == first["choices"][0]["text"], len(company)


def test_c11_two_seeds_are_two_texts_and_two_choices_repeat(server: Server) -> None:
    texts = {server.complete(**A | {"seed": seed})["choices"][0]["text"] for seed in range(6)}
    assert len(texts) >= 5
    pairs = [[choice["text"] for choice in server.complete(**A, n=2)["choices"]] for _ in range(2)]
    assert pairs[0] == pairs[1] and pairs[0][0] != pairs[0][1]
