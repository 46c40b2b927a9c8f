"""An answer's text read whole: as events, and as parts in order for dialects that tell them one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ridgeline.frontend.tools.call import Event
from ridgeline.frontend.tools.formats import CallFormat
from ridgeline.frontend.tools.reader import CallReader
from ridgeline.frontend.tools.thinking import ThoughtReader


class AnswerReader:
    """A choice's text as events: thoughts first, where the model has some, then the answer and its calls.

    form: None when nothing can be called. thought: whether the prompt has opened one; None: there are none.
    """

    def __init__(self, form: CallFormat | None, thought: bool | None) -> None:
        self._thoughts = None if thought is None else ThoughtReader(inside=thought)
        self._calls = None if form is None else CallReader(form)

    @property
    def broke_off(self) -> bool:
        """Whether it ends, as far as it has come, within a call's arguments."""
        return self._calls is not None and self._calls.broke_off

    def feed(self, text: str, *, last: bool) -> Iterator[Event]:
        """Of the next piece; last: nothing comes behind it."""
        for event in self._thoughtful(text, last=last):
            if self._calls is None or not event.text:
                yield event
            else:
                yield from self._calls.feed(event.text)
        if last and self._calls is not None:
            yield from self._calls.finish()

    def _thoughtful(self, text: str, *, last: bool) -> Iterator[Event]:
        if self._thoughts is None:
            yield Event(text=text)
            return
        yield from self._thoughts.feed(text)
        if last:
            yield from self._thoughts.finish()


@dataclass(slots=True, kw_only=True)
class Part:
    """number: its place in the answer. name: of a call. text: so far; of a call its arguments as JSON."""

    number: int
    kind: Literal["thought", "text", "call"]
    name: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartNews:
    """A part begins, has more text, or ends."""

    part: Part
    what: Literal["begin", "more", "end"]
    text: str = ""


class PartReader:
    """Reads one answer, in pieces or at once: the parts are the same."""

    def __init__(self, reader: AnswerReader) -> None:
        self.parts: list[Part] = []
        self._reader = reader
        self._call: int | None = None  # of the part that is open
        self._open = False

    @property
    def has_called(self) -> bool:
        """Whether there are calls, all of them whole."""
        return any(part.kind == "call" for part in self.parts) and not self._reader.broke_off

    def feed(self, text: str, *, last: bool) -> Iterator[PartNews]:
        """What the next piece brings; last: nothing comes behind it."""
        for event in self._reader.feed(text, last=last):
            yield from self._take(event)
        if last:
            yield from self._close()

    def _take(self, event: Event) -> Iterator[PartNews]:
        text = event.text or event.reasoning or event.arguments
        if not text and event.name is None:
            return
        kind: Literal["thought", "text", "call"] = (
            "call" if event.call is not None else "thought" if event.reasoning else "text"
        )
        if not self._open or self.parts[-1].kind != kind or self._call != event.call:
            yield from self._close()
            self.parts.append(Part(number=len(self.parts), kind=kind, name=event.name or ""))
            self._open, self._call = True, event.call
            yield PartNews(part=self.parts[-1], what="begin")
        if text:
            self.parts[-1].text += text
            yield PartNews(part=self.parts[-1], what="more", text=text)

    def _close(self) -> Iterator[PartNews]:
        if self._open:
            self._open = False
            yield PartNews(part=self.parts[-1], what="end")
