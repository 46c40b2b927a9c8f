"""Protects the form of answers: whole equals streamed, usage, logprobs, echo, and strict JSON in every event.
"""

import json
from typing import Any

import pytest

from ridgeline.api.openai import OpenAI
from ridgeline.api.stream import Started
from ridgeline.base.errors import RequestError
from tests.server.fake import fake_api

pytestmark = pytest.mark.anyio
USER = [{"role": "user", "content": "hi"}]
ANSWER = "Grüße 👩🏽‍🚀 你好 🏳️‍🌈"


def _strict(body: bytes) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {body!r}")

    return json.loads(body.decode("utf-8", "strict"), parse_constant=refuse)


async def _whole(api: OpenAI, path: str, **fields: Any) -> Any:
    reply = await getattr(api, path)(json.dumps(fields).encode())
    assert isinstance(reply, bytes)
    return _strict(reply)


async def _events(api: OpenAI, path: str, **fields: Any) -> list[Any]:
    """Every event but the last, which is [DONE]."""
    reply = await getattr(api, path)(json.dumps(fields | {"stream": True}).encode())
    assert isinstance(reply, Started)
    joined = b"".join([part async for part in reply])
    raw = [event + b"\n\n" for event in joined.split(b"\n\n")[:-1]]
    assert all(event.startswith(b"data: ") and event.endswith(b"\n\n") for event in raw)
    assert raw[-1] == b"data: [DONE]\n\n"
    assert not api.admission.num_active
    return [_strict(event[6:]) for event in raw[:-1]]


def _joined(events: list[Any], index: int = 0) -> str:
    choices = [c for e in events for c in e["choices"] if c["index"] == index]
    return "".join(c.get("text", c.get("delta", {}).get("content", "")) for c in choices)


async def test_streamed_text_is_the_whole_text_and_never_half_a_character() -> None:
    api, _ = fake_api(ANSWER)
    whole = await _whole(api, "chat", messages=USER)
    events = await _events(api, "chat", messages=USER)
    assert whole["choices"][0]["message"]["content"] == ANSWER == _joined(events)
    assert "�" not in json.dumps(events, ensure_ascii=False)


async def test_the_role_comes_once_with_the_first_token_and_the_finish_once_at_the_end() -> None:
    api, _ = fake_api()
    events = await _events(api, "chat", messages=USER, n=2)
    for index in (0, 1):
        mine = [c for e in events for c in e["choices"] if c["index"] == index]
        assert [("role" in c["delta"]) for c in mine] == [True] + [False] * (len(mine) - 1)
        assert mine[0]["delta"]["content"] == "h"
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["stop"]
    assert len({e["id"] for e in events}) == 1 and all(e["object"] == "chat.completion.chunk" for e in events)


async def test_usage_in_streams_only_when_asked_and_equal_to_the_whole_answers() -> None:
    api, _ = fake_api()
    for path, fields in (("chat", {"messages": USER}), ("completion", {"prompt": ["ab", "c"]})):
        whole = await _whole(api, path, n=2, **fields)
        plain = await _events(api, path, n=2, **fields)
        assert not any("usage" in event for event in plain)
        asked = await _events(api, path, n=2, stream_options={"include_usage": True}, **fields)
        assert asked[-1]["choices"] == [] and asked[-1]["usage"] == whole["usage"]
        assert all(event.get("usage") is None for event in asked[:-1])
        always = await _events(api, path, stream_options={"continuous_usage_stats": True}, **fields)
        counts = [event["usage"]["completion_tokens"] for event in always]
        assert counts == sorted(counts) and counts[0] <= 2


async def test_usage_counts_each_prompt_once_and_all_outputs() -> None:
    api, _ = fake_api("ab")
    usage = (await _whole(api, "completion", prompt=["ab", "c"], n=2, max_tokens=1))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 4, 6)
    assert usage["prompt_tokens_details"] == {"cached_tokens": 6}


async def test_prompt_lists_give_choices_in_order() -> None:
    api, _ = fake_api("ab")
    answer = await _whole(api, "completion", prompt=[[5, 6], [7]], n=2, echo=True, max_tokens=1)
    texts = [c["text"] for c in answer["choices"]]
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[1] and texts[2] == texts[3] and len(texts[0]) == len(texts[2]) + 1


async def test_a_stop_string_cuts_text_logprobs_and_usage_alike() -> None:
    """Across token borders; the engine is told how many tokens count."""
    api, engine = fake_api()
    fields = {"messages": USER, "stop": ["lo"], "logprobs": True}
    whole = await _whole(api, "chat", **fields)
    events = await _events(api, "chat", **fields)
    choice = whole["choices"][0]
    assert choice["message"]["content"] == "hel" == _joined(events)
    assert choice["finish_reason"] == "stop" and choice["stop_reason"] == "lo"
    assert [e["token"] for e in choice["logprobs"]["content"]] == ["h", "e", "l"]
    streamed = [e for event in events for e in (event["choices"][0]["logprobs"] or {}).get("content", [])]
    assert streamed == choice["logprobs"]["content"]
    assert engine.aborts == [(0, 5)] * 2 and whole["usage"]["completion_tokens"] == 5


async def test_a_stop_at_the_very_beginning_gives_no_text_at_all() -> None:
    api, _ = fake_api()
    events = await _events(api, "chat", messages=USER, stop="hel")
    assert _joined(events) == "" and events[-1]["choices"][0]["finish_reason"] == "stop"


