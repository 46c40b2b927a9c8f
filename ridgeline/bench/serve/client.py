"""A server as the load client uses it: its model, what a word costs, and one measured request."""

from dataclasses import dataclass
from math import inf
from time import perf_counter
from typing import Any

import msgspec

from ridgeline.base.errors import ConfigError
from ridgeline.bench.serve.ask import ServeAsk
from ridgeline.bench.serve.http import Address, Failure, exchange, request_bytes
from ridgeline.bench.serve.prompts import Fit, Prompts
from ridgeline.bench.serve.stream import Stream
from ridgeline.workload.offered import Offered

_PATHS = {"completions": "/completions", "chat": "/chat/completions"}
_FEW, _MANY = 16, 144  # words of the two prompts that are counted
_PROBE_PLACE = -(1 << 16)  # of their texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One request as its client saw it. Seconds of the client's clock.

    intended_s: when it was to be sent; sent_s: when it was. times_s: of each chunk with text. num_prompt,
    num_output, num_cached: the server's usage; where it gave none (counted is False), the prompt as asked
    and a token a chunk. num_bytes: of the answer's text. failure: its kind, None for a whole answer; detail:
    why.
    """

    offered: Offered
    intended_s: float
    sent_s: float
    ended_s: float
    times_s: tuple[float, ...]
    num_prompt: int
    num_output: int
    num_cached: int
    num_bytes: int
    counted: bool
    failure: str | None = None
    detail: str = ""

    @property
    def ttft_s(self) -> float:
        return self.times_s[0] - self.intended_s

    @property
    def e2e_s(self) -> float:
        return self.times_s[-1] - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None below two tokens."""
        return (self.times_s[-1] - self.times_s[0]) / (self.num_output - 1) if self.num_output > 1 else None


class Client:
    """model, fit: to be learnt by `connect` before requests are sent."""

    def __init__(self, ask: ServeAsk) -> None:
        self._address = Address.of(ask.url)
        self._ask = ask
        self._headers = {"Authorization": f"Bearer {ask.api_key}"} if ask.api_key else {}
        self._prompts = Prompts(ask.workload.seed)
        self.model = ask.model
        self.fit = Fit()

    async def connect(self) -> None:
        """Learn the model and what a word costs. ConfigError when the server cannot be asked."""
        try:
            self._address = await self._address.resolve()
            self.model = self.model or await self._first_model()
            few, many = [await self._tokens(place, words) for place, words in enumerate((_FEW, _MANY))]
        except Failure as failure:
            eos = ", or --no-ignore-eos if it does not know ignore_eos" if self._ask.ignore_eos else ""
            raise ConfigError(f"{self._ask.url} does not answer ({failure}): check --url, --model and "
                              f"--endpoint{eos}") from None
        if few is not None and many is not None and many > few:
            self.fit = Fit.of((_FEW, few), (_MANY, many))

    async def send(self, number: int, offered: Offered, intended_s: float) -> Observed:
        """One request, now; its latencies count from `intended_s`."""
        text = self._prompts.prompt(number, offered, self.fit)
        stream, sent_s = Stream(), perf_counter()
        patience_s = inf if offered.patience_s is None else intended_s + offered.patience_s - sent_s
        failure: Failure | None = None
        try:
            await self._stream(text, offered.num_output, stream, priority=offered.priority,
                               timeout_s=min(self._ask.timeout_s, patience_s))
        except Failure as error:
            gone = error.kind == "timeout" and patience_s < self._ask.timeout_s
            failure = Failure("left", "this client's patience was over") if gone else error
        usage = stream.usage
        return Observed(
            offered=offered, intended_s=intended_s, sent_s=sent_s, ended_s=perf_counter(),
            times_s=tuple(stream.times_s), counted=usage is not None,
            num_prompt=usage.prompt_tokens if usage else offered.num_prompt,
            num_output=usage.completion_tokens or 0 if usage else len(stream.times_s),
            num_cached=usage.num_cached if usage else 0, num_bytes=stream.num_bytes,
            failure=failure.kind if failure else None, detail=failure.detail if failure else "")

    async def _stream(self, text: str, max_tokens: int, stream: Stream, *, timeout_s: float,
                      priority: int = 0) -> None:
        said: dict[str, Any] = {"prompt": text}
        if self._ask.endpoint == "chat":
            said = {"messages": [{"role": "user", "content": text}]}
        body = {"model": self.model, **said, "max_tokens": max_tokens, "temperature": 0.0, "stream": True,
                "stream_options": {"include_usage": True}}
        if self._ask.ignore_eos:
            body["ignore_eos"] = True
        if priority:
            body["priority"] = priority
        request = request_bytes(self._address, "POST", _PATHS[self._ask.endpoint], msgspec.json.encode(body),
                                self._headers)
        await exchange(self._address, request, stream.feed, timeout_s)
        stream.end()

    async def _tokens(self, place: int, num_words: int) -> int | None:
        """The server's count of a prompt of so many words."""
        stream = Stream()
        try:
            await self._stream(self._prompts.text(_PROBE_PLACE - place, num_words), 1, stream,
                               timeout_s=self._ask.timeout_s)
        except Failure as failure:
            if failure.kind != "empty":  # a single token may have no text
                raise
        return stream.usage.prompt_tokens if stream.usage else None

    async def _first_model(self) -> str:
        pieces: list[bytes] = []
        request = request_bytes(self._address, "GET", "/models", b"", self._headers)
        await exchange(self._address, request, lambda now, data: pieces.append(data), self._ask.timeout_s)
        try:
            return str(msgspec.json.decode(b"".join(pieces))["data"][0]["id"])
        except (msgspec.DecodeError, LookupError, TypeError):
            raise Failure("garbage", "/v1/models lists no model") from None
