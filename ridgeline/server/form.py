"""What the two generating endpoints share in turning a job into bodies: identity, usage and first chunks."""

import time
import uuid
from abc import ABC, abstractmethod
from typing import ClassVar

from msgspec import UnsetType

from ridgeline.frontend.generation import Delta
from ridgeline.server.answers import CachedTokens, Usage
from ridgeline.server.job import Job

ChunkUsage = Usage | UnsetType | None


class Form(ABC):
    """How one job's outcome is written. with_ids: token ids are shown; always so for a model without a
    tokenizer.
    """

    prefix: ClassVar[str]

    def __init__(self, job: Job, model: str, *, with_ids: bool) -> None:
        self.job = job
        self.model = model
        self.id = f"{self.prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.with_ids = with_ids or job.tokenizer is None
        self._begun: set[int] = set()

    @abstractmethod
    def whole(self) -> bytes:
        """The body of an answer that is not streamed, once the job is done."""

    @abstractmethod
    def chunk(self, index: int, delta: Delta, usage: ChunkUsage) -> bytes | None:
        """One event's body, or None when the delta has nothing to tell yet."""

    @abstractmethod
    def usage_chunk(self) -> bytes:
        """The body of the last event, without choices."""

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

    def is_first(self, index: int) -> bool:
        """True at the first call for a choice."""
        first = index not in self._begun
        self._begun.add(index)
        return first
