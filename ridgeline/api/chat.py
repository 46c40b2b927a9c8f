"""Chat completions: a job's outcome as one body, and its deltas as chunks."""

from msgspec import UNSET

from ridgeline.api.answers import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    to_json,
)
from ridgeline.api.form import ChunkForm, ChunkUsage
from ridgeline.api.job import Job
from ridgeline.api.logprobs import chat_logprobs, prompt_entries, prompt_logprobs
from ridgeline.api.tools import ChoiceReader, Told, ToolUse
from ridgeline.api.types import ChatRequest
from ridgeline.frontend.generation import Delta


class ChatForm(ChunkForm):
    """The form of /v1/chat/completions. The role comes with a choice's first token."""

    prefix = "chatcmpl-"

    def __init__(
        self, job: Job, model: str, request: ChatRequest, *, use: ToolUse | None, thought: bool | None
    ) -> None:
        super().__init__(
            job, model, with_ids=bool(request.return_token_ids), options=request.stream_options
        )
        plain, form = use is None and thought is None, None if use is None else use.form
        self._readers = [] if plain else [ChoiceReader(form, thought) for _ in range(job.params.n)]

    def whole(self) -> bytes:
        job = self.job
        choices = [  # the message first: it says whether something was called
            ChatChoice(
                index=index,
                message=self._message(index, choice.text),
                logprobs=chat_logprobs(job.entries[index]) if job.params.logprobs is not None else None,
                finish_reason=self._finish(index, choice.finish) or "error",
                stop_reason=choice.stop_reason,
                token_ids=choice.token_ids if self.with_ids else UNSET,
            )
            for index, choice in enumerate(job.generations[0].choices)
        ]
        found = job.generations[0].prompt_logprobs
        scores = prompt_entries(job.prompts[0].token_ids, found, job.tokenizer)
        return to_json(
            ChatCompletion(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=choices,
                usage=self.usage(),
                prompt_logprobs=prompt_logprobs(scores) if job.params.prompt_logprobs is not None else UNSET,
                prompt_token_ids=job.prompts[0].token_ids if self.with_ids else UNSET,
            )
        )

    def chunk(self, index: int, delta: Delta, usage: ChunkUsage) -> bytes | None:
        first = self.is_first(index)
        with_ids = self.with_ids and bool(delta.token_ids)
        told = self._told(index, delta)
        shown = told.text or told.reasoning or told.calls
        if not (first or shown or delta.entries or delta.finish or with_ids):
            return None
        choice = ChatChunkChoice(
            index=index,
            delta=ChatDelta(
                role="assistant" if first else UNSET,
                content=told.text if told.text or first else UNSET,
                reasoning_content=told.reasoning or UNSET,
                tool_calls=told.calls or UNSET,
            ),
            logprobs=chat_logprobs(delta.entries) if delta.entries else None,
            finish_reason=self._finish(index, delta.finish),
            stop_reason=UNSET if delta.finish is None else delta.stop_reason,
            token_ids=list(delta.token_ids) if with_ids else UNSET,
        )
        return to_json(
            ChatChunk(
                id=self.id,
                created=self.created,
                model=self.model,
                choices=[choice],
                usage=usage,
                prompt_token_ids=self.job.prompts[0].token_ids if first and self.with_ids else UNSET,
            )
        )

    @property
    def repeats(self) -> bool:
        return not self._readers

    def _told(self, index: int, delta: Delta) -> Told:
        if not self._readers:
            return Told(text=delta.text)
        return self._readers[index].piece(delta.text, last=delta.finish is not None)

    def _message(self, index: int, text: str) -> AssistantMessage:
        told = self._readers[index].whole(text) if self._readers else Told(text=text)
        return AssistantMessage(
            content=told.text if told.text or not told.calls else None,
            reasoning_content=told.reasoning or UNSET,
            tool_calls=told.calls or UNSET,
        )

    def _finish(self, index: int, finish: str | None) -> str | None:
        """A text that ended by itself after a call, and not within it, ended to have it made."""
        called = finish == "stop" and self._readers and self._readers[index].has_called
        return "tool_calls" if called else finish

    def usage_chunk(self) -> bytes:
        return to_json(
            ChatChunk(id=self.id, created=self.created, model=self.model, choices=[], usage=self.usage())
        )
