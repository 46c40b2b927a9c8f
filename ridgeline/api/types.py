"""The bodies of the API as types: what may be asked. Shapes and ranges only; rules between fields live in
params.py.

A null field is an absent field. A field that is not listed is refused. The names are OpenAI's, then vLLM's.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ridgeline.api.limits import LIMITS

_INT63 = 2**63
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
Probability = Annotated[float, Meta(ge=0.0, le=1.0)]


class Strict(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A body, or a part of one, whose unknown fields are refused."""


class StreamOptions(Strict, kw_only=True):
    """include_usage: one last chunk without choices holds the usage. continuous_usage_stats: every chunk
    holds it.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class StructuredOutputs(Strict, kw_only=True):
    """What the answer must match, one of: a JSON schema (or its text), a regular expression, one of several
    texts, a Lark grammar, any JSON object.
    """

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Generate(Strict, kw_only=True):
    """What completions and chats share. max_tokens beyond the context's end is cut there; see params.py for
    defaults.

    priority: lower is sooner. predicted_output_tokens: how long the caller thinks the answer becomes, for
    policies that go by it; nothing is cut by it. cache_salt: prompts share cached prefixes only under an
    equal salt. ignore_eos, min_tokens, stop_token_ids, include_stop_str_in_output, return_token_ids: as in
    vLLM. user, metadata: accepted and not used. store, service_tier: only what asks for nothing is accepted.
    response_format, structured_outputs and the older guided_*: the answer's structure, at most one of them.
    """

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=LIMITS.n)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=LIMITS.temperature)] | None = None
    top_p: Probability | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Probability | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[str, float] | None = None
    seed: Annotated[int, Meta(ge=-_INT63, le=_INT63 - 1)] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    ignore_eos: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=LIMITS.logprobs)] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    predicted_output_tokens: Count | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    return_token_ids: bool | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    service_tier: str | None = None
    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None


class CompletionRequest(Generate, kw_only=True):
    """POST /v1/completions. prompt: a text, a list of texts, token ids, or a list of lists of token ids.

    max_tokens: 16 when absent; 0 is allowed with echo and scores the prompt. best_of may only equal n.
    """

    prompt: str | list[Any]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=LIMITS.logprobs)] | None = None
    best_of: int | None = None
    suffix: str | None = None


class FunctionCall(Strict, kw_only=True):
    """The name and the arguments (JSON text) of a call that the assistant made."""

    name: str
    arguments: str = "{}"


class ToolCall(Strict, kw_only=True):
    """One call in an assistant's turn."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: FunctionCall


class Message(Strict, kw_only=True):
    """One turn. content: a text, a list of {"type": "text", "text": ...} parts, or null. developer is read as
    system.

    refusal, annotations, audio and function_call are what OpenAI's client echoes back; only null (or an empty
    list) is accepted there.
    """

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: None = None
    annotations: Annotated[list[Any], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class ChatRequest(Generate, kw_only=True):
    """POST /v1/chat/completions. max_completion_tokens is max_tokens by its newer name; both absent: to the
    border.

    chat_template_kwargs: values for the model's own template (such as enable_thinking). tools: not shown to
    the model with tool_choice "none". thinking_budget: most tokens of a thought before the answer.
    """

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=LIMITS.logprobs)] | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    web_search_options: dict[str, Any] | None = None
    thinking_budget: Count | None = None


class TokenizeRequest(Strict, kw_only=True):
    """POST /tokenize. A prompt as /v1/completions reads it, or messages as /v1/chat/completions renders them.
    """

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Strict, kw_only=True):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]
