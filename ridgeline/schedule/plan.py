"""StepPlan and StepResult: the only two values that cross between the scheduler and an executor. Arrays, not
objects.

Legend: R rows of the step, T flat tokens of the step (the rows' tokens one after another), numpy throughout.
Rows are sorted: first the decodes, which take one known token, and drafts after it where they verify some,
then the others (chunks of prompts). What each step makes is a msgspec struct: it takes a tenth of the time
of a frozen dataclass to make.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.spec.sampling import SamplingParams

PLACEHOLDER = -1  # in `tokens`: the token that the step in flight is sampling for this row

SAMPLE_NONE = 0  # a chunk that does not reach the last known token
SAMPLE_NEXT = 1  # project the row's last position and sample the next token

FAILED = 1  # the row broke: its request ends
UNDONE = 2  # there was no memory for the row: nothing of the step counts for it, and it is to be tried again

Int = NDArray[np.int32]
Long = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStart:
    """A request that takes a runner row with this step. Sent once (again after a preemption, with what is
    known).

    prompt and output: token ids known so far. seed: always set here. adapter: its slot, 0 for the base model.
    prompt_logprobs_from: first position whose prompt log-probability is still owed (positions before it were
    delivered before a preemption).
    """

    request: int
    row: int
    params: SamplingParams
    seed: int
    prompt: Int
    output: Int
    stop_token_ids: tuple[int, ...]
    prompt_logprobs_from: int = 1
    adapter: int = 0


class TableDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """New block-table entries of one cache group: table[row[i], index[i]] = page[i] (i runs over this step's
    news)."""

    row: Int
    index: Int
    page: Int


class Copies(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Page copies to run before the step's forward, in order. Space 0 is the device's arena, 1 the host's.

    What they fill stays pinned by the manager until the result returns the ticket.
    """

    source_space: Int
    source: Int
    target_space: Int
    target: Int
    ticket: Long

    @staticmethod
    def none() -> "Copies":
        z, zl = np.zeros(0, np.int32), np.zeros(0, np.int64)
        return Copies(source_space=z, source=z, target_space=z, target=z, ticket=zl)

    def __len__(self) -> int:
        return len(self.source)


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One iteration over all rows that take part.

    request [R] engine-wide request number; row [R] the runner row; start [R] position of the row's first
    token in this step (= tokens computed before it); count [R] tokens of the row, drafts included; sample [R]
    SAMPLE_*; draft [R] reserved draft slots (0 without speculation), the row's last, of which the executor
    may use fewer; tokens [T] input ids, PLACEHOLDER where only the device knows. tables: one TableDelta a
    cache group. row_starts come before anything else of the step; rows whose request ended are simply given
    to another request by a later RowStart. adapters: slots that the rows use, each once, 0 left out.
    """

    step: int
    request: Long
    row: Int
    start: Int
    count: Int
    sample: NDArray[np.uint8]
    draft: Int
    tokens: Int
    num_decodes: int
    row_starts: tuple[RowStart, ...]
    tables: tuple[TableDelta, ...]
    copies: Copies
    adapters: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        return len(self.row)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_sampled(self) -> int:
        """Positions that are projected to logits for sampling."""
        return int(np.count_nonzero(self.sample)) + self.num_drafts

    @property
    def num_drafts(self) -> int:
        return int(np.add.reduce(self.draft)) if np.count_nonzero(self.draft) else 0  # cheaper where none


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLogprobs:
    """Raw log-probabilities of one position. token_ids[0] is the token taken; then the top k, best first."""

    token_ids: Int
    logprobs: NDArray[np.float32]
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What a speculator says of a step, in the plan's row order.

    compared [R] drafts that the row's tokens were held against, verified or not; agreed [R] those that were
    right before the first wrong one; ready [R] drafts there would be for the row's next step; seconds: that
    drafting took within the step.
    """

    compared: Int
    agreed: Int
    ready: Int
    seconds: float


class StepResult(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What an executor returns for a plan, in the plan's row order.

    num_new [R] tokens taken by each row (0 where sample is SAMPLE_NONE, 1 for plain decode, up to draft + 1
    when verifying); tokens [sum num_new] flat. failed [R] FAILED where the row's logits were not finite or
    the row broke, UNDONE where memory lacked: such a row has num_new 0 and `errors` says why. short: memory
    lacked for the step as a whole, and it went in parts if at all. forced: by index, tokens that can alone
    follow the row's new ones; where such a token was known before the step ended, a row that was to sample it
    takes none. logprobs and prompt_logprobs: by index into the plan's rows, only for rows that asked;
    prompt_logprobs[i] is a list of (position, RowLogprobs) in
    order. pooled: by index too, [hidden], of the rows with `pool` whose prompt is whole. returned_tickets:
    copies that have finished; lost_tickets: those that never ran. experts_read: distinct experts whose
    weights were read, summed over the layers. shared: (rows, so many first tokens) whose keys were read once
    for all of those rows. started_s, finished_s: the executor's clock. drafting: None
    without speculation.
    """

    step: int
    num_new: Int
    tokens: Int
    failed: NDArray[np.uint8]
    errors: dict[int, str] = msgspec.field(default_factory=dict)
    forced: dict[int, list[int]] = msgspec.field(default_factory=dict)
    logprobs: dict[int, list[RowLogprobs]] = msgspec.field(default_factory=dict)
    prompt_logprobs: dict[int, list[tuple[int, RowLogprobs]]] = msgspec.field(default_factory=dict)
    pooled: dict[int, NDArray[np.float32]] = msgspec.field(default_factory=dict)
    returned_tickets: Long = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    lost_tickets: Long = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    short: bool = False
    experts_read: int = 0
    shared: tuple[tuple[tuple[int, ...], int], ...] = ()
    started_s: float = 0.0
    finished_s: float = 0.0
    drafting: Drafting | None = None
