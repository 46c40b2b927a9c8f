"""What the Python API returns, in vLLM's shape. Knows no loop."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.frontend.generation import Choice, Generation
from ridgeline.frontend.protocol import Logprobs
from ridgeline.frontend.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """rank: 1 is the model's first choice. decoded_token: None without a tokenizer."""

    logprob: float
    rank: int
    decoded_token: str | None = None


PositionLogprobs = dict[int, Logprob]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One choice. token_ids: all that count, the end id included; text is without it.

    logprobs: by position, token id -> Logprob, the taken token's first; None when not asked for.
    finish_reason: stop, length, abort, error, or None while it runs. stop_reason: the stop string or token.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[PositionLogprobs] | None
    finish_reason: str | None
    stop_reason: str | int | None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Seconds of the engine's clock, None for what has not happened; the counts are over all choices."""

    arrived_s: float | None = None
    first_scheduled_s: float | None = None
    first_token_s: float | None = None
    finished_s: float | None = None
    wasted_tokens: int = 0
    num_preemptions: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """A request and its choices. prompt: the text, None when ids were given.

    prompt_logprobs: by position, the first None; None when not asked for. num_cached_tokens: prompt tokens
    that came from the KV cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[PositionLogprobs | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics = field(default_factory=RequestMetrics)


class OutputBuilder:
    """Makes a RequestOutput of a generation, at its end or at every step, and makes nothing twice."""

    def __init__(
        self, request_id: str, prompt: str | None, prompt_token_ids: list[int], generation: Generation
    ) -> None:
        self.generation = generation
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._logprobs: list[list[PositionLogprobs]] = [[] for _ in generation.choices]

    def build(self) -> RequestOutput:
        """The state of now."""
        generation = self.generation
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            outputs=[self._output(index, choice) for index, choice in enumerate(generation.choices)],
            finished=generation.finished,
            prompt_logprobs=self._prompt_logprobs(),
            num_cached_tokens=generation.num_cached,
            metrics=_metrics(generation.choices),
        )

    def _output(self, index: int, choice: Choice) -> CompletionOutput:
        made = self._logprobs[index]
        made += [_position(entry, self.generation.tokenizer) for entry in choice.logprobs[len(made) :]]
        return CompletionOutput(
            index=index,
            text=choice.text,
            token_ids=list(choice.token_ids),
            cumulative_logprob=choice.cumulative_logprob,
            logprobs=None if self.generation.params.logprobs is None else list(made),
            finish_reason=choice.finish,
            stop_reason=choice.stop_reason,
            error=None if choice.last_news is None else choice.last_news.error,
        )

    def _prompt_logprobs(self) -> list[PositionLogprobs | None] | None:
        if self.generation.params.prompt_logprobs is None:
            return None
        found: list[PositionLogprobs | None] = [None] * len(self._prompt_token_ids)
        for position, entry in self.generation.prompt_logprobs:
            found[position] = _position(entry, self.generation.tokenizer)
        return found


def _position(entry: Logprobs, tokenizer: Tokenizer | None) -> PositionLogprobs:
    """The taken token first; it keeps its own rank when it is among the top too."""
    ranks = [entry.rank, *range(len(entry.token_ids) - 1)]
    found: PositionLogprobs = {}
    for token, logprob, rank in zip(entry.token_ids, entry.logprobs, ranks, strict=True):
        text = None if tokenizer is None else tokenizer.token_text(token)
        found.setdefault(token, Logprob(logprob=logprob, rank=rank + 1, decoded_token=text))
    return found


def _metrics(choices: Sequence[Choice]) -> RequestMetrics:
    """Of the first choice that has ended; its end is that of the last one."""
    ended = [choice.last_news for choice in choices if choice.last_news is not None and choice.engine_done]
    if not ended:
        return RequestMetrics()
    times = ended[0].times_s or {}
    return RequestMetrics(
        arrived_s=times.get("arrived"),
        first_scheduled_s=times.get("first_scheduled"),
        first_token_s=times.get("first_token"),
        finished_s=max(((news.times_s or {}).get("finished", 0.0) for news in ended), default=None),
        wasted_tokens=sum(int((news.account or {}).get("wasted_tokens", 0)) for news in ended),
        num_preemptions=sum(int((news.account or {}).get("num_preemptions", 0)) for news in ended),
    )
