"""A model's text read piece by piece as answer and tool calls.

What comes of a text does not hang on where it is cut into pieces: a whole text is read by the same reader.
Text that only looks like a call is text.
"""

import json
from collections.abc import Iterator

from ridgeline.frontend.tools.call import Event
from ridgeline.frontend.tools.formats import CallFormat

_NAME_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")


class _Object:
    """One JSON object {"name": ..., "arguments": {...}}, character by character.

    raw: all of it so far. name: once known. done: its last brace is there. `take` gives what is new of the
    arguments' text.
    """

    def __init__(self, arguments: str) -> None:
        self.raw = ""
        self.name: str | None = None
        self.done = False
        self._arguments = arguments
        self._depth = 0
        self._string_at: int | None = None  # where the string that is open began
        self._escaped = False
        self._key: str | None = None  # of the value that is being read at depth 1
        self._value_at: int | None = None
        self._span: tuple[int, int | None] | None = None  # of the arguments
        self._given = 0

    def feed(self, letter: str) -> None:
        at, self.raw = len(self.raw), self.raw + letter
        if self._string_at is not None:
            self._in_string(letter, at)
        elif letter == '"':
            self._string_at = at
            self._begin(at)
        elif letter in "{[":
            self._begin(at)
            self._depth += 1
        elif letter in "}]":
            self._depth -= 1
            if self._depth == 1:
                self._end(at + 1)
            elif self._depth == 0:
                self._end(at)
                self.done = True
        elif letter == ":" and self._depth == 1:
            self._value_at = None
        elif letter == "," and self._depth == 1:
            self._end(at)
            self._key = None
        elif not letter.isspace():
            self._begin(at)

    @property
    def arguments_done(self) -> bool:
        """Whether the arguments' last character is there."""
        return self._span is not None and self._span[1] is not None

    def take(self) -> str:
        """New text of the arguments, once the name is known; of arguments in a string, all at the end."""
        if self.name is None:
            return ""
        if self._span is None:
            return "{}" if self.done else ""
        start, end = self._span
        text = self.raw[start:end]
        if text[:1] != "{":
            return _unquoted(text) if self.done else ""
        new, self._given = text[self._given:], len(text)
        return new

    def _in_string(self, letter: str, at: int) -> None:
        assert self._string_at is not None
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            start, self._string_at = self._string_at, None
            if self._depth == 1 and self._key is None:
                self._key = _unquoted(self.raw[start: at + 1])
            elif self._depth == 1:
                self._end(at + 1)

    def _begin(self, at: int) -> None:
        """A value of the object begins here, unless one is being read."""
        if self._depth == 1 and self._key is not None and self._value_at is None:
            self._value_at = at
            if self._key == self._arguments:
                self._span = at, None

    def _end(self, at: int) -> None:
        if self._value_at is None or self._key is None:
            return
        if self._key == "name":
            self.name = _unquoted(self.raw[self._value_at: at])
        if self._key == self._arguments and self._span is not None and self._span[1] is None:
            self._span = self._span[0], at
        self._value_at = None
        self._key = "" if self._key else self._key


