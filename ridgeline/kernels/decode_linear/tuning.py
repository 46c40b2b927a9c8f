"""Which kernel and tile serves a decode linear: measured on a GPU, kept as JSON, guessed where nothing was.

A shipped file (tuned/*.json) names the GPU it was measured on; the user's own, which `tune` makes, comes
before it. Knows what a kernel's tile costs in shared memory; knows no tensor.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path

from ridgeline.base.config import cache_dir
from ridgeline.base.errors import ConfigError

MAX_ROWS = 256  # beyond, the tensor cores are the limit and cuBLAS serves
BUCKETS = (1, 16, 32, 64, 128, 192, 256)
LARGE = (2048, 4096, 8192)  # rows of steps that prompts fill, measured for the library's products
BEYOND = 2304  # an entry here stands for all rows from here on that have none of their own
GUESSED_ROWS = 128  # beyond, only what was measured comes before cuBLAS
MAX_TILES = 4096  # output tiles of a linear whose K is split: one lock each
SHARED_BYTES = 220 << 10
MIN_PROGRAMS = 132  # a wave; fewer leave parts of the GPU without loads in flight


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """n outputs (of each half when gated), k inputs. norm: the input is normed on its way in."""

    n: int
    k: int
    norm: bool = False
    gated: bool = False

    @property
    def weight_elements(self) -> int:
        return self.n * self.k * (2 if self.gated else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one linear runs at one bucket of rows.

    form: "gemv" (one row), "dot" or "tma" (tensor cores), "torch" (cuBLAS), "lt" (cuBLASLt by `algorithm`,
    see kernels/cublaslt). split: parts of K. warps, stages: of Triton. block_m: rows of a tile, 0 for all of
    a bucket. trigger: under programmatic launch, when the next kernel may start: at the "end", after the
    inputs are read ("loop"), at once ("start"). norm_apart: the norm is a kernel of its own.
    """

    form: str
    block_n: int = 0
    block_k: int = 0
    split: int = 1
    warps: int = 4
    stages: int = 1
    trigger: str = "loop"
    norm_apart: bool = False
    block_m: int = 0
    algorithm: str = ""

    @property
    def by_library(self) -> bool:
        return self.form in ("torch", "lt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A measured choice. time_us: of one call whose weights come from memory; 0 where it is the whole step's
    time that chose, which under programmatic launch may want another tile than a call alone."""

    shape: LinearShape
    rows: int
    choice: Choice
    time_us: float


@dataclass(frozen=True, slots=True)
class Tuning:
    """The best measured choice of each (shape, bucket); gpu: whose. No entries: everything is guessed. alike:
    GPUs with the same processors, which take these choices until they have their own."""

    gpu: str
    entries: Mapping[tuple[LinearShape, int], Entry]
    alike: tuple[str, ...] = ()

    @classmethod
    def of(cls, gpu: str, entries: Iterable[Entry]) -> "Tuning":
        best: dict[tuple[LinearShape, int], Entry] = {}
        for entry in entries:
            key = (entry.shape, entry.rows)
            if key not in best or entry.time_us < best[key].time_us:
                best[key] = entry
        return cls(gpu, best)

    def choose(self, shape: LinearShape, rows: int) -> Choice:
        """Measured at the rows' bucket; else measured at another bucket of the tensor-core forms, made to
        fit; else guessed. More than GUESSED_ROWS that are not measured: at a larger bucket, or the
        library's."""
        if rows > GUESSED_ROWS:
            for wide in BUCKETS:
                if wide >= rows and (found := self.entries.get((shape, wide))) is not None:
                    return replace(found.choice, block_m=found.choice.block_m or wide)
            return self.library(shape, rows)
        rows = bucket(rows)
        near = [rows]
        if rows > 1:
            near = sorted((b for b in BUCKETS if 1 < b <= GUESSED_ROWS), key=lambda b: (abs(b - rows), b))
        for other in near:
            found = self.entries.get((shape, other))
            if found is not None and (other == rows or not found.choice.by_library):
                return _fitted(found.choice, shape, rows)
        return guess(shape, rows)

    def library(self, shape: LinearShape, rows: int) -> Choice:
        """The library's product: by the algorithm that was measured for so many rows, else "torch"."""
        sizes = [each for each in BUCKETS if each >= rows > GUESSED_ROWS][:1] or [rows]
        for size in (*sizes, *([BEYOND] if rows >= BEYOND else [])):
            found = self.entries.get((shape, size))
            if found is not None and found.choice.form == "lt":
                return found.choice
        return Choice(form="torch")

    def save(self, path: Path) -> None:
        """Write what `load` reads."""
        rows = [{**asdict(e.shape), "rows": e.rows, **asdict(e.choice), "time_us": round(e.time_us, 3)}
                for e in self.entries.values()]
        rows = [{name: value for name, value in row.items() if value != ""} for row in rows]
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        names = f'"gpu": {json.dumps(self.gpu)}, "alike": {json.dumps(self.alike)}'
        path.write_text(f'{{{names}, "entries": [\n{lines}\n]}}\n', encoding="utf-8")

    @classmethod
    def load(cls, text: str, source: str) -> "Tuning":
        """Read a file's text. ConfigError names `source` and what is wrong in it."""
        try:
            data = json.loads(text)
            made = cls.of(data["gpu"], [_entry(row) for row in data["entries"]])
            return replace(made, alike=tuple(map(str, data.get("alike", ()))))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{source} is no tuning file ({error!r}); remove it, or measure again with "
                              "ridgeline bench kernels --tune") from None


