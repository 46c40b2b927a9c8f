"""Thoughts before an answer, between <think> and </think>: told apart, and kept to a budget. Torch-free."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ridgeline.base.errors import RequestError
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.frontend.tools.call import Event

OPEN, CLOSE = "<think>", "</think>"


def thinks(templates: Mapping[str, str]) -> bool:
    """True for a model whose chat template knows thoughts."""
    return any(CLOSE in source for source in templates.values())


def is_open(prompt: str) -> bool:
    """True when a rendered prompt leaves the model inside a thought."""
    return prompt.rstrip().endswith(OPEN)


class ThoughtReader:
    """Splits a text into thoughts and answer, piece by piece; what comes of it does not hang on the pieces.

    inside: the prompt has opened the thought. Space around the tags is no text.
    """

    def __init__(self, *, inside: bool) -> None:
        self._tag = CLOSE if inside else OPEN
        self._held = ""
        self._begun = inside  # whether a thought may still open, or is open
        self._answer = False
        self._told = False  # of the part that is being read

    def feed(self, piece: str) -> Iterator[Event]:
        if self._answer:
            yield from self._say_answer(piece)
            return
        self._held += piece
        if not self._begun:
            start = self._held.lstrip()
            if start.startswith(OPEN):
                self._held, self._begun, self._tag = start[len(OPEN):], True, CLOSE
            elif not OPEN.startswith(start):
                yield from self._turn_to_answer(self._held, strip=False)
                return
            else:
                return
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            yield from self._say_thought(before.rstrip())
            yield from self._turn_to_answer(after, strip=True)
            return
        keep = next(size for size in range(min(len(CLOSE) - 1, len(before)), -1, -1)
                    if CLOSE.startswith(before[len(before) - size:]))
        sure = before[: len(before) - keep].rstrip()
        self._held = self._held[len(sure):]
        yield from self._say_thought(sure)

    def finish(self) -> Iterator[Event]:
        """The text is over, perhaps inside a thought."""
        if not self._answer and self._held:
            held, self._held = self._held, ""
            yield from self._say_thought(held.rstrip()) if self._begun else iter([Event(text=held)])

    def _say_thought(self, text: str) -> Iterator[Event]:
        text = text if self._told else text.lstrip()
        if text:
            self._told = True
            yield Event(reasoning=text)

    def _turn_to_answer(self, rest: str, *, strip: bool) -> Iterator[Event]:
        self._answer, self._told, self._held = True, not strip, ""
        yield from self._say_answer(rest)

    def _say_answer(self, text: str) -> Iterator[Event]:
        text = text if self._told else text.lstrip()
        if text:
            self._told = True
            yield Event(text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tags:
    """The tokens of the two tags."""

    open_id: int
    close_id: int

    @staticmethod
    def of(tokenizer: Tokenizer) -> "Tags | None":
        """None where they are not one token each."""
        open_id, close_id = tokenizer.marker_id(OPEN), tokenizer.marker_id(CLOSE)
        return None if open_id is None or close_id is None else Tags(open_id=open_id, close_id=close_id)


def after_thought(answer: str | None, tags: Tags, *, inside: bool, budget: int | None) -> str:
    """The grammar of a thought, of at most `budget` tokens, and then an answer (None: any).

    A thought that reaches its budget is closed by force.
    """
    limit = "" if budget is None else f"[max_tokens={budget}]"
    thought = "" if budget == 0 else "thought"
    closed = f"{thought} <[{tags.close_id}]> SPACE"
    opened = closed if inside else f"(<[{tags.open_id}]> {closed})?"
    head = f"start: {opened} @answer\nSPACE: /\\n*/\n" + (f"thought{limit}: /(?s:.*)/" if thought else "")
    text = "start: /(?s:.*)/" if answer is None else answer
    try:
        own = json.loads(text)["grammars"]
    except ValueError:  # Lark as it stands
        own = [{"lark_grammar": text}]
    first = {**own[0], "name": "answer"}
    return json.dumps({"grammars": [{"name": "thoughts", "lark_grammar": head}, first, *own[1:]]})


def need_tags(tokenizer: Tokenizer) -> Tags:
    """RequestError for a model whose thoughts cannot be kept to a budget."""
    tags = Tags.of(tokenizer)
    if tags is None:
        raise RequestError(f"thinking_budget: this model has no tokens {OPEN} and {CLOSE}: leave it out",
                           param="thinking_budget", code="unsupported")
    return tags
