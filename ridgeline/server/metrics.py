"""Prometheus metrics of the server: what is counted, and the text that a scrape reads.

Every name is shown twice, as `ridgeline:NAME` and as `vllm:NAME`, which existing dashboards read. What a
client feels is timed on the API process's clock; spans inside the engine on the engine's; the two never mix.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ridgeline.frontend.generation import Delta
from ridgeline.frontend.protocol import News

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PREFIXES = ("ridgeline", "vllm")
_SECONDS = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
)
_TOKENS = tuple(float(2**k) for k in range(21))

_HISTOGRAMS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "time_to_first_token_seconds": ("From the request's arrival to its first token.", _SECONDS),
    "inter_token_latency_seconds": (
        "Between tokens of one choice; those of one step share its gap.",
        _SECONDS,
    ),
    "request_time_per_output_token_seconds": ("Mean time of a request's tokens after its first.", _SECONDS),
    "e2e_request_latency_seconds": ("From the request's arrival to its last token.", _SECONDS),
    "request_queue_time_seconds": ("From the engine's door to the first step.", _SECONDS),
    "request_prefill_time_seconds": ("From the first step to the first token.", _SECONDS),
    "request_decode_time_seconds": ("From the first token to the last.", _SECONDS),
    "request_inference_time_seconds": ("From the first step to the last token.", _SECONDS),
    "request_prompt_tokens": ("Prompt tokens of finished requests.", _TOKENS),
    "request_generation_tokens": ("Output tokens of finished choices.", _TOKENS),
}
_COUNTERS: Mapping[str, str] = {
    "prompt_tokens_total": "Prompt tokens of requests that reached their first token.",
    "generation_tokens_total": "Tokens taken from the engine.",
}
_ENGINE: Mapping[str, tuple[str, str]] = {
    "num_requests_running": ("gauge", "Choices that hold a place in the batch."),
    "num_requests_waiting": ("gauge", "Choices that wait for one."),
    "kv_cache_usage_perc": ("gauge", "Share of the KV cache held by live requests, 0 to 1."),
    "kv_blocks_live": ("gauge", "Blocks held by live requests."),
    "kv_blocks_total": ("gauge", "Blocks of the KV cache."),
    "prefix_cache_queries_total": ("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits_total": ("counter", "Prompt tokens found there."),
    "num_preemptions_total": ("counter", "Requests put back to recompute."),
    "spec_decode_num_drafts_total": ("counter", "Verifications of drafts, by how many a sequence had."),
    "spec_decode_num_draft_tokens_total": ("counter", "Drafts that were verified."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Drafts that were right."),
    "engine_steps_total": ("counter", "Steps that have finished."),
    "engine_step_seconds_total": ("counter", "What those steps took."),
    "engine_step_floor_seconds_total": ("counter", "What they must take on this machine, by its profile."),
}
_SPANS = (  # of the engine's clock
    ("request_queue_time_seconds", "arrived", "first_scheduled"),
    ("request_prefill_time_seconds", "first_scheduled", "first_token"),
    ("request_decode_time_seconds", "first_token", "finished"),
    ("request_inference_time_seconds", "first_scheduled", "finished"),
)
EngineValue = float | Mapping[str, float]  # one, or one for each number of drafts
_FINISHED = ("stop", "length", "abort", "error")


@dataclass(slots=True)
class Histogram:
    """Counts of observations by upper bound, cumulative only when shown."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {_number(self.total)}"
        yield f"{name}_count{{{labels}}} {seen}"


def _histograms() -> dict[str, Histogram]:
    return {name: Histogram(bounds, [0] * (len(bounds) + 1)) for name, (_, bounds) in _HISTOGRAMS.items()}


