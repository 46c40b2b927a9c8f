"""Protects the door: each refusal has the right field, and what is let in means what it says."""

import json
from typing import Any

import pytest

from ridgeline.base.errors import RequestError
from ridgeline.frontend.text import TextLayer
from tests.server.fake import CONTEXT, fake_api, fake_text

pytestmark = pytest.mark.anyio

REFUSED_EITHER: list[tuple[dict[str, Any], str]] = [
    ({"max_token": 5}, "max_token"),
    ({"max_tokens": "ten"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "nan"}, "temperature"),
    ({"temperature": 1e9}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"presence_penalty": 2.5}, "presence_penalty"),
    ({"frequency_penalty": -2.5}, "frequency_penalty"),
    ({"logit_bias": {"99999999": 5}}, "logit_bias"),
    ({"logit_bias": {"-3": 1}}, "logit_bias"),
    ({"logit_bias": {"cat": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 1000}}, "logit_bias"),
    ({"logit_bias": {"٣": 1}}, "logit_bias"),
    ({"logit_bias": {"05": 1, "5": 2}}, "logit_bias"),
    ({"logit_bias": {"5": None}}, "logit_bias"),
    ({"logit_bias": {str(i): 1 for i in range(2000)}}, "logit_bias"),
    ({"seed": 2**63}, "seed"),
    ({"seed": 0.5}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": ["", "zz"]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"stop": "x" * 2000}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": [5]}, "stop[0]"),
    ({"stop_token_ids": [259]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"priority": "high"}, "priority"),
    ({"priority": 1}, "priority"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "text", "schema": {}}}, "response_format"),
    ({"model": "nope"}, "model"),
]
REFUSED_CHAT: list[tuple[dict[str, Any], str]] = [
    ({"messages": "hello"}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "a", "colour": 1}]}, "messages[0].colour"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 4, "max_tokens": 5}, "max_tokens"),
    ({"logprobs": 3}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"reasoning_effort": "low"}, "reasoning_effort"),
    ({"modalities": ["text", "audio"]}, "modalities"),
]
REFUSED_COMPLETION: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt"),
    ({"prompt": ["a", ""]}, "prompt"),
    ({"prompt": ["a", 5]}, "prompt"),
    ({"prompt": [5, 99999999]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [5279552648203111001]}, "prompt"),
    ({"prompt": [10**300]}, "prompt"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [True]}, "prompt"),
    ({"prompt": [[5, 6], 7]}, "prompt"),
    ({"prompt": ["a"] * 1025}, "prompt"),
    ({"prompt": ["a"] * 20, "n": 100}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": None}, "prompt"),
    ({"suffix": "end"}, "suffix"),
    ({"best_of": 2}, "best_of"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"logprobs": 21}, "logprobs"),
    ({"messages": []}, "messages"),
]


async def _refusal(chat: bool, change: dict[str, Any], text: TextLayer | None = None) -> RequestError:
    api, engine = fake_api(text=text)
    base: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "ab"}
    body = json.dumps(base | change).encode()
    with pytest.raises(RequestError) as refused:
        await (api.chat(body) if chat else api.completion(body))
    assert not engine.submitted and not api.admission.num_active
    return refused.value


@pytest.mark.parametrize("chat", [True, False], ids=["chat", "completion"])
@pytest.mark.parametrize(("change", "param"), REFUSED_EITHER, ids=str)
async def test_refused_on_both(chat: bool, change: dict[str, Any], param: str) -> None:
    error = await _refusal(chat, change)
    assert error.param == param and error.code
    assert error.status == (404 if param == "model" else 400)


@pytest.mark.parametrize(("change", "param"), REFUSED_CHAT, ids=lambda v: str(v)[:60])
async def test_refused_chats(change: dict[str, Any], param: str) -> None:
    assert (await _refusal(True, change)).param == param


@pytest.mark.parametrize(("change", "param"), REFUSED_COMPLETION, ids=lambda v: str(v)[:60])
async def test_refused_completions(change: dict[str, Any], param: str) -> None:
    assert (await _refusal(False, change)).param == param


