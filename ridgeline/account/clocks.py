"""The times of one API request: what its caller feels, on this process's clock, and what the engine says of
each choice. Both are the machine's one monotonic clock; only differences are shown.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.account.caller import Caller
from ridgeline.account.metrics import Metrics
from ridgeline.frontend.generation import Delta
from ridgeline.frontend.protocol import News


@dataclass(slots=True, kw_only=True)
class ChoiceTimes:
    """One choice of one prompt. ttft_s, e2e_s: seconds from the request's arrival, None until they are known.

    first_s, last_s: when its first and its newest tokens came. parts_s: what TTFT is made of; sums to it.
    finish: why it ended, as its caller was told. times_s, account: the engine's, see schedule.request.Output.
    """

    prompt: int
    choice: int
    num_prompt: int = 0
    num_cached: int = 0
    num_output: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    ttft_s: float | None = None
    e2e_s: float | None = None
    parts_s: Mapping[str, float] = field(default_factory=dict)
    finish: str | None = None
    times_s: Mapping[str, float] = field(default_factory=dict)
    account: Mapping[str, float | int | str] = field(default_factory=dict)

    @property
    def tpot_s(self) -> float | None:
        """Mean time of the tokens after the first; None below two."""
        return (self.last_s - self.first_s) / (self.num_output - 1) if self.num_output > 1 else None


def ignore(clock: "RequestClock", choice: ChoiceTimes) -> None:
    """Nobody wants to hear of choices that ended."""


class RequestClock:
    """When one API request arrived, and where its times are counted.

    ended: called once for each choice, when its caller has been told of its end.
    """

    def __init__(
        self, metrics: Metrics, arrived_s: float, caller: Caller | None = None,
        ended: Callable[["RequestClock", ChoiceTimes], None] = ignore,
    ) -> None:  # fmt: skip
        self.metrics = metrics
        self.arrived_s = arrived_s
        self.caller = caller or Caller()
        self.created_s = time.time()
        self.choices: list[ChoiceTimes] = []
        self.ended = ended

    def prompt(self, num_choices: int, tokenised_s: float) -> "PromptClock":
        """The clock of one of its prompts, whose tokens go to the engine now."""
        return PromptClock(self, num_choices, tokenised_s)


class PromptClock:
    """The times of one prompt's choices, observed as their news comes."""

    __slots__ = ("_counters", "_gaps", "_metrics", "_request", "_use", "choices", "tokenised_s")

    def __init__(self, request: RequestClock, num_choices: int, tokenised_s: float) -> None:
        prompt = request.choices[-1].prompt + 1 if request.choices else 0
        self.choices = [ChoiceTimes(prompt=prompt, choice=choice) for choice in range(num_choices)]
        request.choices += self.choices
        self.tokenised_s = tokenised_s
        self._request = request
        self._metrics = request.metrics
        self._counters = request.metrics.counters
        self._gaps = request.metrics.histograms["inter_token_latency_seconds"]
        self._use = request.caller.use

    def seen(self, news: News, delta: Delta, now: float) -> None:
        """News of a choice has come, and this is what it added."""
        choice = self.choices[news.choice]
        if news.times_s:
            choice.times_s = news.times_s
        if count := len(delta.token_ids):
            self._tokens(choice, count, news, now)
        if news.finish is not None:
            choice.account = news.account or {}
            self._metrics.engine_times(news.times_s or {})
        if delta.finish is not None:
            self._finish(choice, delta.finish, now)

    def more(self, choice: ChoiceTimes, count: int, now: float) -> None:
        """Tokens of a choice have come, and nothing else."""
        self._counters["generation_tokens_total"] += count
        self._use.output(count)
        if choice.num_output:
            self._gaps.observe((now - choice.last_s) / count, count)
        choice.num_output += count
        choice.last_s = now

    def end(self, reason: str, now: float) -> None:
        """Choices that are still open end like this."""
        for choice in self.choices:
            if choice.finish is None:
                self._finish(choice, reason, now)

    def _tokens(self, choice: ChoiceTimes, count: int, news: News, now: float) -> None:
        if not choice.num_output:
            self._first(choice, news, now)
        self.more(choice, count, now)

    def _first(self, choice: ChoiceTimes, news: News, now: float) -> None:
        metrics = self._metrics
        choice.first_s = now
        choice.num_prompt, choice.num_cached = news.num_prompt, news.num_cached
        choice.ttft_s = now - self._request.arrived_s
        choice.parts_s = self._parts(choice.ttft_s, news.times_s or {})
        metrics.first_token(choice.ttft_s, choice.parts_s)
        if sum(one.num_output > 0 for one in self.choices) == 0:
            metrics.counters["prompt_tokens_total"] += news.num_prompt
            metrics.histograms["request_prompt_tokens"].observe(news.num_prompt)

    def _parts(self, ttft_s: float, times_s: Mapping[str, float]) -> dict[str, float]:
        """deliver: what is left, from the step's end to here. Empty when the engine tells no times."""
        names = ("tokenised", "first_scheduled", "first_started", "first_token")
        if any(name not in times_s for name in names):
            return {}
        sent, scheduled, started, token = (times_s[name] for name in names)
        tokenise = self.tokenised_s - self._request.arrived_s
        return {
            "tokenise": tokenise, "queue": scheduled - sent, "schedule": started - scheduled,
            "prefill": token - started, "deliver": ttft_s - tokenise - (token - sent),
        }  # fmt: skip

    def _finish(self, choice: ChoiceTimes, reason: str, now: float) -> None:
        choice.finish = reason
        self._request.caller.use.finished.append(reason)
        choice.e2e_s = now - self._request.arrived_s
        self._metrics.choice_ended(reason, choice.e2e_s, choice.num_output, choice.tpot_s)
        self._request.ended(self._request, choice)
