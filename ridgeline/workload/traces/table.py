"""The trace formats that are known, and how a file finds its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from numpy.random import Generator

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.workload.source import Source
from ridgeline.workload.traces import columns, mooncake, recorded, servegen, sessions


@dataclass(frozen=True, slots=True)
class Reader:
    """recognises: by a file's first line. read: its files (one, unless `many`)."""

    recognises: Callable[[str], bool]
    read: Callable[[tuple[Path, ...], Generator], Source]
    many: bool = False


READERS = Table("trace format", {
    "azure": Reader(columns.AZURE.recognises, columns.AZURE.read),
    "lengths": Reader(columns.LENGTHS.recognises, columns.LENGTHS.read),
    "plain": Reader(columns.PLAIN.recognises, columns.PLAIN.read),
    "mooncake": Reader(mooncake.recognises, mooncake.read),
    "sessions": Reader(sessions.recognises, sessions.read),
    "servegen": Reader(servegen.recognises, servegen.read, many=True),
    "recorded": Reader(recorded.recognises, recorded.read),
})


def open_trace(name: str, random: Generator) -> Source:
    """"FILE" or "format:FILE". ConfigError for what cannot be read, or is of no known format."""
    kind, colon, rest = name.partition(":")
    if colon and not Path(name).exists():
        reader, files = READERS[kind], rest
    else:
        reader, files = _by_head(name), name
    paths = tuple(Path(word) for word in files.split(",")) if reader.many else (Path(files),)
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"there is no trace file {path}")
    return reader.read(paths, random)


def _by_head(name: str) -> Reader:
    path = Path(name.split(",")[0] if not Path(name).exists() else name)
    try:
        with path.open(encoding="utf-8-sig") as file:
            head = file.readline()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the trace {path}: {error}") from None
    for kind in READERS:
        if READERS[kind].recognises(head):
            return READERS[kind]
    for tabular in (columns.AZURE, columns.LENGTHS, columns.PLAIN):
        if lacking := tabular.lacking(head):
            raise ConfigError(f"{path} has no column {', '.join(lacking)}: its header is "
                              f"{head.strip()[:80]!r}")
    raise ConfigError(f"{path} is of no known trace format by its first line, {head.strip()[:80]!r}: known "
                      f"are {', '.join(sorted(READERS))}")
