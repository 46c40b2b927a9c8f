"""CSV traces, a request a row: Azure's of 2023 and 2024, tables of lengths (ShareGPT, arXiv), and a plain
form for one's own (arrival_s,prompt_tokens,output_tokens).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from numpy.random import Generator

from ridgeline.workload.offered import Offered
from ridgeline.workload.source import Source
from ridgeline.workload.traces.rows import csv_rows, split


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """A reader: the names of the columns. time: None for lengths without arrivals."""

    time: str | None
    prompt: str
    output: str

    def names(self) -> tuple[str, ...]:
        return (*([self.time] if self.time else []), self.prompt, self.output)

    def recognises(self, head: str) -> bool:
        return set(self.names()) <= set(split(head))

    def lacking(self, head: str) -> tuple[str, ...]:
        """The columns that a header lacks of these, where it has some; () where it is another's."""
        missing = tuple(name for name in self.names() if name not in split(head))
        return missing if len(missing) < len(self.names()) else ()

    def read(self, paths: tuple[Path, ...], random: Generator) -> Source:
        (path,) = paths
        return Source(requests=self._requests(path), timed=self.time is not None, about=path.name)

    def _requests(self, path: Path) -> Iterator[Offered]:
        start_s: float | None = None
        before_s = 0.0
        for row in csv_rows(path, self.names()):
            stamp_s = row.stamp_s(self.time) if self.time else 0.0
            start_s = stamp_s if start_s is None else start_s
            if stamp_s - start_s < before_s:
                raise row.error(f"{self.time} goes back in time: sort the rows by it")
            before_s = stamp_s - start_s
            yield Offered(arrived_s=before_s, num_prompt=row.tokens(self.prompt),
                          num_output=row.tokens(self.output), row=row.number)


AZURE = Columns(time="TIMESTAMP", prompt="ContextTokens", output="GeneratedTokens")
LENGTHS = Columns(time=None, prompt="num_prefill_tokens", output="num_decode_tokens")
PLAIN = Columns(time="arrival_s", prompt="prompt_tokens", output="output_tokens")
