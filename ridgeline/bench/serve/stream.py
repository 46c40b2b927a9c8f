"""What one streamed answer of an OpenAI server says, and when: completions and chats alike."""

from typing import Any

import msgspec

from ridgeline.bench.serve.http import Failure


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _Cached(msgspec.Struct):
    cached_tokens: int | None = None


class Usage(msgspec.Struct):
    """Tokens, as the server counts them."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Cached | None = None

    @property
    def num_cached(self) -> int:
        """Prompt tokens that the server did not compute, as far as it says."""
        return (self.prompt_tokens_details.cached_tokens or 0) if self.prompt_tokens_details else 0


class _Event(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Event)


class Stream:
    """Reads the events of one answer as they come; `feed` is an http.Sink.

    times_s: when each chunk that had text came, of the client's clock. num_bytes: of all text in UTF-8.
    usage: the server's count, None when it gave none. finish: the reason, None before the end.
    """

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.num_bytes = 0
        self.usage: Usage | None = None
        self.finish: str | None = None
        self._rest = b""
        self._num_events = 0

    def feed(self, now: float, data: bytes) -> None:
        """Raises Failure: garbage, or error for the server's own."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._event(now, line[5:].strip())

    def end(self) -> None:
        """The answer is over. Raises Failure when it was no whole answer."""
        if not self._num_events:
            raise Failure("garbage", "a 200 without a single event: is it streamed?")
        if self.finish is None:
            raise Failure("dropped", "the events ended before a finish_reason")
        if not self.times_s:
            raise Failure("empty", "an answer without text")

    def _event(self, now: float, body: bytes) -> None:
        if body == b"[DONE]":
            return
        try:
            event = _DECODER.decode(body)
        except msgspec.DecodeError as error:
            raise Failure("garbage", f"{error}: {body[:80]!r}") from None
        if event.error:
            raise Failure("error", str(event.error)[:200])
        self._num_events += 1
        self.usage = event.usage or self.usage
        num_bytes = 0
        for choice in event.choices or ():
            delta = choice.delta or _NOTHING
            text = choice.text or delta.content or delta.reasoning_content or delta.reasoning or ""
            num_bytes += len(text.encode())
            self.finish = choice.finish_reason or self.finish
        if num_bytes:
            self.times_s.append(now)
            self.num_bytes += num_bytes


_NOTHING = _Delta()
