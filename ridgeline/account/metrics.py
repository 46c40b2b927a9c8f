"""Prometheus metrics of the server: what is counted, and the text that a scrape reads.

Every name is shown twice, as `ridgeline:NAME` and as `vllm:NAME`, which existing dashboards read. What is
timed, and where, is `clocks`' to say.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

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
    "request_queue_time_seconds": ("From the request's arrival to the first step.", _SECONDS),
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
    "kv_blocks": ("gauge", "Blocks by state; cached ones hold a prefix, pending ones wait for a step's end."),
    "num_requests_waiting_by_reason": ("gauge", "Choices that wait, by what for."),
    "request_waited_seconds_total": ("counter", "Seconds that choices waited, by what for."),
    "little_law": ("gauge", "Arrivals a second, seconds inside and number inside, each measured for itself."),
    "requests_late_total": ("counter", "Choices certain to miss the target, by what was done with them."),
    "goodput_requests_per_second": ("gauge", "Choices that met the targets, over the last minute and all."),
    "requests_limited_total": ("counter", "Requests refused because their API key met a limit, by which."),
    "prefix_cache_queries_total": ("counter", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits_total": ("counter", "Prompt tokens found there."),
    "num_preemptions_total": ("counter", "Requests put back to recompute."),
    "spec_decode_num_drafts_total": ("counter", "Verifications of drafts, by how many a sequence had."),
    "spec_decode_num_draft_tokens_total": ("counter", "Drafts that were verified."),
    "spec_decode_num_accepted_tokens_total": ("counter", "Drafts that were right."),
    "engine_restarts_total": ("counter", "Engines that were started again after one had died."),
    "engine_steps_total": ("counter", "Steps that have finished."),
    "engine_short_steps_total": ("counter", "Steps that lacked memory, and went in parts or again."),
    "engine_undone_rows_total": ("counter", "Rows of these that were put back to be computed again."),
    "engine_step_token_limit": ("gauge", "Tokens that a step may hold now; less after memory lacked."),
    "engine_step_seconds_total": ("counter", "What those steps took."),
    "engine_step_prefill_seconds_total": ("counter", "Of those seconds, what prompts added to decodes."),
    "engine_step_floor_seconds_total": ("counter", "What they must take on this machine, by its profile."),
}
_SPANS = (  # of the engine's clock
    ("request_queue_time_seconds", "arrived", "first_scheduled"),
    ("request_prefill_time_seconds", "first_scheduled", "first_token"),
    ("request_decode_time_seconds", "first_token", "finished"),
    ("request_inference_time_seconds", "first_scheduled", "finished"),
)
EngineValue = float | Mapping[str, float]  # one, or one for each value of the label below
_LABELS: Mapping[str, str] = {
    "kv_blocks": "state",
    "num_requests_waiting_by_reason": "reason",
    "request_waited_seconds_total": "reason",
    "little_law": "measure",
    "requests_late_total": "overload",
    "goodput_requests_per_second": "window",
    "requests_limited_total": "limit",
    "spec_decode_num_drafts_total": "drafts",
}
TTFT_PARTS = ("tokenise", "queue", "schedule", "prefill", "deliver")
_SUCCESS = "Choices that ended, by reason."
_PARTS = "What the time to the first token is made of; sums to it."
_FINISHED = ("stop", "length", "abort", "error", "refused", "shed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A metric's name without a prefix, its kind as Prometheus calls it, the labels that it has beside
    model_name and engine, and what it means."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def described() -> list[Described]:
    """Every metric that `Metrics.render` can show, in its order."""
    own = [("counter", *item) for item in _COUNTERS.items()]
    own.append(("counter", "request_success_total", _SUCCESS))
    own += [("histogram", name, text) for name, (text, _) in _HISTOGRAMS.items()]
    own.append(("histogram", "time_to_first_token_part_seconds", _PARTS))
    own += [(kind, name, text) for name, (kind, text) in _ENGINE.items()]
    labels = dict(_LABELS)
    labels |= {"request_success_total": "finished_reason", "time_to_first_token_part_seconds": "part"}
    return [
        Described(name=name, kind=kind, text=text, labels=(labels[name],) if name in labels else ())
        for kind, name, text in own
    ]


@dataclass(slots=True)
class Histogram:
    """Counts of observations by upper bound, cumulative only when shown."""

    bounds: tuple[float, ...]
    counts: list[int]
    total: float = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        seen = 0
        for bound, count in zip((*map(_number, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {seen}'
        yield f"{name}_sum{{{labels}}} {_number(self.total)}"
        yield f"{name}_count{{{labels}}} {seen}"


def _histograms() -> dict[str, Histogram]:
    return {name: Histogram(bounds, [0] * (len(bounds) + 1)) for name, (_, bounds) in _HISTOGRAMS.items()}


def _parts() -> dict[str, Histogram]:
    return {name: Histogram(_SECONDS, [0] * (len(_SECONDS) + 1)) for name in TTFT_PARTS}


@dataclass(slots=True)
class Metrics:
    """All that the server counts about one served model."""

    model: str
    histograms: dict[str, Histogram] = field(default_factory=_histograms)
    parts: dict[str, Histogram] = field(default_factory=_parts)
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
                    lines += _values(f"{prefix}:{name}", labels, engine[name], _LABELS.get(name, ""))
        return ("\n".join(lines) + "\n").encode()

    def first_token(self, ttft_s: float, parts_s: Mapping[str, float]) -> None:
        """A choice has its first token; parts_s sums to ttft_s, or is empty."""
        self.histograms["time_to_first_token_seconds"].observe(ttft_s)
        for part, spent_s in parts_s.items():
            self.parts[part].observe(spent_s)

    def choice_ended(self, reason: str, e2e_s: float, num_output: int, tpot_s: float | None) -> None:
        """A choice has ended for its caller."""
        self.finished[reason] += 1
        self.histograms["e2e_request_latency_seconds"].observe(e2e_s)
        self.histograms["request_generation_tokens"].observe(num_output)
        if tpot_s is not None:
            self.histograms["request_time_per_output_token_seconds"].observe(tpot_s)

    def engine_times(self, times_s: Mapping[str, float]) -> None:
        """The engine's spans of a choice that it has closed."""
        for name, start, end in _SPANS:
            if start in times_s and end in times_s:
                self.histograms[name].observe(max(0.0, times_s[end] - times_s[start]))

    def _own(self, prefix: str, labels: str) -> Iterator[str]:
        for name, text in _COUNTERS.items():
            yield from _family(f"{prefix}:{name}", "counter", text)
            yield f"{prefix}:{name}{{{labels}}} {_number(self.counters[name])}"
        name = f"{prefix}:request_success_total"
        yield from _family(name, "counter", _SUCCESS)
        for reason, count in self.finished.items():
            yield f'{name}{{{labels},finished_reason="{reason}"}} {count}'
        for base, histogram in self.histograms.items():
            name = f"{prefix}:{base}"
            yield from _family(name, "histogram", _HISTOGRAMS[base][0])
            yield from histogram.lines(name, labels)
        name = f"{prefix}:time_to_first_token_part_seconds"
        yield from _family(name, "histogram", _PARTS)
        for part, histogram in self.parts.items():
            yield from histogram.lines(name, f'{labels},part="{part}"')


def _family(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _values(name: str, labels: str, value: EngineValue, label: str) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{name}{{{labels}}} {_number(value)}"
        return
    for key, one in value.items():
        yield f'{name}{{{labels},{label}="{key}"}} {_number(one)}'


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
