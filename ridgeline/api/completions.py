"""Legacy completions: a job's outcome as one body, and its deltas as chunks; echo and scoring of prompts
included.
"""

from collections.abc import Sequence

from msgspec import UNSET

from ridgeline.api.answers import Completion, CompletionChoice, CompletionLogprobs, PromptLogprobs, to_json
from ridgeline.api.form import ChunkForm, ChunkUsage
from ridgeline.api.job import Job
from ridgeline.api.logprobs import completion_logprobs, first_token, prompt_entries, prompt_logprobs
from ridgeline.api.prompts import Prompt
from ridgeline.api.types import CompletionRequest
from ridgeline.frontend.generation import Delta, LogprobEntry
from ridgeline.frontend.tokenizer import Tokenizer


class CompletionForm(ChunkForm):
    """The form of /v1/completions. With max_tokens 0 the engine's one token is left out."""

    prefix = "cmpl-"

    def __init__(self, job: Job, model: str, request: CompletionRequest) -> None:
        super().__init__(
            job, model, with_ids=bool(request.return_token_ids), options=request.stream_options
        )
        self._echo = bool(request.echo)
        self._echoes = [_shown(prompt, job.tokenizer) for prompt in job.prompts] if self._echo else []
        self._logprobs = request.logprobs is not None
        self._scores = request.prompt_logprobs is not None
        self._score_only = request.max_tokens == 0

    def whole(self) -> bytes:
        choices = [self._whole_choice(index) for index in range(len(self.job.entries))]
        return self._body(choices, self.usage())

    def chunk(self, index: int, delta: Delta, usage: ChunkUsage) -> bytes | None:
        first = self.is_first(index)
        text, ids, entries = (
            ("", (), ()) if self._score_only else (delta.text, delta.token_ids, delta.entries)
        )
        ids = list(ids) if self.with_ids else []
        if not (first or text or entries or delta.finish or ids):
            return None
        echo = self._echo_text(index) if first else ""
        logprobs = None
        if self._logprobs and (entries or (first and self._echo)):
            logprobs = self._lists(index, entries, with_prompt=first and self._echo)
        choice = CompletionChoice(
            index=index,
            text=echo + text,
            logprobs=logprobs,
            finish_reason=self._finish(delta.finish),
            stop_reason=None if self._score_only else delta.stop_reason,
            token_ids=ids if ids else UNSET,
            prompt_token_ids=self._prompt_ids(index) if self.with_ids and first else UNSET,
        )
        return self._body([choice], usage)

    @property
    def repeats(self) -> bool:
        return not self._score_only

    def usage_chunk(self) -> bytes:
        return self._body([], self.usage())

    def num_output(self) -> int:
        return 0 if self._score_only else super().num_output()

    def _whole_choice(self, index: int) -> CompletionChoice:
        choice = self.job.choice(index)
        entries: Sequence[LogprobEntry] = () if self._score_only else self.job.entries[index]
        return CompletionChoice(
            index=index,
            text=self._echo_text(index) + ("" if self._score_only else choice.text),
            logprobs=self._lists(index, entries, with_prompt=self._echo) if self._logprobs else None,
            finish_reason=self._finish(choice.finish),
            stop_reason=None if self._score_only else choice.stop_reason,
            prompt_logprobs=self._prompt_logprobs(index) if self._scores else UNSET,
            token_ids=([] if self._score_only else choice.token_ids) if self.with_ids else UNSET,
            prompt_token_ids=self._prompt_ids(index) if self.with_ids else UNSET,
        )

    def _finish(self, finish: str | None) -> str | None:
        return "length" if finish is not None and self._score_only else finish

    def _echo_text(self, index: int) -> str:
        return self._echoes[index // self.job.params.n] if self._echoes else ""

    def _lists(self, index: int, entries: Sequence[LogprobEntry], *, with_prompt: bool) -> CompletionLogprobs:
        offset = len(self._echo_text(index))
        if not with_prompt:
            return completion_logprobs((), entries, None, offset)
        first = first_token(self._prompt_ids(index)[0], self.job.tokenizer)
        return completion_logprobs(self._prompt_entries(index), entries, first, offset)

    def _prompt_entries(self, index: int) -> list[LogprobEntry | None]:
        number = index // self.job.params.n
        found = self.job.generations[number].prompt_logprobs
        return prompt_entries(self.job.prompts[number].token_ids, found, self.job.tokenizer)

    def _prompt_logprobs(self, index: int) -> PromptLogprobs:
        return prompt_logprobs(self._prompt_entries(index))

    def _prompt_ids(self, index: int) -> list[int]:
        return self.job.prompts[index // self.job.params.n].token_ids

    def _body(self, choices: list[CompletionChoice], usage: ChunkUsage) -> bytes:
        return to_json(
            Completion(id=self.id, created=self.created, model=self.model, choices=choices, usage=usage)
        )


def _shown(prompt: Prompt, tokenizer: Tokenizer | None) -> str:
    if prompt.text is not None or tokenizer is None:
        return prompt.text or ""
    return tokenizer.decode(prompt.token_ids, skip_special=False)
