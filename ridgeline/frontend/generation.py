"""From the engine's news to text: one object a request, one `Choice` for each of its n choices. Torch-free.

Owns where a text ends: stop strings across token borders, and how many tokens count then. The server and the
offline API both read requests through it, so that they agree by construction. Knows no socket and no loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from ridgeline.frontend.detokenize import Detokenizer
from ridgeline.frontend.protocol import Logprobs, News
from ridgeline.frontend.stops import StopFinder
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.spec.sampling import SamplingParams

# Structs rather than dataclasses: a step makes several for every row.


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative at a position. text is readable, raw the true bytes; both empty without a tokenizer.

    rank: 0 is the model's first choice; None when it is not known.
    """

    token_id: int
    logprob: float
    text: str = ""
    raw: bytes = b""
    rank: int | None = None


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The token taken at a position, the top k there (best first), and the character where it begins."""

    taken: TokenLogprob
    top: tuple[TokenLogprob, ...]
    offset: int


class Delta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one piece of news adds to a choice.

    text: certain text. token_ids: tokens that count, the end id included. entries: log-probabilities of the
    tokens whose text is out now; joined over all deltas their bytes are the bytes of the text.
    finish: stop, length, abort, error, once. stop_reason: the stop string, or the id of
    stop_token_ids.
    abort_keep: set when a stop string was hit while the engine goes on: abort there with this keep_tokens.
    """

    text: str = ""
    token_ids: Sequence[int] = ()
    entries: Sequence[LogprobEntry] = ()
    finish: str | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    abort_keep: int | None = None


_NOTHING = Delta()


def describe(logprobs: Logprobs, tokenizer: Tokenizer | None, *, offset: int = 0) -> LogprobEntry:
    """A position's log-probabilities with the tokens' text and bytes."""

    def one(index: int, rank: int | None) -> TokenLogprob:
        token, value = logprobs.token_ids[index], logprobs.logprobs[index]
        if tokenizer is None:
            return TokenLogprob(token_id=token, logprob=value, rank=rank)
        return TokenLogprob(
            token_id=token,
            logprob=value,
            rank=rank,
            text=tokenizer.token_text(token),
            raw=tokenizer.token_bytes(token),
        )

    top = tuple(one(index, index - 1) for index in range(1, len(logprobs.token_ids)))
    return LogprobEntry(taken=one(0, logprobs.rank), top=top, offset=offset)


class Choice:
    """One choice: the tokens that count, their text so far, and how it ended."""

    __slots__ = ("_params", "_parts", "_plain", "_text", "_tokenizer", "engine_done", "finish", "last_news",
                 "logprobs", "stop_reason", "token_ids")

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self.token_ids: list[int] = []
        self.logprobs: list[Logprobs] = []
        self.finish: str | None = None
        self.stop_reason: str | int | None = None
        self.engine_done = False
        self.last_news: News | None = None
        self._parts: list[str] = []
        self._params = params
        self._tokenizer = tokenizer
        self._text = _TextSide(tokenizer, params) if tokenizer is not None and params.detokenize else None
        is_plain = not params.stop and params.logprobs is None
        self._plain = self._text.detokenizer if self._text is not None and is_plain else None

    @property
    def text(self) -> str:
        """All text that is certain so far."""
        if len(self._parts) > 1:
            self._parts = ["".join(self._parts)]
        return self._parts[0] if self._parts else ""

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum over the tokens that count; None when log-probabilities were not asked for."""
        return None if self._params.logprobs is None else sum(entry.logprobs[0] for entry in self.logprobs)

    def feed(self, news: News) -> Delta:
        """Take the next news of this choice. After the end only the engine's closing account is noted."""
        self.last_news = news
        if news.finish is not None:
            self.engine_done = True
        elif self._plain is not None and self.finish is None:
            text = self._plain.feed_all(news.new_tokens)
            self.note(news.new_tokens, text)
            return Delta(text=text, token_ids=news.new_tokens)
        if self.finish is not None:
            return _NOTHING
        if self._text is None:
            return self._take_tokens(news)
        return self._take_text(news, self._text)

    @property
    def plain(self) -> Detokenizer | None:
        """What tells the text of its tokens where that is all they bring, and nothing but the engine ends it;
        else None. Whoever feeds it owes a `note`: the two are as `feed` of tokens alone."""
        return self._plain

    def note(self, tokens: Sequence[int], text: str) -> None:
        """Count tokens whose text is known."""
        if text:
            self._parts.append(text)
        self.token_ids += tokens

    def _stop_token(self, news: News) -> int | None:
        """The one of stop_token_ids that ended the text; the model's own end is no reason to tell."""
        return news.stop_token if news.stop_token in self._params.stop_token_ids else None

    def _take_tokens(self, news: News) -> Delta:
        self.token_ids += news.new_tokens
        self.logprobs += news.logprobs
        self.finish, self.stop_reason = news.finish, self._stop_token(news)
        entries = [describe(entry, self._tokenizer) for entry in news.logprobs]
        return Delta(
            token_ids=news.new_tokens,
            entries=entries,
            finish=news.finish,
            stop_reason=self.stop_reason,
            error=news.error,
        )

    def _take_text(self, news: News, side: "_TextSide") -> Delta:
        tokens, count = news.new_tokens, len(news.new_tokens)
        ends_at = count - 1 if news.finish == "stop" and not self._params.include_stop_str_in_output else None
        pieces: list[str] = []
        hit: str | None = None
        for index, token in enumerate(tokens):
            number = len(self.token_ids) + index + 1
            entry = news.logprobs[index] if news.logprobs else None
            armed = number > self._params.min_tokens
            piece, hit = side.feed(token, entry, hidden=index == ends_at, armed=armed)
            pieces.append(piece)
            if hit is not None:
                count = index + 1
                break
        if hit is None and news.finish is not None:
            pieces.append(side.end())
        text = "".join(pieces)
        if text:
            self._parts.append(text)
        taken = tokens if count == len(tokens) else tokens[:count]
        self.token_ids += taken
        self.logprobs += news.logprobs[:count]
        self.finish, self.stop_reason, error = news.finish, self._stop_token(news), news.error
        if hit is not None:
            self.finish, self.stop_reason, error = "stop", hit, None
        entries = side.take_entries(done=self.finish is not None, cut=hit is not None)
        keep = len(self.token_ids) if hit is not None and news.finish is None else None
        return Delta(
            text=text,
            token_ids=taken,
            entries=entries,
            finish=self.finish,
            stop_reason=self.stop_reason,
            error=error,
            abort_keep=keep,
        )



