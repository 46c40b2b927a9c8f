"""The answers of the API as types, in OpenAI's form with vLLM's extra fields. No behaviour."""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class CachedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt tokens that were not computed again."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of the whole request: each prompt once, the outputs of all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative of a chat token. bytes: the true bytes of that one token."""

    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(TopLogprob, frozen=True, kw_only=True):
    """One token of a chat answer and the alternatives there, best first."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel lists by token. The first token of an echoed prompt has null. text_offset: in characters."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """rank: 1 is the model's first choice."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class PromptUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of prompts that no text follows."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """What every answer and every event of a stream begins with."""

    id: str
    created: int
    model: str


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """finish_reason is null in all but a choice's last chunk."""

    index: int
    finish_reason: str | None
    token_ids: list[int] | UnsetType = UNSET


class CallFunction(msgspec.Struct, frozen=True, kw_only=True):
    """arguments: JSON text, in a stream a piece of it."""

    name: str | UnsetType = UNSET
    arguments: str = ""


class ToolCallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """index only in streams; there only a call's first piece has id, type and name."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: CallFunction


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True):
    """content is null where the answer is tool calls alone."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET
    role: str = "assistant"
    refusal: None = None


class ChatChoice(Choice, frozen=True, kw_only=True):
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    stop_reason: str | int | None


class ChatCompletion(Body, frozen=True, kw_only=True):
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallAnswer] | UnsetType = UNSET


class ChatChunkChoice(Choice, frozen=True, kw_only=True):
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    stop_reason: str | int | UnsetType | None = UNSET


class ChatChunk(Body, frozen=True, kw_only=True):
    """One event of a streamed chat; the last one has no choices and the usage, when it was asked for."""

    choices: list[ChatChunkChoice]
    object: str = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class CompletionChoice(Choice, frozen=True, kw_only=True):
    """Of a whole answer and of a chunk."""

    text: str
    logprobs: CompletionLogprobs | None
    stop_reason: str | int | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Body, frozen=True, kw_only=True):
    """A whole answer, or one event of a streamed one."""

    choices: list[CompletionChoice]
    object: str = "text_completion"
    system_fingerprint: str | None = None
    usage: Usage | UnsetType | None = UNSET


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """root: where the weights came from. max_model_len: prompt and output together, in tokens."""

    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "ridgeline"
    parent: str | None = None


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    data: list[ModelCard]
    object: str = "list"


class TokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str


encode = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    """Compact strict JSON on one line."""
    return encode(value)
