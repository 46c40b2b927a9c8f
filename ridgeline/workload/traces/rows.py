"""What all readers share: lines with their numbers, and values that are checked and named by their row."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.workload.source import MOST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of a trace. number: from 1, a CSV's header apart; line: of the file, from 1."""

    path: Path
    number: int
    line: int
    values: Mapping[str, Any]

    def error(self, problem: str) -> ConfigError:
        return ConfigError(f"{self.path}, row {self.number} (line {self.line}): {problem}")

    def number_of(self, column: str, *, least: float = 0.0) -> float:
        """A finite number, at least `least`."""
        value = self.get(column)
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise self.error(f"{column} is {value!r}, which is no number") from None
        if not math.isfinite(number) or number < least:
            needed = "a finite number" if least == -math.inf else f"a number from {least:g} up"
            raise self.error(f"{column} is {value}, {needed} is needed")
        return number

    def tokens(self, column: str) -> int:
        """A whole number of tokens, at least 1 and at most what any context holds."""
        number = self.number_of(column, least=1)
        if number > MOST_TOKENS:
            raise self.error(f"{column} is {number:g}, at most {MOST_TOKENS} tokens are taken")
        if number != int(number):
            raise self.error(f"{column} is {number:g}, tokens are whole")
        return int(number)

    def stamp_s(self, column: str) -> float:
        """Seconds: a number, or a date and time (in UTC unless it says otherwise)."""
        text = str(self.get(column))
        if ":" not in text:
            return self.number_of(column, least=-math.inf)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self.error(f"{column} is {text!r}, which is no time") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    def get(self, column: str) -> Any:
        """The value of a column that must be there."""
        value = self.values.get(column)
        if value is None or value == "":
            raise self.error(f"{column} is missing")
        return value


def csv_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    """The rows below a header that must name `columns`; quoting is not needed in numbers, nor known."""
    with path.open(encoding="utf-8-sig") as file:
        names = split(file.readline())
        missing = [column for column in columns if column not in names]
        if missing:
            raise ConfigError(f"{path} has no column {', '.join(missing)}: its header is {','.join(names)!r}")
        lines = ((line, text) for line, text in enumerate(file, start=2) if text.strip())
        for number, (line, text) in enumerate(lines, start=1):
            yield Row(path=path, number=number, line=line, values=dict(zip(names, split(text), strict=False)))


def json_rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines."""
    with path.open(encoding="utf-8") as file:
        lines = ((line, text) for line, text in enumerate(file, start=1) if text.strip())
        for number, (line, text) in enumerate(lines, start=1):
            row = Row(path=path, number=number, line=line, values={})
            try:
                values = json.loads(text)
            except ValueError as error:
                raise row.error(f"not JSON: {error}") from None
            if not isinstance(values, dict):
                raise row.error("not a JSON object")
            yield Row(path=path, number=number, line=line, values=values)


def json_head(head: str) -> dict[str, Any]:
    """A file's first line as a JSON object, empty when it is none."""
    try:
        values = json.loads(head)
    except ValueError:
        return {}
    return values if isinstance(values, dict) else {}


def split(text: str) -> list[str]:
    """The cells of a line."""
    return [cell.strip() for cell in text.strip().split(",")]
