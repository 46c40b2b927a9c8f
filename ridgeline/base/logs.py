"""The log of a process: lines for people, or an object a line for programs.

What an exception says may quote a request, so that only its kind and its place are written unless prompts may
be. A record's own text is written by us and quotes none; `fields` (see `said`) are numbers and names.
"""

import json
import logging
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

FORMATS = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStyle:
    """format: one of FORMATS. prompts: what clients send may be written."""

    format: str = "text"
    prompts: bool = False

    def words(self) -> list[str]:
        """As flags of a command line."""
        return ["--log-format", self.format, *(["--log-prompts"] if self.prompts else [])]


TEXT = LogStyle()


def configure(style: LogStyle) -> None:
    """From now on this process logs in this style, to standard error; what nobody catches, too."""
    handler = logging.StreamHandler()
    handler.setFormatter(Objects(style) if style.format == "json" else Lines(style))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(style.format == "json")
    sys.excepthook = _uncaught
    threading.excepthook = lambda args: _uncaught(args.exc_type, args.exc_value, args.exc_traceback)


def _uncaught(kind: type[BaseException], error: BaseException | None, trace: TracebackType | None) -> None:
    if issubclass(kind, SystemExit):
        return
    shown = error or kind()
    logging.getLogger("ridgeline").critical("nobody caught this", exc_info=(kind, shown, trace))


def said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The `extra` of a record with fields."""
    return {"fields": {name: value for name, value in fields.items() if value is not None}}


class Lines(logging.Formatter):
    """INFO ridgeline.server: text name=value"""

    def __init__(self, style: LogStyle) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._prompts = style.prompts

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  logging's own name
        fields: Mapping[str, Any] = getattr(record, "fields", {})
        shown = (f" {name}={json.dumps(value)}" for name, value in fields.items())
        return super().formatMessage(record) + "".join(shown)

    def formatException(self, ei: Any) -> str:  # noqa: N802  logging's own name
        return "\n".join(_told(ei[1], self._prompts))


class Objects(logging.Formatter):
    """One JSON object: time, level, logger, message, the record's fields, and exception with its trace."""

    def __init__(self, style: LogStyle) -> None:
        super().__init__()
        self._prompts = style.prompts

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        whole = {"time": when, "level": record.levelname.lower(), "logger": record.name,
                 "message": record.getMessage().rstrip(), **getattr(record, "fields", {})}
        if record.exc_info and record.exc_info[1] is not None:
            whole |= {"exception": type(record.exc_info[1]).__qualname__,
                      "trace": list(_told(record.exc_info[1], self._prompts))}
        return json.dumps(whole, default=str)


def _told(error: BaseException | None, words: bool) -> Iterator[str]:
    """Where it came from, what led to it first, and its kind; what it says only if `words`."""
    if error is None:
        return
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    yield from _told(before, words)
    for inner in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
        yield from _told(inner, words)
    for frame in traceback.extract_tb(error.__traceback__):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    yield type(error).__qualname__ + (f": {error}" if words else "")
