"""Grammars of runner rows: whether one may take a token, or all that it may take, as a mask which is computed
beside the forward pass or once it is wanted (llguidance).

Owns the matchers and what of them is compiled. A grammar is compiled once, by whoever lets the request in, in
a thread of its choice (`Grammars.compile`); a row gets a copy. Knows no schema: see frontend/structure.py.

Where only one text can follow, the row says it in the tokens in which the vocabulary's own tokenizer spells
the whole of it, so far as nothing behind can change that: a run. Whether the tokens of a run are taken at
once (jump-ahead) or by a step each, they are the same.

Legend: N positions that are sampled under a grammar, W words of 32 bits, S sampled positions, V vocabulary.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Event, Lock
from typing import Any, Protocol

import msgspec
import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.errors import RequestError
from ridgeline.frontend.structure import BROKEN
from ridgeline.schedule.plan import SAMPLE_NONE, RowStart, StepPlan

FORBIDDEN = -1e30  # added, makes a logit that no other reaches; finite: a row of them is not broken
MOST_COMPILED = 256
LEAST_FORCED = 2  # tokens: a single one is sampled by a step that is planned already
_MOST_SPELT, _LONGEST_SPELT = 4096, 256  # forced texts whose tokens are kept; characters of one


class Vocabulary(Protocol):
    """What a grammar needs to know of a tokenizer."""

    @property
    def marker_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]: ...


class _Words:
    """A vocabulary as llguidance asks for it: what marks a place begins with a byte that no text has."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_ids[0]
        self.special_token_ids = sorted(vocabulary.marker_ids)
        self.tokens = [(b"\xff" if token in vocabulary.marker_ids else b"") + vocabulary.token_bytes(token)
                       for token in range(vocab_size)]
        times = Counter(self.tokens)  # of those with the same bytes a mask may have but one
        self.unsure = frozenset(token for token, own in enumerate(self.tokens) if not own or times[own] > 1)
        self._kept = lru_cache(_MOST_SPELT)(self._spelt)  # a schema's keys come again and again

    def __call__(self, text: str | bytes) -> list[int]:
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return list(self._kept(text) if len(text) <= _LONGEST_SPELT else self._spelt(text))

    def _spelt(self, text: str) -> tuple[int, ...]:
        return tuple(self._vocabulary.encode(text, add_special=False))


@dataclass(slots=True, kw_only=True)
class _Row:
    """A row's matcher, after the tokens that are known. run: what of a run is still to come."""

    matcher: LLMatcher
    grammar: str
    jumps: bool
    run: list[int] = field(default_factory=list)

    def take(self, tokens: Sequence[int]) -> bool:
        """The row took these tokens; False when its grammar cannot go on. Behind a text that only the end can
        follow, that is what came."""
        for token in tokens:
            if self.matcher.is_stopped() and not self.matcher.is_error():
                break
            if not self.matcher.consume_token(token) or self.matcher.is_error():
                return False  # with the mask of a dead end, which allows the text's end, it was one before
            behind = self.run[1:] if self.run[:1] == [token] else []
            self.run = behind or self.matcher.compute_ff_tokens()
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Masks:
    """The masks of a step: bits_NW int32, on the host, filled once `filled` is done, and good until those of
    the next are asked for; first: of each place in the plan. begun: set once filling needs no turn at Python
    any more, for which it waits long where the caller's thread computes in it."""

    bits_NW: Tensor
    first: Mapping[int, int]
    filled: Future[None]
    begun: Event = field(default_factory=Event)

    def of(self, places: NDArray[np.int64], behind: NDArray[np.int64]) -> NDArray[np.int32]:
        """Which of N each position has, so many drafts behind its place of the plan; -1 for none."""
        first = np.array([self.first.get(place, -1) for place in places.tolist()], np.int32)
        return np.where(first < 0, -1, first + behind).astype(np.int32)

    def apply(self, logits_SV: Tensor, places: Sequence[int], first: Sequence[int], drafts: Sequence[int],
              *, keep: bool) -> Tensor:
        """The logits without what the grammars forbid. keep: the given ones stay as they are.

        places: of the plan, by row; the row's positions are first .. first + drafts of S.
        """
        at: list[int] = []
        of: list[int] = []
        for place, where, more in zip(places, first, drafts):
            if place in self.first:
                at += range(where, where + more + 1)
                of += range(self.first[place], self.first[place] + more + 1)
        if not at:
            return logits_SV
        self.filled.result()
        forbidden_SW = np.zeros((len(logits_SV), self.bits_NW.shape[1]), np.int32)
        forbidden_SW[at] = ~self.bits_NW.numpy()[of]
        return _without(logits_SV, forbidden_SW, torch.empty_like(logits_SV) if keep else logits_SV)