class _TextSide:
    """Detokenizer, stop strings and held log-probabilities of one choice, moving together."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self.detokenizer = Detokenizer(tokenizer, skip_special=params.skip_special_tokens)
        self._stops = StopFinder(params.stop, include=params.include_stop_str_in_output)
        self._decoded = 0  # characters out of the detokenizer
        self._released = 0  # characters given on
        self._held: list[LogprobEntry] = []

    def feed(
        self, token: int, logprobs: Logprobs | None, *, hidden: bool, armed: bool
    ) -> tuple[str, str | None]:
        """One token. hidden: it ended the text and is no part of it."""
        if hidden:
            return "", None
        if logprobs is not None and self.detokenizer.shows(token):
            self._held.append(describe(logprobs, self._tokenizer, offset=self._decoded))
        return self._advance(self.detokenizer.feed(token), armed=armed)

    def end(self) -> str:
        """No more tokens: the text held back for a stop string that did not come."""
        rest = self._stops.finish()
        self._released += len(rest)
        return rest

    def _advance(self, piece: str, *, armed: bool) -> tuple[str, str | None]:
        if not piece:
            return "", None
        self._decoded += len(piece)
        text, hit = self._stops.feed(piece, armed=armed)
        self._released += len(text)
        return text, hit

    def take_entries(self, *, done: bool, cut: bool) -> list[LogprobEntry]:
        """Entries of tokens whose text has begun to come out; what a stop string cut off never comes.

        done: no more tokens. cut: a stop string ended the text; otherwise even the pieces of a last character
        that never became whole are owed, since they count.
        """
        if not self._held:
            return []
        held = self._held
        out = held if done and not cut else [entry for entry in held if entry.offset < self._released]
        self._held = [] if done else held[len(out) :]
        return out


@dataclass(slots=True)
class Generation:
    """A request's n choices, fed with the news of all of them."""

    tokenizer: Tokenizer | None
    params: SamplingParams
    choices: list[Choice] = field(init=False)
    prompt_logprobs: list[tuple[int, Logprobs]] = field(default_factory=list)
    num_prompt: int = 0
    num_cached: int = 0

    def __post_init__(self) -> None:
        self.choices = [Choice(self.tokenizer, self.params) for _ in range(self.params.n)]

    def feed(self, news: News) -> Delta:
        """Take news of any choice."""
        if news.num_prompt:
            self.num_prompt = news.num_prompt
            if news.choice == 0:
                self.num_cached = news.num_cached
            self.prompt_logprobs += news.prompt_logprobs
        return self.choices[news.choice].feed(news)

    @property
    def finished(self) -> bool:
        """Every choice has its finish reason; the engine may still owe its closing account."""
        return all(choice.finish is not None for choice in self.choices)

    @property
    def engine_done(self) -> bool:
        """The engine has closed every choice."""
        return all(choice.engine_done for choice in self.choices)

    @property
    def num_output(self) -> int:
        """Output tokens that count, over all choices."""
        return sum(len(choice.token_ids) for choice in self.choices)
