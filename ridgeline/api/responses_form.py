"""/v1/responses, the answer: a job's outcome as a response, and its deltas as OpenAI's typed events."""

from collections.abc import Callable
from typing import Any, Literal

from ridgeline.api.answers import to_json
from ridgeline.api.form import Form
from ridgeline.api.job import Job
from ridgeline.api.openai import Asked
from ridgeline.api.responses_types import Format, ResponseAnswer, ResponsesRequest, TextConfig
from ridgeline.api.stream import event
from ridgeline.api.types import FunctionCall, Message, ToolCall
from ridgeline.base.errors import RequestError
from ridgeline.frontend.generation import Delta
from ridgeline.frontend.tools.parts import AnswerReader, Part, PartNews, PartReader
from ridgeline.frontend.tools.thinking import Tags

Status = Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
_PREFIXES = {"thought": "rs_", "text": "msg_", "call": "fc_"}
_TEXTS = {"thought": "reasoning_text", "text": "output_text"}


class ResponsesForm(Form):
    """The form of /v1/responses. keep: hears of the body once it is whole, and of that of a background's
    failure. A stream begins with its first token, so that a refusal comes before it."""

    prefix = "resp_"

    def __init__(
        self, job: Job, model: str, asked: Asked, request: ResponsesRequest,
        keep: Callable[["ResponsesForm", bytes], None],
    ) -> None:  # fmt: skip
        super().__init__(job, model)
        form = None if asked.use is None else asked.use.form
        self._parts = PartReader(AnswerReader(form, asked.thought))
        self._asked, self._request, self._keep = asked, request, keep
        self._num_events = 0

    def whole(self) -> bytes:
        for _ in self._parts.feed(self.job.choice(0).text, last=True):
            pass
        return self._closed()

    def events(self, index: int, delta: Delta) -> bytes:
        out: list[bytes] = []
        if self.is_first(index):
            begun = ("response.created", "response.in_progress")
            out += [self._event(name, response=self.body()) for name in begun]
        told = list(self._parts.feed(delta.text, last=delta.finish is not None))
        for place, news in enumerate(told, 1):
            out += self._told(news, last=place == len(told))
        return b"".join(out)

    def end(self) -> bytes:
        name = "completed" if self._status() == "completed" else "incomplete"
        self._closed()
        return self._event(f"response.{name}", response=self.body(self._status()))

    def failure(self, error: RequestError) -> bytes:
        what = {"code": error.code or "server_error", "message": str(error)}
        body = self.body("failed", what)
        if self._request.background:  # nobody else hears of it
            self._keep(self, to_json(body))
        return self._event("response.failed", response=body)

    def turn(self) -> Message:
        """The answer as a turn of a conversation."""
        parts = self._parts.parts
        texts = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in _TEXTS}
        calls = [
            ToolCall(id=self._call_id(part), function=FunctionCall(name=part.name, arguments=part.text))
            for part in parts if part.kind == "call"
        ]  # fmt: skip
        return Message(role="assistant", content=texts["text"], reasoning_content=texts["thought"] or None,
                       tool_calls=calls or None)  # fmt: skip

    def so_far(self) -> ResponseAnswer:
        """The response while it is being made."""
        if self.job.cancelled:
            return self.body("cancelled")
        return self.body("in_progress" if self.has_begun else "queued")

    def body(self, status: Status = "in_progress", error: dict[str, Any] | None = None) -> ResponseAnswer:
        """The response as far as it has come."""
        asked, over = self._request, status in ("completed", "incomplete", "cancelled")
        parts = self._parts.parts
        return ResponseAnswer(
            id=self.id, created_at=self.created, model=self.model, status=status, error=error,
            output=[self._item(part, last=part is parts[-1], failed=status == "failed") for part in parts],
            usage=self._usage() if over else None,
            incomplete_details={"reason": "max_output_tokens"} if status == "incomplete" else None,
            instructions=asked.instructions, max_output_tokens=asked.max_output_tokens,
            previous_response_id=asked.previous_response_id, temperature=self.job.params.temperature,
            top_p=self.job.params.top_p, tools=asked.tools or [], tool_choice=asked.tool_choice or "auto",
            parallel_tool_calls=asked.parallel_tool_calls is not False,
            text=asked.text or TextConfig(format=Format(type="text")),
            store=asked.store is not False, metadata=asked.metadata or {}, user=asked.user,
            background=bool(asked.background),
        )  # fmt: skip

    def _closed(self) -> bytes:
        body = to_json(self.body(self._status()))
        self._keep(self, body)
        return body

    def _status(self) -> Status:
        finish = self.job.choice(0).finish
        if finish == "abort":
            return "cancelled"
        return "incomplete" if finish == "length" else "completed"

    def _usage(self) -> dict[str, Any]:
        usage = self.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        return {
            "input_tokens": usage.prompt_tokens, "output_tokens": usage.completion_tokens,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": self._num_thought()},
            "total_tokens": usage.total_tokens,
        }  # fmt: skip

    def _num_thought(self) -> int:
        """Tokens up to the end of the thought, where a token marks it."""
        tokenizer, ids = self.job.tokenizer, self.job.choice(0).token_ids
        if not self._parts.parts or self._parts.parts[0].kind != "thought" or tokenizer is None:
            return 0
        tags = Tags.of(tokenizer)
        return ids.index(tags.close_id) + 1 if tags is not None and tags.close_id in ids else len(ids)

    def _told(self, news: PartNews, *, last: bool) -> list[bytes]:
        """The events of a part that begins, goes on or ends; last: nothing more of the answer is known."""
        part, kind = news.part, _TEXTS.get(news.part.kind)
        at = {"item_id": self._item_id(part), "output_index": part.number}
        if kind is not None:
            at["content_index"] = 0
        name = "function_call_arguments" if kind is None else kind
        logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
        if news.what == "more":
            return [self._event(f"response.{name}.delta", **at, delta=news.text, **logprobs)]
        item = self._item(part, last=last)
        if news.what == "begin":
            empty = item | {"status": "in_progress"} | ({} if kind is None else {"content": []})
            begun = [self._event("response.output_item.added", output_index=part.number, item=empty)]
            if kind is not None:
                begun.append(self._event("response.content_part.added", **at, part=_content(kind, "")))
            return begun
        whole = {"arguments": part.text, "name": part.name} if kind is None else {"text": part.text}
        ended = [self._event(f"response.{name}.done", **at, **whole, **logprobs)]
        if kind is not None:
            ended.append(self._event("response.content_part.done", **at, part=_content(kind, part.text)))
        return [*ended, self._event("response.output_item.done", output_index=part.number, item=item)]

    def _item(self, part: Part, *, last: bool, failed: bool = False) -> dict[str, Any]:
        """A part as it stands; the last one is incomplete where the answer was cut."""
        finish = ("error" if failed else self.job.choice(0).finish) if last else "stop"
        status = {None: "in_progress", "stop": "completed"}.get(finish, "incomplete")
        item: dict[str, Any] = {"id": self._item_id(part), "status": status}
        if part.kind == "call":
            return item | {"type": "function_call", "call_id": self._call_id(part), "name": part.name,
                           "arguments": part.text}  # fmt: skip
        item["content"] = [_content(_TEXTS[part.kind], part.text)]
        if part.kind == "thought":
            return item | {"type": "reasoning", "summary": []}
        return item | {"type": "message", "role": "assistant"}

    def _item_id(self, part: Part) -> str:
        return f"{_PREFIXES[part.kind]}{self.id.removeprefix(self.prefix)}{part.number:03}"

    def _call_id(self, part: Part) -> str:
        return f"call_{self.id[-21:]}{part.number:03}"

    def _event(self, kind: str, **fields: Any) -> bytes:
        number, self._num_events = self._num_events, self._num_events + 1
        return event(to_json({"type": kind, "sequence_number": number, **fields}), kind)


def _content(kind: str, text: str) -> dict[str, Any]:
    beside: dict[str, Any] = {"annotations": [], "logprobs": []} if kind == "output_text" else {}
    return {"type": kind, "text": text, **beside}