async def test_prompts_that_do_not_fit_are_refused_with_both_numbers() -> None:
    """Never a shortened prompt: the context's border and the cache's border each have a code."""
    error = await _refusal(False, {"prompt": "c" * CONTEXT})
    assert error.code == "context_length_exceeded" and str(error).count(str(CONTEXT)) >= 2
    error = await _refusal(False, {"prompt": ["c", "c" * (CONTEXT - 56)]})
    assert error.code == "kv_cache_exceeded" and error.param == "prompt"
    long = [{"role": "user", "content": "c" * CONTEXT}]
    assert (await _refusal(True, {"messages": long})).param == "messages"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "top_p": -Infinity}',
        b'{"prompt": "a", "min_p": 1e400}',
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800 lone"}',
        b'{"prompt": "a", "x": ' + b"[" * 20_000 + b"]" * 20_000 + b"}",
        b'\xef\xbb\xbf{"prompt": "a"}',
    ],
)
async def test_bodies_that_are_not_strict_json_objects(body: bytes) -> None:
    api, _ = fake_api()
    with pytest.raises(RequestError) as refused:
        await api.completion(body)
    assert refused.value.status == 400 and refused.value.param


async def test_defaults_come_from_the_model_and_the_request_wins() -> None:
    api, engine = fake_api()
    await api.completion(b'{"prompt": "ab"}')
    await api.completion(b'{"prompt": "ab", "temperature": 0, "top_k": -1, "top_p": 0, "max_tokens": null}')
    await api.chat(b'{"messages": [{"role": "user", "content": "a"}], "stop": [], "seed": -1}')
    first, second, chat = (params for _, params in engine.submitted)
    assert first.temperature == 0.5 and first.max_tokens == 16 and first.seed is None
    assert second.temperature == 0 and second.top_k == 0 and 0 < second.top_p < 1e-6
    assert chat.max_tokens is None and chat.stop == () and chat.seed == -1


async def test_fields_that_ask_for_nothing_are_let_in() -> None:
    """Clients send them by habit; each is documented in types.py."""
    api, engine = fake_api()
    await api.chat(
        json.dumps(
            {
                "model": "m",
                "user": "me",
                "metadata": {"a": "b"},
                "store": False,
                "service_tier": "auto",
                "tools": [],
                "response_format": {"type": "text"},
                "modalities": ["text"],
                "n": None,
                "stop": None,
                "stream": False,
                "messages": [
                    {
                        "role": "developer",
                        "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "kind"}],
                    },
                    {
                        "role": "assistant",
                        "content": None,
                        "refusal": None,
                        "annotations": [],
                        "audio": None,
                        "function_call": None,
                        "tool_calls": [
                            {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
                        ],
                    },
                    {"role": "tool", "tool_call_id": "1", "content": "42"},
                ],
            }
        ).encode()
    )
    ((prompt, _),) = engine.submitted
    text = fake_text().need_tokenizer().decode(prompt, skip_special=False)
    assert text.startswith("<|start|>system\nbe kind<|end|>\n<|start|>assistant\n<|end|>")


async def test_tools_with_choice_none_are_not_shown_to_the_model() -> None:
    api, engine = fake_api()
    plain: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}]}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {}}}]
    await api.chat(json.dumps(plain).encode())
    await api.chat(json.dumps(plain | {"tools": tools, "tool_choice": "none"}).encode())
    assert engine.submitted[0][0] == engine.submitted[1][0]


async def test_without_a_tokenizer_text_is_refused_and_ids_are_served() -> None:
    bare = TextLayer()
    assert (await _refusal(True, {}, bare)).param == "messages"
    assert (await _refusal(False, {}, bare)).param == "prompt"
    assert (await _refusal(False, {"prompt": [5], "stop": "a"}, bare)).param == "stop"
    api, _ = fake_api("ab", bare)
    reply = await api.completion(b'{"prompt": [5, 6], "max_tokens": 2, "logprobs": 1}')
    assert isinstance(reply, bytes)
    choice = json.loads(reply)["choices"][0]
    assert choice["token_ids"] == [256, 257] and choice["prompt_token_ids"] == [5, 6] and choice["text"] == ""