@dataclass(slots=True)
class Metrics:
    """All that the server counts about one served model."""

    model: str
    histograms: dict[str, Histogram] = field(default_factory=_histograms)
    counters: dict[str, float] = field(default_factory=lambda: dict.fromkeys(_COUNTERS, 0))
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FINISHED, 0))

    def render(self, engine: Mapping[str, EngineValue]) -> bytes:
        """The exposition text. engine: the values of the engine's own names; a missing one is left out."""
        labels = f'model_name="{_escape(self.model)}",engine="0"'
        lines: list[str] = []
        for prefix in _PREFIXES:
            lines += self._own(prefix, labels)
            for name, (kind, text) in _ENGINE.items():
                if name in engine:
                    lines += _family(f"{prefix}:{name}", kind, text)
                    lines += _values(f"{prefix}:{name}", labels, engine[name])
        return ("\n".join(lines) + "\n").encode()

    def _own(self, prefix: str, labels: str) -> Iterator[str]:
        for name, text in _COUNTERS.items():
            yield from _family(f"{prefix}:{name}", "counter", text)
            yield f"{prefix}:{name}{{{labels}}} {_number(self.counters[name])}"
        name = f"{prefix}:request_success_total"
        yield from _family(name, "counter", "Choices that ended, by reason.")
        for reason, count in self.finished.items():
            yield f'{name}{{{labels},finished_reason="{reason}"}} {count}'
        for base, histogram in self.histograms.items():
            name = f"{prefix}:{base}"
            yield from _family(name, "histogram", _HISTOGRAMS[base][0])
            yield from histogram.lines(name, labels)


class RequestClock:
    """When one API request arrived, and where its times are counted. Seconds of the API process's clock."""

    def __init__(self, metrics: Metrics, arrived_s: float) -> None:
        self._metrics = metrics
        self._arrived_s = arrived_s

    def prompt(self, num_choices: int) -> "PromptClock":
        """The clock of one of its prompts."""
        return PromptClock(self._metrics, self._arrived_s, num_choices)


@dataclass(slots=True)
class _ChoiceTimes:
    """First and last are 0 until the first token has come."""

    num_output: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    ended: bool = False


class PromptClock:
    """The times of one prompt's choices, observed as their news comes."""

    def __init__(self, metrics: Metrics, arrived_s: float, num_choices: int) -> None:
        self._metrics = metrics
        self._arrived_s = arrived_s
        self._choices = [_ChoiceTimes() for _ in range(num_choices)]
        self._prompt_seen = False
        self._gaps = metrics.histograms["inter_token_latency_seconds"]

    def seen(self, news: News, delta: Delta, now: float) -> None:
        """News of a choice has come, and this is what it added."""
        if delta.token_ids:
            self._tokens(self._choices[news.choice], len(delta.token_ids), news.num_prompt, now)
        if delta.finish is not None:
            self._finish(self._choices[news.choice], delta.finish, now)
        if news.finish is not None:
            self._engine_times(news.times_s)

    def end(self, reason: str, now: float) -> None:
        """Choices that are still open end like this."""
        for choice in self._choices:
            if not choice.ended:
                self._finish(choice, reason, now)

    def _tokens(self, choice: _ChoiceTimes, count: int, num_prompt: int, now: float) -> None:
        self._metrics.counters["generation_tokens_total"] += count
        if choice.num_output:
            gap = (now - choice.last_s) / count
            for _ in range(count):
                self._gaps.observe(gap)
        else:
            choice.first_s = now
            self._metrics.histograms["time_to_first_token_seconds"].observe(now - self._arrived_s)
            if not self._prompt_seen:
                self._prompt_seen = True
                self._metrics.counters["prompt_tokens_total"] += num_prompt
                self._metrics.histograms["request_prompt_tokens"].observe(num_prompt)
        choice.num_output += count
        choice.last_s = now

    def _finish(self, choice: _ChoiceTimes, reason: str, now: float) -> None:
        choice.ended = True
        observe, count = self._metrics.histograms, choice.num_output
        self._metrics.finished[reason] += 1
        observe["e2e_request_latency_seconds"].observe(now - self._arrived_s)
        observe["request_generation_tokens"].observe(count)
        if count > 1:
            mean = (choice.last_s - choice.first_s) / (count - 1)
            observe["request_time_per_output_token_seconds"].observe(mean)

    def _engine_times(self, times_s: Mapping[str, float]) -> None:
        for name, start, end in _SPANS:
            if start in times_s and end in times_s:
                self._metrics.histograms[name].observe(max(0.0, times_s[end] - times_s[start]))


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _values(name: str, labels: str, value: EngineValue) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name}{{{labels}}} {_number(value)}"
        return
    for drafts, times in value.items():
        yield f'{name}{{{labels},drafts="{drafts}"}} {_number(times)}'


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