def own_file(gpu: str) -> Path:
    """Where this GPU's own measurements live."""
    name = "".join(c if c.isalnum() else "-" for c in gpu.lower())
    return cache_dir() / "tuning" / f"{name}.json"


def tuning_for(gpu: str) -> Tuning:
    """Own measurements over shipped ones of that GPU or one alike; of a GPU without either, no entries."""
    found: list[Entry] = []
    for file in sorted((files("ridgeline.kernels.decode_linear") / "tuned").iterdir(), key=lambda f: f.name):
        shipped = Tuning.load(file.read_text(encoding="utf-8"), file.name)
        found += shipped.entries.values() if gpu in (shipped.gpu, *shipped.alike) else ()
    merged, own = Tuning.of(gpu, found), own_file(gpu)
    if own.is_file():
        mine = Tuning.load(own.read_text(encoding="utf-8"), str(own))
        merged = Tuning(gpu, {**merged.entries, **mine.entries})
    return merged


def bucket(rows: int) -> int:
    """The measured number of rows that stands for `rows`, 1 to MAX_ROWS."""
    return next(b for b in BUCKETS if rows <= b)


def shared_bytes(shape: LinearShape, rows: int, choice: Choice) -> int:
    """Shared memory of a tensor-core form's tiles in flight, 16-bit elements."""
    tile_rows = choice.block_n * (2 if shape.gated else 1) + (choice.block_m or bucket(rows))
    return tile_rows * choice.block_k * 2 * choice.stages


def guess(shape: LinearShape, rows: int) -> Choice:
    """What was near the best for every shape measured. rows: a bucket."""
    if rows == 1:
        block_k = 1024 if shape.k >= 1024 else 512 if shape.k > 256 else 256
        block_n = 4 if shape.n > 8 * MIN_PROGRAMS and not shape.gated else 2
        return Choice(form="gemv", block_n=block_n, block_k=block_k, warps=4,
                      trigger="start" if shape.k <= 2048 else "end")
    split = 1
    while split < 4 and -(-shape.n // 64) * split < 2 * MIN_PROGRAMS and shape.k // (128 * split) >= 8:
        split *= 2
    choice = Choice(form="dot", block_n=64, block_k=128, split=split, warps=4, stages=4,
                    norm_apart=shape.norm and rows > 16)
    return _fitted(choice, shape, rows)


def _fitted(choice: Choice, shape: LinearShape, rows: int) -> Choice:
    """The choice with as many stages as shared memory holds, and no split of more tiles than there are
    locks."""
    if choice.form not in ("dot", "tma"):
        return choice
    while choice.stages > 2 and shared_bytes(shape, rows, choice) > SHARED_BYTES:
        choice = replace(choice, stages=choice.stages - 1)
    while choice.block_k > 16 and shared_bytes(shape, rows, choice) > SHARED_BYTES:
        choice = replace(choice, block_k=choice.block_k // 2)
    tiles = -(-shape.n // choice.block_n) * (-(-bucket(rows) // choice.block_m) if choice.block_m else 1)
    return choice if tiles <= MAX_TILES else replace(choice, split=1)


def _entry(row: Mapping[str, object]) -> Entry:
    """A row of a file; a name too many or too few is a TypeError."""
    rest = dict(row)
    shape = LinearShape(**{name: rest.pop(name) for name in ("n", "k", "norm",
                                                             "gated")})  # type: ignore[arg-type]
    rows, time_us = int(rest.pop("rows")), float(rest.pop("time_us"))  # type: ignore[call-overload, arg-type]
    return Entry(shape=shape, rows=rows, choice=Choice(**rest), time_us=time_us)  # type: ignore[arg-type]
