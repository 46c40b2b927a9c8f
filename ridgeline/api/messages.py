"""/v1/messages, the request: Anthropic's dialect of a chat, read as one of ours.

Owns what its fields mean in terms of ChatRequest; what those mean, and what is refused, is decided there.
"""

import json
from collections.abc import Sequence

from ridgeline.account.caller import Caller
from ridgeline.api.answers import to_json
from ridgeline.api.errors import renamed, unsupported
from ridgeline.api.form import Form
from ridgeline.api.job import Job
from ridgeline.api.messages_form import NAMES, MessagesForm
from ridgeline.api.messages_types import (
    Asking,
    CountAnswer,
    CountRequest,
    MessagesRequest,
    TextBlock,
    Thinking,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from ridgeline.api.openai import Asked, OpenAI, Reply
from ridgeline.api.parse import parse
from ridgeline.api.types import ChatRequest, FunctionCall, Message, ToolCall
from ridgeline.base.errors import RequestError, invalid_value
from ridgeline.frontend.tools.thinking import Tags

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Messages:
    """The two endpoints, over those of the same model."""

    def __init__(self, api: OpenAI) -> None:
        self._api = api

    async def create(self, body: bytes, caller: Caller | None = None) -> Reply:
        """POST /v1/messages. Raises as OpenAI.completion does."""
        api, clock = self._api, self._api.arrived(caller)

        def form(job: Job, asked: Asked) -> Form:
            return MessagesForm(job, asked.model, asked)

        with api.admission.enter():
            request = parse(body, MessagesRequest, api.served.limits)
            try:
                chat = self._chat(request)
                chat.max_tokens, chat.stream = request.max_tokens, request.stream
                chat.stop = request.stop_sequences
                chat.temperature, chat.top_p, chat.top_k = request.temperature, request.top_p, request.top_k
                return await api.answer(chat, clock, form, len(body))
            except RequestError as error:
                raise renamed(error, NAMES) from None

    async def count_tokens(self, body: bytes) -> bytes:
        """POST /v1/messages/count_tokens: the length of the prompt that `create` would send."""
        request = parse(body, CountRequest, self._api.served.limits)
        try:
            asked = await self._api.asked(self._chat(request), len(body))
        except RequestError as error:
            raise renamed(error, NAMES) from None
        return to_json(CountAnswer(input_tokens=len(asked.prompt.token_ids)))

    def _chat(self, request: Asking) -> ChatRequest:
        if request.messages[-1].role == "assistant":
            raise unsupported(
                "messages", "the last one is the assistant's, and to go on with it is not supported"
            )
        chat = ChatRequest(model=request.model, messages=_messages(request))
        if request.tools is not None:
            chat.tools = [
                {"type": "function", "function": {
                    "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
                    "strict": bool(tool.strict)}}
                for tool in request.tools
            ]  # fmt: skip
        _choose(chat, request)
        self._think(chat, request.thinking, getattr(request, "max_tokens", None))
        asked = None if request.output_config is None else request.output_config.format
        if asked is not None:
            schema = {"name": "answer", "schema": asked.schema}
            chat.response_format = {"type": "json_schema", "json_schema": schema}
        return chat

    def _think(self, chat: ChatRequest, thinking: Thinking | None, max_tokens: int | None) -> None:
        kind = "disabled" if thinking is None else thinking.type
        budget = None if thinking is None else thinking.budget_tokens
        if (kind == "enabled") != (budget is not None):
            raise invalid_value("thinking.budget_tokens", "belongs to type enabled, which needs it")
        if budget is not None and max_tokens is not None and budget >= max_tokens:
            raise invalid_value("thinking.budget_tokens", f"must be less than max_tokens {max_tokens}")
        served = self._api.served
        if not served.thinks:
            if kind != "disabled":
                raise unsupported("thinking", "this model does not think before it answers; leave it out")
            return
        if served.text.template is not None and "enable_thinking" in served.text.template.variables:
            chat.chat_template_kwargs = {"enable_thinking": kind != "disabled"}
        tokenizer = served.text.tokenizer
        closable = tokenizer is not None and Tags.of(tokenizer) is not None
        chat.thinking_budget = 0 if kind == "disabled" and closable else budget


def _choose(chat: ChatRequest, request: Asking) -> None:
    choice = request.tool_choice
    if choice is None:
        return
    if (choice.type == "tool") != (choice.name is not None):
        raise invalid_value("tool_choice.name", "belongs to type tool, which needs it")
    named = {"type": "function", "function": {"name": choice.name}}
    chat.tool_choice = _CHOICES.get(choice.type, named)
    if choice.disable_parallel_tool_use is not None:
        chat.parallel_tool_calls = not choice.disable_parallel_tool_use


def _messages(request: Asking) -> list[Message]:
    system = request.system or []
    messages = [Message(role="system", content=_text(system))] if system else []
    for index, turn in enumerate(request.messages):
        messages += _turns(turn, f"messages[{index}]")
    return messages


def _turns(turn: Turn, where: str) -> list[Message]:
    """One message as turns of a chat: each result is one of its own."""
    if isinstance(turn.content, str):
        return [Message(role=turn.role, content=turn.content)]
    if not turn.content:
        raise invalid_value(f"{where}.content", "is empty")
    texts: list[TextBlock] = []
    turns: list[Message] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    for number, block in enumerate(turn.content):
        place = f"{where}.content[{number}]"
        if isinstance(block, TextBlock):
            texts.append(block)
        elif isinstance(block, ToolResultBlock):
            _only("user", turn, place)
            turns += _said(turn, texts)
            texts = []
            turns.append(_result(block))
        elif isinstance(block, ToolUseBlock):
            _only("assistant", turn, place)
            function = FunctionCall(name=block.name, arguments=json.dumps(block.input, ensure_ascii=False))
            calls.append(ToolCall(id=block.id, function=function))
        elif isinstance(block, ThinkingBlock):
            _only("assistant", turn, place)
            thoughts.append(block.thinking)
    if turn.role != "assistant":
        return turns + _said(turn, texts)
    return [Message(role="assistant", content=_text(texts), tool_calls=calls or None,
                    reasoning_content="\n".join(thoughts) or None)]  # fmt: skip


def _said(turn: Turn, texts: Sequence[TextBlock]) -> list[Message]:
    return [Message(role=turn.role, content=_text(texts))] if texts else []


def _result(block: ToolResultBlock) -> Message:
    text = _text(block.content or "")
    return Message(role="tool", tool_call_id=block.tool_use_id,
                   content=f"Error: {text}" if block.is_error else text)  # fmt: skip


def _text(content: str | Sequence[TextBlock]) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _only(role: str, turn: Turn, place: str) -> None:
    if turn.role != role:
        raise invalid_value(place, f"such a block belongs into a message of the {role}")
