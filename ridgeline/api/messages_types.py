"""The bodies of /v1/messages as types, in Anthropic's form. No behaviour.

A null field is an absent field. A field that is not listed is refused, and one that only takes null is a
feature that this server does not have.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ridgeline.api.limits import LIMITS
from ridgeline.api.types import Count, Probability, Strict


class CacheControl(Strict, kw_only=True):
    """Taken and not needed: every prefix is cached here, for as long as there is room."""

    type: Literal["ephemeral"]
    ttl: str | None = None


class Block(Strict, kw_only=True, tag_field="type"):
    """A part of a message."""

    cache_control: CacheControl | None = None


class TextBlock(Block, kw_only=True, tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(Block, kw_only=True, tag="thinking"):
    """A thought of an earlier turn. signature: taken, not looked at."""

    thinking: str
    signature: str | None = None


class ToolUseBlock(Block, kw_only=True, tag="tool_use"):
    """A call of an earlier turn."""

    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ToolResultBlock(Block, kw_only=True, tag="tool_result"):
    """What came of a call. With is_error its text begins with "Error: "."""

    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool | None = None


class Turn(Strict, kw_only=True):
    """One message. A user's may hold text and tool results, an assistant's text, thoughts and calls."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock]


class OfferedTool(Strict, kw_only=True):
    """A tool of the client's own. strict: calls must obey input_schema."""

    name: str
    input_schema: dict[str, Any]
    type: Literal["custom"] | None = None
    description: str | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(Strict, kw_only=True):
    """any: some tool; tool: the one of that name."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict, kw_only=True):
    """adaptive: as much as the model likes. budget_tokens: most tokens of the thought, only with enabled."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None


class OutputFormat(Strict, kw_only=True):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Strict, kw_only=True):
    """format: what the answer must match."""

    format: OutputFormat | None = None
    effort: None = None


class Metadata(Strict, kw_only=True):
    """Accepted and not used."""

    user_id: str | None = None


class Asking(Strict, kw_only=True):
    """What makes a prompt. thinking: absent is as disabled."""

    model: str | None = None
    messages: Annotated[list[Turn], Meta(min_length=1)]
    system: str | list[TextBlock] | None = None
    tools: list[OfferedTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    speed: Literal["standard"] | None = None
    user_profile_id: None = None
    workspace_id: None = None


class CountRequest(Asking, kw_only=True):
    """POST /v1/messages/count_tokens."""


class MessagesRequest(Asking, kw_only=True):
    """POST /v1/messages. max_tokens beyond the context's end is cut there."""

    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    stream: bool | None = None
    stop_sequences: list[str] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=LIMITS.temperature)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    container: None = None
    context_management: None = None
    diagnostics: None = None
    inference_geo: None = None


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """input_tokens: those of the prompt that were computed; the others were read from the cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class AnswerBlock(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of an answer: text, thinking with an empty signature, or tool_use."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    input: msgspec.Raw | UnsetType = UNSET


class MessageAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer, and the empty one that a stream begins with."""

    id: str
    model: str
    content: list[AnswerBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessageUsage
    type: str = "message"
    role: str = "assistant"


class CountAnswer(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: Count
