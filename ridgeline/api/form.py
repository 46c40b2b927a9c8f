"""What the generating endpoints share in turning a job into bodies and events."""

import time
import uuid
from abc import ABC, abstractmethod
from typing import ClassVar

from msgspec import UNSET, UnsetType

from ridgeline.api.answers import CachedTokens, Usage, to_json
from ridgeline.api.errors import error_body
from ridgeline.api.job import Job
from ridgeline.api.stream import DONE, event
from ridgeline.api.types import StreamOptions
from ridgeline.base.errors import RequestError
from ridgeline.frontend.generation import Delta

_TEXT = uuid.uuid4().hex  # stands nowhere else
ChunkUsage = Usage | UnsetType | None


class Form(ABC):
    """How one job's outcome is written, whole or as server-sent events."""

    prefix: ClassVar[str]

    def __init__(self, job: Job, model: str) -> None:
        self.job = job
        self.model = model
        self.id = f"{self.prefix}{uuid.uuid4().hex}"
        self.created = int(time.time())
        self._begun: set[int] = set()

    @abstractmethod
    def whole(self) -> bytes:
        """The body of an answer that is not streamed, once the job is done."""

    @abstractmethod
    def events(self, index: int, delta: Delta) -> bytes:
        """The events of a choice's delta; none when it has nothing to tell yet."""

    def frame(self, index: int) -> tuple[bytes, bytes] | None:
        """What stands before and after the text, as JSON, in each further event of a choice that brings text
        alone; None where that is not all, or not known yet."""
        return None

    @abstractmethod
    def end(self) -> bytes:
        """The events that close a stream whose choices are all told."""

    @abstractmethod
    def failure(self, error: RequestError) -> bytes:
        """The events that close a stream which cannot go on."""

    def usage(self) -> Usage:
        """Tokens so far, over all prompts and choices."""
        prompt = sum(len(prompt.token_ids) for prompt in self.job.prompts)
        output = self.num_output()
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=output,
            total_tokens=prompt + output,
            prompt_tokens_details=CachedTokens(cached_tokens=sum(g.num_cached for g in self.job.generations)),
        )

    def num_output(self) -> int:
        """Output tokens that count."""
        return sum(generation.num_output for generation in self.job.generations)

    @property
    def has_begun(self) -> bool:
        """Whether any choice has had its first event."""
        return bool(self._begun)

    def is_first(self, index: int) -> bool:
        """True at the first call for a choice."""
        first = index not in self._begun
        self._begun.add(index)
        return first


class ChunkForm(Form):
    """Streams as OpenAI's older endpoints write them: chunks of choices, then a mark. with_ids: token ids are
    shown; always so for a model without a tokenizer.
    """

    def __init__(self, job: Job, model: str, *, with_ids: bool, options: StreamOptions | None) -> None:
        super().__init__(job, model)
        self.with_ids = with_ids or job.tokenizer is None
        self._include = options is not None and bool(options.include_usage)
        self._always = options is not None and bool(options.continuous_usage_stats)
        self._frames: dict[int, tuple[bytes, bytes]] = {}

    @abstractmethod
    def chunk(self, index: int, delta: Delta, usage: ChunkUsage) -> bytes | None:
        """One event's body, or None when the delta has nothing to tell yet."""

    @abstractmethod
    def usage_chunk(self) -> bytes:
        """The body of the last event, without choices."""

    @property
    @abstractmethod
    def repeats(self) -> bool:
        """Whether events of a choice that bring text alone differ in that text alone."""

    def events(self, index: int, delta: Delta) -> bytes:
        frame = self._frames.get(index)
        if frame is not None and delta.finish is None and not delta.entries:
            return frame[0] + to_json(delta.text) + frame[1] if delta.text else b""
        body = self.chunk(index, delta, self.usage() if self._always else UNSET)
        if body is None:
            return b""
        if frame is None and self.repeats and not self.with_ids and not self._always:
            self._frames[index] = self._make_frame(index)
        return event(body)

    def frame(self, index: int) -> tuple[bytes, bytes] | None:
        return self._frames.get(index)

    def _make_frame(self, index: int) -> tuple[bytes, bytes]:
        """An event around its text."""
        body = self.chunk(index, Delta(text=_TEXT), UNSET)
        assert body is not None
        before, after = event(body).split(to_json(_TEXT))
        return before, after

    def end(self) -> bytes:
        return event(self.usage_chunk()) + DONE if self._include else DONE

    def failure(self, error: RequestError) -> bytes:
        return event(to_json(error_body(error))) + DONE
