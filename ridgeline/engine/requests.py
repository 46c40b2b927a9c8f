"""What the Python API takes: prompts in any of their shapes, checked and encoded. Knows no loop."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.base.errors import RequestError
from ridgeline.frontend.params import check_sampling
from ridgeline.frontend.text import TextLayer
from ridgeline.spec.sampling import SamplingParams

Prompt = str | Sequence[int] | Mapping[str, Any]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedRequest:
    """A prompt ready for the loop. text: None when ids were given."""

    text: str | None
    token_ids: list[int]
    params: SamplingParams


def encode_prompts(
    text: TextLayer,
    prompts: Prompt | Sequence[Prompt],
    params: SamplingParams | Sequence[SamplingParams],
) -> list[EncodedRequest]:
    """One request for each prompt: a text, token ids, or vLLM's {"prompt"} and {"prompt_token_ids"}.

    params: for all, or one for each. Raises RequestError, and nothing is started.
    """
    items = _prompts(prompts)
    return [_encode(text, item, one) for item, one in zip(items, _each(params, len(items)), strict=True)]


def encode_chats(
    text: TextLayer,
    messages: Messages | Sequence[Messages],
    params: SamplingParams | Sequence[SamplingParams],
    *,
    tools: Sequence[Any] | None,
    add_generation_prompt: bool,
    variables: Mapping[str, Any] | None,
) -> list[EncodedRequest]:
    """One request for each conversation."""
    conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
    requests = []
    for conversation, one in zip(conversations, _each(params, len(conversations)), strict=True):
        _check(text, one)
        chat = text.encode_chat(
            conversation, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        requests.append(EncodedRequest(text=chat.text, token_ids=chat.token_ids, params=one))
    return requests


def _prompts(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    """A single prompt is a list of one; a list of ids is a single prompt."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if len(prompts) and not isinstance(prompts[0], str | Mapping) and not hasattr(prompts[0], "__len__"):
        return [prompts]  # type: ignore[list-item]
    return prompts  # type: ignore[return-value]


def _each(params: SamplingParams | Sequence[SamplingParams], count: int) -> Sequence[SamplingParams]:
    if isinstance(params, SamplingParams):
        return [params] * count
    if len(params) != count:
        raise RequestError(
            f"{len(params)} sampling parameters for {count} prompts: give one, or one for each",
            param="params",
        )
    return params


def _encode(text: TextLayer, prompt: Prompt, params: SamplingParams) -> EncodedRequest:
    _check(text, params)
    if isinstance(prompt, Mapping):
        prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt.get("prompt", "")
    if isinstance(prompt, str):
        return EncodedRequest(text=prompt, token_ids=text.encode_prompt(prompt), params=params)
    return EncodedRequest(text=None, token_ids=_token_ids(prompt), params=params)


def _token_ids(prompt: Iterable[Any]) -> list[int]:
    if isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        return prompt
    try:
        return [token.__index__() for token in prompt]
    except (TypeError, AttributeError):
        raise RequestError("a prompt is a text or a list of token ids", param="prompt") from None


def _check(text: TextLayer, params: SamplingParams) -> None:
    check_sampling(params)
    if params.stop:
        text.need_tokenizer("stop")
