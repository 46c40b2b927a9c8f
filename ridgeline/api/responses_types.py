"""The bodies of /v1/responses as types, in OpenAI's form. No behaviour.

A null field is an absent field. A field that is not listed is refused, and one that only takes null, or an
empty list, is a feature that this server does not have.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ridgeline.api.limits import LIMITS
from ridgeline.api.types import Probability, Strict

Nothing = Annotated[list[Any], Meta(max_length=0)]


class TextPart(Strict, kw_only=True):
    type: Literal["input_text", "output_text", "reasoning_text"]
    text: str
    annotations: Nothing | None = None
    logprobs: Nothing | None = None


class Item(Strict, kw_only=True):
    """What is said, called, answered or thought, as clients write it and as this server gave it out. Which
    fields belong to which type is told in responses.py.
    """

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[TextPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[TextPart] | None = None
    summary: Nothing | None = None
    encrypted_content: None = None


class FunctionTool(Strict, kw_only=True):
    """strict: calls must obey parameters; only when it is true."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamedFunction(Strict, kw_only=True):
    type: Literal["function"]
    name: str


class Format(Strict, kw_only=True):
    """schema and what is beside it: only with type json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(Strict, kw_only=True):
    format: Format | None = None
    verbosity: None = None


class Reasoning(Strict, kw_only=True):
    effort: None = None
    summary: None = None


class ResponsesRequest(Strict, kw_only=True):
    """POST /v1/responses. store: true when absent. user, safety_identifier, prompt_cache_key, metadata:
    taken, not used. max_output_tokens beyond the context's end is cut there.
    """

    model: str | None = None
    input: str | Annotated[list[Item], Meta(min_length=1)]
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: None = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=LIMITS.temperature)] | None = None
    top_p: Probability | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: str | NamedFunction | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    background: bool | None = None
    truncation: Literal["disabled"] | None = None
    service_tier: Literal["auto", "default"] | None = None
    include: Nothing | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    max_tool_calls: None = None
    top_logprobs: None = None
    conversation: None = None
    prompt: None = None


class ResponseAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A response, as far as it has come. output: its items, in order."""

    id: str
    created_at: int
    model: str
    status: Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None
    error: dict[str, Any] | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    previous_response_id: str | None
    temperature: float
    top_p: float
    tools: list[FunctionTool]
    tool_choice: str | NamedFunction
    parallel_tool_calls: bool
    text: TextConfig
    store: bool
    metadata: dict[str, str]
    user: str | None
    object: str = "response"
    background: bool = False
    truncation: str = "disabled"


class DeletedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    deleted: bool = True