async def test_chat_logprobs_hold_true_bytes_and_finite_numbers() -> None:
    api, _ = fake_api("a😊")
    choice = (await _whole(api, "chat", messages=USER, logprobs=True, top_logprobs=1))["choices"][0]
    content = choice["logprobs"]["content"]
    assert bytes(b for entry in content for b in entry["bytes"]).decode() == "a😊"
    assert content[0]["token"] == "a" and all(
        t["logprob"] == -9999.0 for e in content for t in e["top_logprobs"]
    )


async def test_echo_with_logprobs_is_the_prompt_then_the_output() -> None:
    api, engine = fake_api("xyz")
    fields = {"prompt": "é c", "echo": True, "logprobs": 1, "max_tokens": 2}
    choice = (await _whole(api, "completion", **fields))["choices"][0]
    lists = choice["logprobs"]
    assert choice["text"] == "é cxy"
    assert lists["tokens"] == ["bytes:\\xc3", "bytes:\\xa9", " ", "c", "x", "y"]
    assert lists["text_offset"] == [0, 0, 1, 2, 3, 4]
    assert lists["token_logprobs"] == [None, -1.0, -1.0, -1.0, -0.5, -0.5]
    assert lists["top_logprobs"][0] is None and lists["top_logprobs"][4]["x"] == -0.5
    assert engine.submitted[0][1].prompt_logprobs == 1
    events = await _events(api, "completion", **fields)
    assert _joined(events) == choice["text"]
    for name, values in lists.items():
        assert [
            v for e in events if e["choices"][0]["logprobs"] for v in e["choices"][0]["logprobs"][name]
        ] == values


@pytest.mark.parametrize("stream", [False, True])
async def test_scoring_alone_leaves_the_output_out(stream: bool) -> None:
    api, engine = fake_api()
    fields = {"prompt": "ab c", "echo": True, "logprobs": 1, "max_tokens": 0}
    if stream:
        events = await _events(api, "completion", stream_options={"include_usage": True}, **fields)
        choice, usage = events[0]["choices"][0], events[-1]["usage"]
    else:
        whole = await _whole(api, "completion", **fields)
        choice, usage = whole["choices"][0], whole["usage"]
    assert choice["text"] == "ab c" and choice["logprobs"]["tokens"] == ["ab", " ", "c"]
    assert choice["finish_reason"] == "length" and usage["completion_tokens"] == 0
    assert engine.submitted[0][1].max_tokens == 1


async def test_prompt_logprobs_in_vllms_form() -> None:
    api, _ = fake_api()
    answer = await _whole(api, "completion", prompt="ab c", prompt_logprobs=0)
    scores = answer["choices"][0]["prompt_logprobs"]
    assert scores[0] is None and [next(iter(s.values()))["decoded_token"] for s in scores[1:]] == [" ", "c"]
    assert next(iter(scores[1].values())) == {"logprob": -1.0, "rank": 3, "decoded_token": " "}
    chat = await _whole(api, "chat", messages=USER, prompt_logprobs=0)
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in await _whole(api, "chat", messages=USER)


async def test_token_ids_on_request() -> None:
    api, engine = fake_api("ab")
    answer = await _whole(api, "completion", prompt=[5], return_token_ids=True)
    assert answer["choices"][0]["token_ids"] == [256, 257] and answer["choices"][0]["prompt_token_ids"] == [5]
    events = await _events(api, "chat", messages=USER, return_token_ids=True)
    assert [t for e in events for t in e["choices"][0].get("token_ids", [])] == [256, 257]
    assert events[0]["prompt_token_ids"] == engine.submitted[1][0]


@pytest.mark.parametrize("path", ["chat", "completion"])
async def test_a_refusal_of_the_engine_comes_before_the_stream(path: str) -> None:
    api, engine = fake_api()
    engine.refuse = RequestError("too big", param="prompt", code="kv_cache_exceeded")
    fields: dict[str, Any] = {"prompt": "a"} if path == "completion" else {"messages": USER}
    for stream in (True, False):
        with pytest.raises(RequestError, match="too big"):
            await getattr(api, path)(json.dumps(fields | {"stream": stream}).encode())
    assert not api.admission.num_active and not engine.open


async def test_a_failure_in_the_middle_is_an_event_then_done() -> None:
    api, engine = fake_api()
    engine.fail_after = 2
    engine_answer = await _events(api, "chat", messages=USER, max_tokens=3)
    assert _joined(engine_answer[:-1]) == "he"
    assert engine_answer[-1]["error"]["type"] == "server_error"
    with pytest.raises(RequestError) as failed:
        await api.chat(json.dumps({"messages": USER, "max_tokens": 3}).encode())
    assert failed.value.status == 500
    assert not engine.open


async def test_closing_a_stream_early_closes_the_engines_side() -> None:
    api, engine = fake_api()
    reply = await api.completion(b'{"prompt": ["a", "b", "c"], "stream": true}')
    assert isinstance(reply, Started)
    assert engine.open
    await reply.aclose()
    assert not engine.open and not api.admission.num_active
    assert api.metrics.finished["abort"] >= 1


async def test_no_one_is_let_in_after_the_door_closed() -> None:
    api, _ = fake_api()
    api.admission.close()
    with pytest.raises(RequestError) as refused:
        await api.chat(json.dumps({"messages": USER, "stream": True}).encode())
    assert refused.value.status == 503 and refused.value.code == "shutting_down"