def _without(logits_SV: Tensor, forbidden_SW: NDArray[np.int32], target_SV: Tensor) -> Tensor:
    """The logits without what is forbidden, in target_SV."""
    bits = np.unpackbits(forbidden_SW.view(np.uint8), axis=1, bitorder="little")
    forbidden_SV = torch.from_numpy(bits[:, : logits_SV.shape[1]]).to(logits_SV.device)
    return torch.add(logits_SV, forbidden_SV, alpha=FORBIDDEN, out=target_SV)  # selecting takes tenfold


@dataclass(frozen=True, slots=True)
class _Asked:
    """Positions of a step whose masks are filled, by what fills them. first: as in `Masks`. runs: positions
    that have one token each, and those."""

    first: dict[int, int] = field(default_factory=dict)
    plain: list[tuple[LLMatcher, int]] = field(default_factory=list)
    drafted: list[tuple[LLMatcher, int, list[int]]] = field(default_factory=list)
    runs: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))

    def add(self, row: _Row, place: int, first: int, drafts: list[int]) -> None:
        """A row at this place of the plan, whose positions begin at `first`, one more for each draft."""
        self.first[place] = first
        if drafts:
            self.drafted.append((row.matcher, first, drafts))
        elif not row.run:
            self.plain.append((row.matcher, first))
        for at, token in zip(range(first, first + len(drafts) + 1), row.run):
            self.runs[0].append(at)
            self.runs[1].append(token)

    def fill(self, executor: LLExecutor, bits_NW: NDArray[np.int32], begun: Event) -> None:
        """Fill all of them; begun: when the threads are about to."""
        target = bits_NW.ctypes.data, bits_NW.shape[1] * bits_NW.itemsize, len(bits_NW)
        if self.drafted:
            bits_NW[:] = 0  # of those behind a draft that is forbidden
        begun.set()
        if self.plain:
            executor.unsafe_compute_mask_ptr(self.plain, *target)
        if self.drafted:
            executor.unsafe_compute_mask_ptr_with_draft_token(self.drafted, *target)
        if self.runs[0]:
            at, tokens = np.array(self.runs[0]), np.array(self.runs[1])
            bits_NW[at] = 0
            bits_NW.view(np.uint32)[at, tokens // 32] = 1 << tokens % 32


class Grammars:
    """The matchers of all runner rows.

    vocabulary: asked once, when the first grammar comes. threads: that fill masks. jump_ahead: tokens that
    are forced need no step each. pinned: masks lie where a GPU can fetch them.
    """

    def __init__(self, vocabulary: Callable[[], Vocabulary], *, vocab_size: int, eos_token_ids: Sequence[int],
                 threads: int, jump_ahead: bool = True, pinned: bool = False) -> None:
        self._vocabulary = vocabulary
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._lock = Lock()
        self._tokenizer: LLTokenizer | None = None
        self._unsure = frozenset[int]()  # tokens that only a mask can tell of
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._jump_ahead, self._pinned = jump_ahead, pinned
        self._rows: dict[int, _Row] = {}
        self._known: dict[int, int] = {}  # of rows that jumped in the last step: the next position
        self._bits_NW = torch.zeros(0, 0, dtype=torch.int32)
        self._executor = LLExecutor(threads)
        self._worker = ThreadPoolExecutor(1, "grammar")

    def compile(self, grammar: str) -> LLMatcher:
        """The grammar's matcher at its start; kept for the next request. RequestError when it is too complex.
        Safe in any thread."""
        with self._lock:
            if self._tokenizer is None:
                words: Any = _Words(self._vocabulary(), self._vocab_size, self._eos_token_ids)
                self._unsure = words.unsure
                self._tokenizer = LLTokenizer(words, n_vocab=self._vocab_size,
                                              eos_token=list(self._eos_token_ids))
            matcher = self._compiled.get(grammar)
            if matcher is not None:
                self._compiled.move_to_end(grammar)
                return matcher
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=limits)
        if matcher.is_error():
            raise RequestError(f"the grammar cannot be followed: {matcher.get_error()[:500]}",
                               param="grammar", code="invalid_grammar")
        with self._lock:
            self._compiled[grammar] = matcher
            if len(self._compiled) > MOST_COMPILED:
                self._compiled.popitem(last=False)
        return matcher

    # ---- rows; on the runner's thread

    def start(self, start: RowStart) -> None:
        """A request takes a row (again after a preemption, with what is known of its text by then)."""
        self._rows.pop(start.row, None)
        self._known.pop(start.row, None)
        if (grammar := start.params.grammar) is not None:
            matcher = self.compile(grammar).deep_copy()
            jumps = self._jump_ahead and start.params.logprobs is None  # which are had by sampling alone
            row = self._rows[start.row] = _Row(
                matcher=matcher, grammar=grammar, jumps=jumps, run=matcher.compute_ff_tokens())
            row.take(start.output.tolist())

    def concerns(self, plan: StepPlan) -> bool:
        """True when a row of the plan may have a grammar, or one takes a row with it."""
        return any(start.params.grammar is not None for start in plan.row_starts) or (
            bool(self._rows) and not self._rows.keys().isdisjoint(plan.row.tolist()))

    def without_known(self, plan: StepPlan) -> StepPlan:
        """The plan without sampling what was forced since it was made."""
        if not self._known:
            return plan
        known = np.array([self._known.get(row, 0) for row in plan.row.tolist()])
        self._known.clear()
        is_known = plan.start + plan.count < known
        return msgspec.structs.replace(plan, sample=np.where(is_known, np.uint8(SAMPLE_NONE), plan.sample))

    def masks(self, plan: StepPlan) -> Masks | None:
        """Begin to fill the masks of the rows that sample; None when none of them has a grammar."""
        if not self._rows:
            return None
        asked, total, numbers = _Asked(), 0, plan.row.tolist()
        ends = plan.count.cumsum() if plan.num_drafts else None
        for place in np.flatnonzero(plan.sample != SAMPLE_NONE).tolist():
            row = self._rows.get(numbers[place])
            if row is None:
                continue
            drafts = list[int]()
            if ends is not None:
                drafts = plan.tokens[ends[place] - plan.draft[place]: ends[place]].tolist()
            asked.add(row, place, total, drafts)
            total += 1 + len(drafts)
        if not asked.first:
            return None
        bits_NW, begun = self._room(total), Event()
        filled = self._worker.submit(asked.fill, self._executor, bits_NW.numpy(), begun)
        return Masks(bits_NW=bits_NW, first=asked.first, filled=filled, begun=begun)

    def _room(self, total: int) -> Tensor:
        """Memory for so many masks."""
        if total > len(self._bits_NW):
            words = -(-self._vocab_size // 32)
            self._bits_NW = torch.zeros(total, words, dtype=torch.int32, pin_memory=self._pinned)
        return self._bits_NW[:total]

    # ---- of rows that take one token each, without masks where they are not needed

    def follow(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these rows have a grammar."""
        return np.array([number in self._rows for number in numbers.tolist()], np.bool_)

    def given(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The token that each of these rows must take, -1 where there is a choice or no grammar."""
        rows = (self._rows.get(number) for number in numbers.tolist())
        return np.array([row.run[0] if row is not None and row.run else -1 for row in rows], np.int64)

    def takes(self, number: int, token: int) -> bool:
        """True only where the row's mask allows this token; its grammar has a choice. At a hundredth of the
        mask's price."""
        return token not in self._unsure and self._rows[number].matcher.validate_tokens([token]) == 1

    def forbid(self, numbers: NDArray[np.int64], logits_NV: Tensor) -> None:
        """These rows' logits, without what their grammars forbid, in place."""
        asked = _Asked()
        for place, number in enumerate(numbers.tolist()):
            asked.add(self._rows[number], place, place, [])
        bits_NW = self._room(len(numbers)).numpy()
        asked.fill(self._executor, bits_NW, Event())
        _without(logits_NV, ~bits_NW, logits_NV)

    # ---- what follows a step's tokens

    def accept(self, number: int, tokens: Sequence[int]) -> str | None:
        """The row took these tokens; why its grammar cannot be followed any further, if so. With the end of
        its text a row has none."""
        row = self._rows.get(number)
        if row is None:
            return None
        if row.take(tokens):
            if tokens[-1] in self._eos_token_ids:
                del self._rows[number]
            return None
        with self._lock:  # whatever broke may be shared with its copies
            self._compiled.pop(row.grammar, None)
        why, _, _ = row.matcher.get_error().partition("\n")
        return f"{BROKEN}: {why[:300]}"

    def force(self, number: int, position: int) -> list[int]:
        """What the row takes without sampling from `position` on, its next; [] where there is a choice."""
        row, forced = self._rows.get(number), list[int]()
        while row is not None and row.jumps and len(row.run) >= LEAST_FORCED:
            forced += row.run
            if not row.take(row.run):
                break  # said when a token is accepted
        if forced:
            self._known[number] = position + len(forced)
        return forced

    def close(self) -> None:
        """End the thread that fills masks."""
        self._worker.shutdown()
