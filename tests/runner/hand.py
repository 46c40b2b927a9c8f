"""An executor driven by hand-made plans: allocates pages, sorts rows as the contract asks, keeps nothing
else."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from ridgeline.base.clock import WallClock
from ridgeline.kernels.gpu import Gpu
from ridgeline.nn.build import build_model
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.runner import LocalExecutor
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import (
    PLACEHOLDER,
    SAMPLE_NEXT,
    SAMPLE_NONE,
    Copies,
    RowStart,
    StepPlan,
    StepResult,
    TableDelta,
)
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, kw_only=True)
class Feed:
    """One row's part of a step: known tokens from `start` on; sample asks for the next token."""

    row: int
    start: int
    tokens: Sequence[int]
    sample: bool = True


@dataclass(kw_only=True)
class Hand:
    """Plays the scheduler. Pages are handed out in an order that leaves no sequence contiguous.

    gpu: its kernels run the model, in a GpuExecutor; graphs: of it.
    """

    spec: ModelSpec
    weights: dict[str, Tensor]
    num_rows: int = 6
    num_pages: int = 400
    block_tokens: int = 4
    dtype: torch.dtype = torch.float32
    max_step_tokens: int = 4096
    gpu: Gpu | None = None
    graphs: bool = True
    executor: LocalExecutor | GpuExecutor = field(init=False)

    def __post_init__(self) -> None:
        layout = plan_layout(self.spec.cache(self.dtype.itemsize), block_tokens=self.block_tokens)
        self.capacity = Capacity(layout=layout, num_pages=self.num_pages, num_rows=self.num_rows,
                                 max_step_tokens=self.max_step_tokens, max_model_len=self.spec.max_position,
                                 vocab_size=self.spec.vocab_size)
        device = torch.device("cpu") if self.gpu is None else self.gpu.device
        weights = {name: weight.to(device) for name, weight in self.weights.items()}
        self.model = build_model(self.spec, weights, self.dtype, self.gpu)
        if self.gpu is None:
            self.executor = LocalExecutor(self.model, self.capacity, cache_dtype=self.dtype, device=device,
                                          clock=WallClock(), threads=1)
        else:
            self.executor = GpuExecutor(self.model, self.capacity, cache_dtype=self.dtype, device=device,
                                        clock=WallClock(), graphs=self.graphs)
        self.free = np.random.default_rng(1).permutation(np.arange(1, self.num_pages)).tolist()
        self.tables: list[dict[int, list[int]]] = [{} for _ in layout.groups]
        self.news: list[list[tuple[int, int, int]]] = [[] for _ in layout.groups]
        self.row_starts: list[RowStart] = []
        self.copies: list[tuple[int, int]] = []
        self.num_steps = 0

    def start(self, row: int, prompt: Sequence[int], params: SamplingParams = GREEDY, *,
              output: Sequence[int] = (), prompt_logprobs_from: int = 1) -> None:
        """A request takes a row with the next step; its old pages are forgotten."""
        for table in self.tables:
            table[row] = []
        self.row_starts.append(RowStart(
            request=self.num_steps * 100 + row, row=row, params=params, seed=row,
            prompt=np.array(prompt, np.int32), output=np.array(output, np.int32), stop_token_ids=(),
            prompt_logprobs_from=prompt_logprobs_from))

    def fork(self, parent: int, child: int, num_tokens: int) -> None:
        """The started child shares the parent's full pages and copies the page it will write into."""
        for group, (table, news) in enumerate(zip(self.tables, self.news)):
            full = num_tokens // self.capacity.layout.groups[group].tokens_per_page
            pages = table[parent][:full]
            if full < len(table[parent]):
                pages.append(self.free.pop())
                self.copies.append((table[parent][full], pages[-1]))
            table[child] = pages
            news.extend((child, index, page) for index, page in enumerate(pages))

    def begin(self, *feeds: Feed) -> tuple[int, list[Feed]]:
        """Plan a step; returns its ticket and the feeds in the plan's order."""
        ordered = sorted(feeds, key=lambda feed: not (feed.sample and len(feed.tokens) == 1))
        for feed in ordered:
            self._reserve(feed.row, feed.start + len(feed.tokens))
        source, target = (np.array([pair[i] for pair in self.copies], np.int32) for i in (0, 1))
        space = np.zeros(len(source), np.int32)
        plan = StepPlan(
            step=self.num_steps, request=_long(feed.row for feed in ordered),
            row=_int(feed.row for feed in ordered), start=_int(feed.start for feed in ordered),
            count=_int(len(feed.tokens) for feed in ordered),
            sample=np.array([SAMPLE_NEXT if feed.sample else SAMPLE_NONE for feed in ordered], np.uint8),
            draft=np.zeros(len(ordered), np.int32), tokens=_int(t for feed in ordered for t in feed.tokens),
            num_decodes=sum(feed.sample and len(feed.tokens) == 1 for feed in ordered),
            row_starts=tuple(self.row_starts), tables=tuple(_delta(news) for news in self.news),
            copies=Copies(source_space=space, source=source, target_space=space, target=target,
                          ticket=np.arange(len(source))))
        self.row_starts, self.copies, self.news = [], [], [[] for _ in self.news]
        self.num_steps += 1
        return self.executor.begin(plan, 0.0), ordered

    def step(self, *feeds: Feed) -> StepResult:
        """Plan and finish a step. The result is in the order that `begin` would return."""
        ticket, _ = self.begin(*feeds)
        return self.executor.finish(ticket, 0.0)

    def tokens(self, *feeds: Feed) -> dict[int, int]:
        """Plan and finish a step in which nothing fails; the sampled token by row."""
        ticket, ordered = self.begin(*feeds)
        return self.read(self.executor.finish(ticket, 0.0), ordered)

    def read(self, result: StepResult, ordered: list[Feed]) -> dict[int, int]:
        """The sampled token by row of a step in which nothing failed."""
        assert not result.failed.any(), result.errors
        sampled = [feed.row for feed, new in zip(ordered, result.num_new) if new]
        assert sampled == [feed.row for feed in ordered if feed.sample]
        return dict(zip(sampled, result.tokens.tolist()))

    def generate(self, row: int, prompt: Sequence[int], num_tokens: int, *, chunk: int | None = None,
                 params: SamplingParams = GREEDY) -> list[int]:
        """One request alone, its prompt in chunks of `chunk` tokens."""
        self.start(row, prompt, params)
        chunk = chunk or len(prompt)
        for low in range(0, len(prompt), chunk):
            part = list(prompt[low: low + chunk])
            last = low + chunk >= len(prompt)
            sampled = self.tokens(Feed(row=row, start=low, tokens=part, sample=last))
        out = [sampled[row]]
        while len(out) < num_tokens:
            feed = Feed(row=row, start=len(prompt) + len(out) - 1, tokens=[PLACEHOLDER])
            out.append(self.tokens(feed)[row])
        return out

    def _reserve(self, row: int, num_tokens: int) -> None:
        for group, table, news in zip(self.capacity.layout.groups, self.tables, self.news):
            while len(table[row]) * group.tokens_per_page < num_tokens:
                table[row].append(self.free.pop())
                news.append((row, len(table[row]) - 1, table[row][-1]))

    def close(self) -> None:
        self.executor.close()


def _int(values: object) -> np.ndarray:
    return np.fromiter(values, np.int32)  # type: ignore[call-overload]


def _long(values: object) -> np.ndarray:
    return np.fromiter(values, np.int64)  # type: ignore[call-overload]


def _delta(news: list[tuple[int, int, int]]) -> TableDelta:
    row, index, page = (np.array([entry[i] for entry in news], np.int32) for i in range(3))
    return TableDelta(row=row, index=index, page=page)
