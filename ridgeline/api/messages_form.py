"""/v1/messages, the answer: a job's outcome as one message, and its deltas as events of content blocks."""

import json
import uuid
from typing import Any

import msgspec

from ridgeline.api.answers import to_json
from ridgeline.api.errors import anthropic_body, renamed
from ridgeline.api.form import Form
from ridgeline.api.job import Job
from ridgeline.api.messages_types import AnswerBlock, MessageAnswer, MessageUsage
from ridgeline.api.openai import Asked
from ridgeline.api.stream import event
from ridgeline.base.errors import RequestError
from ridgeline.frontend.generation import Delta
from ridgeline.frontend.tools.parts import AnswerReader, Part, PartNews, PartReader

NAMES = {  # a chat's field: what it is called here
    ".function.parameters": ".input_schema", ".function": "", "response_format": "output_config.format",
    "thinking_budget": "thinking.budget_tokens", "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
}  # fmt: skip
_DELTAS = {"thought": ("thinking_delta", "thinking"), "text": ("text_delta", "text"),
           "call": ("input_json_delta", "partial_json")}  # fmt: skip


class MessagesForm(Form):
    """The form of /v1/messages. A stream begins with its first token, so that a refusal comes before it."""

    prefix = "msg_"

    def __init__(self, job: Job, model: str, asked: Asked) -> None:
        super().__init__(job, model)
        form = None if asked.use is None else asked.use.form
        self._parts = PartReader(AnswerReader(form, asked.thought))

    def whole(self) -> bytes:
        for _ in self._parts.feed(self.job.choice(0).text, last=True):
            pass
        return to_json(self._message([_block(part) for part in self._parts.parts], *self._ended()))

    def events(self, index: int, delta: Delta) -> bytes:
        begin = b""
        if self.is_first(index):
            begin = _event("message_start", message=self._message([], None, None))
        told = self._parts.feed(delta.text, last=delta.finish is not None)
        return begin + b"".join(map(_part_event, told))

    def end(self) -> bytes:
        reason, sequence = self._ended()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return _event("message_delta", delta=delta, usage=self._usage()) + _event("message_stop")

    def failure(self, error: RequestError) -> bytes:
        return event(to_json(anthropic_body(renamed(error, NAMES))), "error")

    def _message(self, content: list[AnswerBlock], reason: str | None, sequence: str | None) -> MessageAnswer:
        return MessageAnswer(
            id=self.id, model=self.model, content=content, stop_reason=reason, stop_sequence=sequence,
            usage=self._usage(),
        )  # fmt: skip

    def _usage(self) -> MessageUsage:
        usage = self.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return MessageUsage(
            input_tokens=usage.prompt_tokens - cached,
            output_tokens=usage.completion_tokens,
            cache_read_input_tokens=cached,
        )

    def _ended(self) -> tuple[str, str | None]:
        """Why, and by which stop sequence."""
        choice = self.job.choice(0)
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        if choice.finish == "length":
            return "max_tokens", None
        return "tool_use" if self._parts.has_called else "end_turn", None


def _part_event(news: PartNews) -> bytes:
    number, kind = news.part.number, news.part.kind
    if news.what == "begin":
        return _event("content_block_start", index=number, content_block=_block(news.part))
    if news.what == "end":
        return _event("content_block_stop", index=number)
    name, field = _DELTAS[kind]
    return _event("content_block_delta", index=number, delta={"type": name, field: news.text})


def _block(part: Part) -> AnswerBlock:
    """A part as far as it came."""
    if part.kind == "text":
        return AnswerBlock(type="text", text=part.text)
    if part.kind == "thought":
        return AnswerBlock(type="thinking", thinking=part.text, signature="")
    return AnswerBlock(
        type="tool_use", id=f"toolu_{uuid.uuid4().hex[:24]}", name=part.name, input=_input(part.text)
    )


def _input(text: str) -> msgspec.Raw:
    """A call's arguments; none of one that the limit broke off."""
    try:
        whole = isinstance(json.loads(text), dict)
    except ValueError:
        whole = False
    return msgspec.Raw(text.encode() if whole else b"{}")


def _event(kind: str, **fields: Any) -> bytes:
    return event(to_json({"type": kind, **fields}), kind)
