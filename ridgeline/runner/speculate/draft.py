"""Drafts by a smaller model of the same vocabulary, with a paged cache of its own.

The cache holds what this model has read of each text; before it drafts it reads what is new, and what it read
of drafts that did not stand is overwritten. Recurrent states are put back to the end of the text once it has
drafted. Pages, prefix reuse and windows are the KV manager's, as for the target. A row that gets no pages is
not drafted for.

Legend: R rows, S rows that go on, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import torch
from torch import Tensor

from ridgeline.kv.manager import KVManager
from ridgeline.nn.build import Model
from ridgeline.runner.cache import PageCache
from ridgeline.runner.inputs import build_step
from ridgeline.runner.rows import Rows
from ridgeline.runner.sampler import Sampler
from ridgeline.runner.speculate.speculator import Proposal, num_agreed
from ridgeline.runner.speculate.texts import Texts, Tokens
from ridgeline.runner.speculate.verify import draws_freely
from ridgeline.runner.wanted import Wanted
from ridgeline.schedule.assemble import copies_of, table_deltas
from ridgeline.schedule.door import mix_seed
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.plan import SAMPLE_NEXT, RowStart, StepPlan

SHORT = 8  # tokens that are read as decodes are, each a row
INDEX_EVERY = 16  # tokens
OWN_NOISE = 1 << 32  # the stream of a row's seed by which drafts are drawn freely


@dataclass(slots=True, kw_only=True)
class _Read:
    """What the model has read of a row's text: `tokens` tokens, `indexed` of them findable, then drafts."""

    seq: int
    tokens: int
    indexed: int
    drafts: list[int] = field(default_factory=list)