class CallReader:
    """Reads one answer. Feed it pieces, then finish."""

    def __init__(self, form: CallFormat) -> None:
        self._form = form
        self._held = ""  # not yet known to be text or call
        self._object: _Object | None = None
        self._told = False  # the object's name
        self._named: str | None = None  # the name of a call written as opener, name, arguments
        self._state = self._maybe_bare if not form.opener else self._text
        self.num_calls = 0

    @property
    def broke_off(self) -> bool:
        """Whether the text ends, as far as it has come, within a call's arguments."""
        return self._object is not None and not self._object.arguments_done

    def feed(self, piece: str) -> Iterator[Event]:
        for letter in piece:
            yield from self._state(letter)
        yield from self._flush_arguments()

    def finish(self) -> Iterator[Event]:
        """The text is over: what was held back is text, a call that broke off stays as far as it came."""
        yield from self._flush_arguments()
        if self._form.forced:
            pass
        elif self._object is not None and self._object.name is None:
            yield from self._as_text(self._held + self._object.raw)
        elif self._object is None and self._state != self._behind:
            yield from self._as_text(self._held)
        self._held = ""

    # ---- states: each takes one letter

    def _text(self, letter: str) -> Iterator[Event]:
        """Outside of calls. Holds back what may become the opener."""
        self._held += letter
        opener = self._form.opener
        if self._held.endswith(opener):
            yield from self._as_text(self._held[: -len(opener)])
            self._held, self._state = opener, self._opened
            return
        keep = next(size for size in range(min(len(opener) - 1, len(self._held)), -1, -1)
                    if opener.startswith(self._held[len(self._held) - size:]))
        yield from self._as_text(self._held[: len(self._held) - keep])
        self._held = self._held[len(self._held) - keep:]

    def _maybe_bare(self, letter: str) -> Iterator[Event]:
        """At the begin of an answer of which a brace makes a call."""
        if letter == "{":
            yield from self._begin(letter)
        elif letter.isspace() and not self.num_calls:
            self._held += letter
        else:
            yield from self._not_a_call(letter)

    def _opened(self, letter: str) -> Iterator[Event]:
        """Between an opener and the object."""
        if letter == "{" and self._named is None:
            yield from self._begin(letter)
        elif letter == "{" and self._named is not None:
            whole = '{"name": ' + json.dumps(self._named) + f', "{self._form.arguments}": {{'
            yield from self._begin(whole)
        elif letter.isspace() or (letter == "[" and self._form.listed and self._named is None):
            self._held += letter
        elif self._form.named and letter in _NAME_LETTERS:
            self._held, self._named = self._held + letter, (self._named or "") + letter
        else:
            yield from self._not_a_call(letter)

    def _inside(self, letter: str) -> Iterator[Event]:
        assert self._object is not None
        self._object.feed(letter)
        if self._named is not None and self._object.arguments_done:
            self._object.feed("}")
        if not self._object.done:
            return
        if self._object.name is None:  # an object, but no call
            self._held += self._object.raw
            self._object = None
            yield from self._as_text(self._held)
            self._held, self._state = "", self._text if self._form.opener else self._plain
            return
        yield from self._flush_arguments()
        self.num_calls += 1
        self._object, self._named, self._held = None, None, ""
        self._state = self._behind

    def _behind(self, letter: str) -> Iterator[Event]:
        """Behind a call: its closer, the next one, or text."""
        form, held = self._form, self._held + letter
        if form.closer:
            if held.lstrip() == form.closer:
                self._held, self._state = "", self._between
            elif form.closer.startswith(held.lstrip()):
                self._held = held
            else:
                yield from self._not_a_call(letter)
        elif form.opener and form.opener.startswith(held):
            self._held = held
            if held == form.opener:
                self._state = self._opened
        elif letter == "{":
            yield from self._begin(letter)
        elif not (letter in form.separator or letter.isspace() or (form.listed and letter == "]")):
            yield from self._not_a_call(letter)

    def _between(self, letter: str) -> Iterator[Event]:
        """Behind a closed call: space is no text."""
        if not letter.isspace():
            self._state = self._text
            yield from self._text(letter)

    def _plain(self, letter: str) -> Iterator[Event]:
        """No call can come any more."""
        yield from self._as_text(letter)

    # ---- moves

    def _begin(self, letters: str) -> Iterator[Event]:
        self._object = _Object(self._form.arguments)
        self._told = False
        self._state = self._inside
        for letter in letters:
            self._object.feed(letter)
        yield from ()

    def _not_a_call(self, letter: str) -> Iterator[Event]:
        held, self._held, self._named = self._held, "", None
        self._state = self._text if self._form.opener else self._plain
        yield from self._as_text(held)
        yield from self._state(letter)

    def _flush_arguments(self) -> Iterator[Event]:
        """What is known by now of the call that is being read."""
        if self._object is None or self._object.name is None:
            return
        if not self._told:
            self._told = True
            yield Event(call=self.num_calls, name=self._object.name)
        if new := self._object.take():
            yield Event(call=self.num_calls, arguments=new)

    def _as_text(self, text: str) -> Iterator[Event]:
        if text:
            yield Event(text=text)


def _unquoted(text: str) -> str:
    """A JSON string's text; other JSON as it stands."""
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, str) else text
