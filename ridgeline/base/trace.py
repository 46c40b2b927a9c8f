"""Records of steps and requests: one format for the live engine, the simulator and the benchmarks.

A trace file is JSON lines: a header, then records in the order they happened, each with its "kind". Times are
seconds of the clock that drove the loop. Knows no scheduler: whoever has the numbers fills the records in.
"""

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One finished step.

    num_decodes: rows with one known token that sample; num_chunks: the other rows, prefill_tokens theirs.
    num_drafts: tokens that decodes verify besides; num_new: tokens that came of the step; num_forced: that
    grammars made known behind them. num_sampled: projected positions. context_tokens: keys read, each row's
    once, under full attention; shared_tokens: of them, those that another row read along. running, waiting:
    requests after the plan. used_pages, free_pages: of the arena after the plan. num_preemptions: made by
    this plan. num_failed: rows that ended with an error. begun_s: handed to the executor; started_s,
    finished_s: the executor's own; plan_s, commit_s: the scheduler's seconds. planned_s: what it was expected
    to take, by the executor or by measured steps (None: nobody could say); measured_s: what it took; floor_s:
    the roofline's price (None without one). experts_read: distinct experts whose weights the step read,
    summed over the layers that are mixtures, and how many were expected. prefill_share: of the step's time,
    what its chunks add to its decodes by the floor: 0 for decodes alone, 1 for chunks alone. digest: names
    its plan (`schedule.records.digest_of`), 0 where it is not recorded.
    """

    step: int
    num_decodes: int
    num_chunks: int
    prefill_tokens: int
    num_sampled: int
    context_tokens: int
    running: int
    waiting: int
    used_pages: int
    free_pages: int
    num_copies: int
    num_preemptions: int
    num_failed: int
    begun_s: float
    started_s: float
    finished_s: float
    plan_s: float
    commit_s: float
    planned_s: float | None
    measured_s: float
    floor_s: float | None
    experts_read: int = 0
    experts_expected: float = 0.0
    shared_tokens: int = 0
    num_drafts: int = 0
    num_new: int = 0
    num_forced: int = 0
    prefill_share: float = 0.0
    digest: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.num_drafts + self.prefill_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One ended choice of a request. token_times_s: when each output token was committed; may be left empty.

    num_cached: prompt tokens reused from the cache. wasted_tokens: computed again after a preemption, or past
    the end. floor_s: what its uncached prompt and its tokens must take when nothing else runs (None without a
    price).

    Stations, in their order; None when it ended before: arrived_s, tokenised_s (its tokens were handed to the
    engine; None: at once), first_scheduled_s (into a plan), first_started_s (that plan on the device),
    first_token_s, finished_s. On the way, zero for most: preprocess_s (pixels, before it was scheduled),
    encoder_s and transfer_s (an image's encoder, a KV cache's way from another device; before the first
    token). waits_s: seconds it waited, by what for (`schedule.waits`), after a preemption too. num_chunks:
    steps that took prompt tokens. num_drafts, num_accepted: drafts verified for it, and how many were right.
    num_forced: output tokens that its grammar made known without a step of their own.

    For a replay (`sim.replay`), where it is recorded: number, of all choices in the order they came;
    came_after, left_after: steps that had finished when it came, and when somebody ended it (None: it ended
    by itself). max_tokens: the most it might answer; predicted_output: what was expected. block_ids: of its
    full blocks of block_tokens tokens, prompt and output; equal ids stand for equal texts up to there.
    token_ids: the text itself, where that was asked for.
    """

    id: str
    choice: int
    priority: int
    tenant: str
    num_prompt: int
    num_cached: int
    num_output: int
    finish: str
    num_preemptions: int
    wasted_tokens: int
    arrived_s: float
    first_scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    floor_s: float | None = None
    token_times_s: Sequence[float] = ()
    tokenised_s: float | None = None
    first_started_s: float | None = None
    preprocess_s: float = 0.0
    encoder_s: float = 0.0
    transfer_s: float = 0.0
    waits_s: Mapping[str, float] = field(default_factory=dict)
    num_chunks: int = 0
    num_drafts: int = 0
    num_accepted: int = 0
    num_forced: int = 0
    number: int = -1
    came_after: int = 0
    left_after: int | None = None
    max_tokens: int = 0
    predicted_output: int = 0
    block_tokens: int = 0
    block_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()


Record = StepRecord | RequestRecord
_TUPLES = {"token_times_s", "block_ids", "token_ids"}
_KINDS: tuple[tuple[str, type], ...] = (("step", StepRecord), ("request", RequestRecord))


class Trace(Protocol):
    """Takes records as they happen."""

    def add(self, record: Record) -> None: ...

    def close(self) -> None: ...


class RingTrace:
    """The last records in memory: `steps` and `requests`, oldest first."""

    def __init__(self, num_steps: int = 4096, num_requests: int = 4096) -> None:
        self.steps: deque[StepRecord] = deque(maxlen=num_steps)
        self.requests: deque[RequestRecord] = deque(maxlen=num_requests)

    def add(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self.steps.append(record)
        else:
            self.requests.append(record)

    def close(self) -> None:
        """Nothing to do: the records stay readable."""


class JsonlTrace:
    """Writes a trace file. `about` (engine, model, commit, ...) goes into the header."""

    def __init__(self, path: str | Path, about: dict[str, Any] | None = None) -> None:
        self._file = Path(path).open("w", encoding="utf-8")  # noqa: SIM115 (open for the trace's life)
        self.head(about or {})

    def head(self, about: dict[str, Any]) -> None:
        """More for the header, in a line of its own: what is known only later, before the first record."""
        self._write({"kind": "header", "format": FORMAT, **about})

    def add(self, record: Record) -> None:
        kind = next(name for name, cls in _KINDS if isinstance(record, cls))
        self._write({"kind": kind, **{f.name: getattr(record, f.name) for f in fields(record)}})

    def close(self) -> None:
        self._file.close()

    def _write(self, line: dict[str, object]) -> None:
        self._file.write(json.dumps(line, allow_nan=False, default=list) + "\n")  # an array's numbers


class Tee:
    """The same records to several traces."""

    def __init__(self, *traces: Trace) -> None:
        self._traces = traces

    def add(self, record: Record) -> None:
        for trace in self._traces:
            trace.add(record)

    def close(self) -> None:
        for trace in self._traces:
            trace.close()


def read_header(path: str | Path) -> dict[str, Any]:
    """What stands in a trace file before its first record; {} where it does not begin with a header."""
    found: dict[str, Any] = {}
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            try:
                values = json.loads(line)
            except ValueError:
                break
            if not isinstance(values, dict) or values.get("kind") != "header":
                break
            found |= values
    return found


def read_trace(path: str | Path) -> Iterator[Record]:
    """The records of a trace file, in order. ValueError names the line that is not a record of this
    format."""
    classes = dict(_KINDS)
    with Path(path).open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            try:
                values = json.loads(line)
                kind = values.pop("kind")
                if kind == "header":
                    if values["format"] != FORMAT:
                        raise ValueError(f"format {values['format']}, this version reads {FORMAT}")
                    continue
                for name in _TUPLES & values.keys():
                    values[name] = tuple(values[name])
                yield classes[kind](**values)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}: not a trace record ({error})") from None