class DraftModel:
    """A speculator. capacity: of the draft model; its rows are the target's."""

    def __init__(self, model: Model, capacity: Capacity, *, cache_dtype: torch.dtype, device: torch.device,
                 texts: Texts, most: int) -> None:
        self._model = model
        self._capacity = capacity
        self._texts = texts
        self._most = most
        self._cache = PageCache(capacity.layout, capacity.num_pages, device)
        model.bind_cache(capacity.layout, self._cache.region, cache_dtype)
        self._rows = Rows(capacity.layout, capacity.num_rows, capacity.max_model_len, device)
        self._state_tables = [table for table, group in zip(self._rows.tables, capacity.layout.groups)
                              if group.state_pages]
        self._manager = KVManager(capacity.layout, capacity.num_pages)
        self._sampler = Sampler(capacity.num_rows, capacity.vocab_size, device)
        self._read: dict[int, _Read] = {}
        self._free = np.zeros(capacity.num_rows, np.bool_)  # rows drafted for by noise of their own
        self._seqs, self._steps = count(), count()

    def start(self, start: RowStart) -> None:
        """Drafts are drawn as the target draws, penalties apart: by the same noise where the row's text must
        be what it is without drafts, so that the two agree where they can."""
        self._close(start.row)
        self._free[start.row] = draws_freely(start)
        params = replace(start.params, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0)
        seed = mix_seed(start.seed, OWN_NOISE) if self._free[start.row] else start.seed
        self._rows.take(replace(start, adapter=0))  # adapters are the target's
        self._sampler.start(replace(start, params=params, seed=seed))

    def look(self, row: int) -> int:
        return max(0, min(self._most, self._capacity.max_model_len - len(self._texts.of(row))))

    def expected(self, row: int) -> list[int]:
        return []

    def propose(self, rows: list[int], most: list[int]) -> list[Proposal]:
        wanted = {row: num for row, num in zip(rows, most) if self._open(row, num, rows)}
        drafts: dict[int, list[int]] = {row: [] for row in rows}
        chances: dict[int, list[Tensor]] = {row: [] for row in rows}
        live, fed = list(wanted), {row: self._texts.of(row)[self._read[row].tokens:] for row in wanted}
        states: tuple[Tensor, Tensor] | None = None  # at the ends of the texts
        while live:
            positions = [len(self._texts.of(row)) + len(drafts[row]) for row in live]
            logits_SV = self._logits(live, positions, [fed[row] for row in live])
            rows_S, positions_S = torch.tensor(live), torch.tensor(positions)
            out = self._sampler.sample(logits_SV, rows_S, positions_S)
            if self._free[live].any():
                p_SV = self._sampler.distribution(logits_SV, rows_S, positions_S)
            going = []
            for i, (row, token, failed) in enumerate(zip(live, out.tokens_S.tolist(), out.failed_S.tolist())):
                if failed:
                    continue
                drafts[row].append(token)
                if self._free[row]:
                    chances[row].append(p_SV[i])
                fed[row] = np.array([token], np.int32)
                if len(drafts[row]) < wanted[row]:
                    going.append(row)
            live = going
            if live and states is None:
                states = self._states(list(wanted))
        if states is not None:
            self._cache.arena[states[0]] = states[1]
        for row in wanted:
            read, again = self._read[row], bool(self._state_tables)
            read.tokens, read.drafts = len(self._texts.of(row)), [] if again else drafts[row][:-1]
        return [Proposal(tokens=drafts[row], p_GV=torch.stack(chances[row]) if chances[row] else None)
                for row in rows]

    # ---- the cache

    def _open(self, row: int, num: int, keep: Sequence[int]) -> bool:
        """Pages for the row's text and `num` drafts, if need be those of rows that are not to `keep`."""
        text = self._texts.of(row)
        if row not in self._read:
            seq = next(self._seqs)
            tokens = self._manager.open(seq, text.tolist())
            self._read[row] = _Read(seq=seq, tokens=tokens, indexed=tokens)
        read = self._read[row]
        self._settle(row, read)
        if self._manager.reserve(read.seq, len(text) + num - 1):
            return True
        for other in self._read.keys() - set(keep):
            self._close(other)
        if self._manager.reserve(read.seq, len(text) + num - 1):
            return True
        self._close(row)
        return False

    def _close(self, row: int) -> None:
        if (read := self._read.pop(row, None)) is not None:
            self._settle(row, read)
            self._manager.release(read.seq)

    def _settle(self, row: int, read: _Read) -> None:
        """Drafts that stood were read already; full blocks become findable."""
        text = self._texts.of(row)
        read.tokens += num_agreed(read.drafts, text[read.tokens:].tolist())
        read.tokens, read.drafts = min(read.tokens, len(text) - 1), []
        if read.tokens - read.indexed >= INDEX_EVERY:
            self._manager.commit(read.seq, read.tokens, text.tolist())
            read.indexed = read.tokens

    def _states(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        """Pages of these rows' states, and a copy of what they hold."""
        tables = [table[rows].flatten().long() for table in self._state_tables]
        pages_N = torch.cat(tables) if tables else torch.empty(0, dtype=torch.long)
        return pages_N, self._cache.arena[pages_N]

    # ---- the model

    def _logits(self, rows: list[int], ends: list[int], feeds: list[Tokens]) -> Tensor:
        """[S, V] after the last token fed; ends: positions behind it. Long feeds go first, as chunks."""
        most, lasts = self._capacity.max_step_tokens, []
        for row, end, feed in zip(rows, ends, feeds):
            body = feed[:-1] if len(feed) > SHORT else feed[:0]
            for at in range(0, len(body), most):
                self._forward([row], [end - len(feed) + at], [body[at: at + most]], num_decodes=0)
            lasts.append(feed[len(body):])
        starts = [end - len(feed) for end, feed in zip(ends, lasts)]
        return self._model.logits(self._forward(rows, starts, lasts, num_decodes=len(rows)), len(rows))

    def _forward(self, rows: list[int], starts: list[int], feeds: list[Tokens], *,
                 num_decodes: int) -> Tensor:
        """Hidden states [S, H] of the last tokens fed. What decodes takes the form of drafts under test."""
        counts = np.array([len(feed) for feed in feeds], np.int32)
        step = next(self._steps)
        news = self._manager.close_step(step, {read.seq: row for row, read in self._read.items()})
        plan = StepPlan(
            step=step, request=np.zeros(len(rows), np.int64), row=np.array(rows, np.int32),
            start=np.array(starts, np.int32), count=counts, sample=np.full(len(rows), SAMPLE_NEXT, np.uint8),
            draft=counts - 1 if num_decodes else np.zeros_like(counts), tokens=np.concatenate(feeds),
            num_decodes=num_decodes, row_starts=(), tables=table_deltas(news), copies=copies_of(news))
        self._rows.update(plan.tables)
        self._cache.copy(plan.copies)
        wanted = Wanted.of(plan, np.ones(len(rows), np.int64), np.zeros(len(rows), np.bool_))
        built = build_step(plan, self._rows, self._capacity.layout, wanted=wanted.tokens)
        x_WH = self._model.forward(built)
        built.land()
        self._manager.return_tickets(plan.copies.ticket.tolist())
        self._manager.step_finished(step)
        return x_WH[torch.from_numpy(wanted.ends - 1)]
