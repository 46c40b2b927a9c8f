"""Protects against bodies that nobody thought of: whatever comes, it is an answer or a refusal, never our
failure.
"""

import asyncio
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.api.stream import Started
from ridgeline.api.types import ChatRequest, CompletionRequest
from ridgeline.base.errors import RequestError
from tests.server.fake import fake_api

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-2, 300),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url", ""])}, optional={"text": VALUES})
FUNCTIONS = st.fixed_dictionaries({"name": st.text(max_size=4)}, optional={"arguments": st.text(max_size=8)})
CALLS = st.fixed_dictionaries({"function": FUNCTIONS})
TURNS = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool"])},
    optional={
        "content": st.one_of(st.text(max_size=12), st.lists(PARTS, max_size=3), VALUES),
        "name": st.text(max_size=4),
        "tool_calls": st.lists(CALLS, max_size=2),
        "reasoning_content": st.text(max_size=4),
    },
)


def _some(kind: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Up to three of a body's fields, with values that may or may not make sense."""
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    return st.dictionaries(
        st.sampled_from(sorted(names)), VALUES | st.integers(0, 3) | st.just(0.5), max_size=3
    )


CHATS = st.builds(
    lambda turns, some: {"messages": turns, "max_tokens": 4} | some,
    st.lists(TURNS, min_size=1, max_size=3),
    _some(ChatRequest),
)
COMPLETIONS = st.builds(
    lambda prompt, some: {"prompt": prompt} | some,
    st.one_of(st.text(max_size=12), st.lists(st.integers(0, 258), min_size=1, max_size=5), VALUES),
    _some(CompletionRequest),
)


async def _ask(chat: bool, body: bytes) -> None:
    api, engine = fake_api("abé😊")
    try:
        reply = await (api.chat(body) if chat else api.completion(body))
    except RequestError as error:
        assert 400 <= error.status < 500 and str(error)
    else:
        if isinstance(reply, Started):
            events = [event async for event in reply]
            assert events[-1] == b"data: [DONE]\n\n" and not any(b'"error"' in event for event in events)
        else:
            json.loads(reply, parse_constant=lambda name: 1 / 0)
    assert not engine.open and not api.admission.num_active


@settings(max_examples=120, deadline=None)
@given(body=CHATS)
def test_any_chat(body: Any) -> None:
    asyncio.run(_ask(True, json.dumps(body).encode()))


@settings(max_examples=120, deadline=None)
@given(body=COMPLETIONS)
def test_any_completion(body: Any) -> None:
    asyncio.run(_ask(False, json.dumps(body).encode()))


@settings(max_examples=120, deadline=None)
@given(body=st.binary(max_size=60) | VALUES.map(lambda value: json.dumps(value).encode()), chat=st.booleans())
def test_any_bytes(body: bytes, chat: bool) -> None:
    asyncio.run(_ask(chat, body))
