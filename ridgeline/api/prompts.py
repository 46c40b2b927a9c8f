"""What a request wants continued, as token ids: texts, id lists and chat messages, checked against the model.

Tokenizing runs beside the event loop when the text is long. Knows no sampling and no engine.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from ridgeline.api.served import Served
from ridgeline.api.types import Message
from ridgeline.base.errors import RequestError
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tools.call import Tool

_LONG_CHARS = 4096  # a text above this takes a millisecond or more to tokenize


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One prompt: the ids that are sent, and the text that echo shows (None: decode the ids).

    scored_from: the first position whose log-probability is asked, where the request asks for some. after:
    the prompt, by its number, that must have ended before this one starts, so that it finds their common
    beginning in the cache.
    """

    token_ids: list[int]
    text: str | None = None
    scored_from: int = 1
    after: int | None = None


async def completion_prompts(served: Served, prompt: str | list[Any], n: int) -> list[Prompt]:
    """The prompts of a completion, in order, each known to fit. Raises RequestError, param "prompt"."""
    items = _items(prompt)
    most = served.limits.choices
    if len(items) * n > most:
        raise _bad("prompt", f"{len(items)} prompts times n {n} is more than {most} choices")
    prompts = []
    for index, item in enumerate(items):
        where = f"prompt[{index}]" if len(items) > 1 else "prompt"
        if isinstance(item, str):
            ids = await beside(len(item), partial(served.text.encode_prompt, item))
            check_fits(ids, served, "prompt")
        else:
            ids = item
            check_fits(ids, served, "prompt")
            check_token_ids(ids, where, served.vocab_size)
        if not ids:
            raise _bad("prompt", f"{where} is empty: it must hold at least one token")
        prompts.append(Prompt(token_ids=ids, text=item if isinstance(item, str) else None))
    return prompts


async def chat_prompt(
    text: TextLayer,
    messages: list[Message],
    *,
    add_generation_prompt: bool | None,
    variables: Mapping[str, Any] | None,
    tools: Sequence[Tool] = (),
) -> Prompt:
    """A conversation rendered by the model's template. Raises RequestError with the message at fault as
    param.
    """
    turns = [_turn(message) for message in messages]
    size = sum(len(part) for turn in turns for part in _texts(turn["content"]))
    chat = await beside(
        size,
        partial(
            text.encode_chat,
            turns,
            add_generation_prompt=add_generation_prompt is not False,
            variables=variables,
            tools=[tool.as_given() for tool in tools],
        ),
    )
    if not chat.token_ids:
        raise _bad("messages", "the rendered conversation is empty")
    return Prompt(token_ids=chat.token_ids, text=chat.text)


def check_fits(token_ids: Sequence[int], served: Served, param: str) -> None:
    """Refuse a prompt that leaves no room for an answer, before the engine sees it."""
    length, context, cache = len(token_ids), served.card.max_model_len, served.max_request_tokens
    if length >= context:
        raise RequestError(
            f"the prompt has {length} tokens and the context of this model holds {context}, of which at "
            f"least one is for the answer: shorten the prompt to at most {context - 1} tokens",
            param=param,
            code="context_length_exceeded",
        )
    if length >= cache:
        raise RequestError(
            f"the prompt has {length} tokens and the KV cache of this server holds at most {cache} of one "
            f"request: shorten the prompt to at most {cache - 1} tokens",
            param=param,
            code="kv_cache_exceeded",
        )


def check_token_ids(ids: list[Any], where: str, vocab_size: int) -> None:
    """Refuse what is no list of this model's token ids; the message names the first wrong one."""
    param = where.partition("[")[0]
    for index, token in enumerate(ids):
        if not isinstance(token, int) or isinstance(token, bool):
            raise _bad(param, f"{where}[{index}] is {token!r:.40}, which is not a token id")
        if not 0 <= token < vocab_size:
            raise _bad(
                param,
                f"{where}[{index}] is {token!s:.40}: the token ids of this model are 0 to {vocab_size - 1}",
            )


def _items(prompt: str | list[Any]) -> list[Any]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise _bad("prompt", "prompt is an empty list")
    if all(isinstance(item, str) for item in prompt) or all(isinstance(item, list) for item in prompt):
        return prompt
    return [prompt]


def _turn(message: Message) -> dict[str, Any]:
    turn: dict[str, Any] = msgspec.to_builtins(message)
    if message.role == "developer":
        turn["role"] = "system"
    return turn


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part.get("text"), str)]


async def beside(num_chars: int, work: "partial[Any]") -> Any:
    """Do text work: at once for a short text, in a thread for a long one."""
    return await asyncio.to_thread(work) if num_chars > _LONG_CHARS else work()


def _bad(param: str, what: str) -> RequestError:
    return RequestError(what, param=param, code="invalid_value")
