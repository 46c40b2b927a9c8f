"""Taking a step's result: tokens are appended, requests end, news is made. Most rows of most steps go the
quick way."""

from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.book import Book
from ridgeline.schedule.plan import UNDONE, Int, StepPlan, StepResult
from ridgeline.schedule.request import Finish, Output, Request
from ridgeline.schedule.rows import Bool, Rows, Taken
from ridgeline.schedule.size import StepSize


class Taker:
    """Applies results to rows and requests. A row may have ended, or been preempted, while its step ran."""

    def __init__(self, *, rows: Rows, book: Book, size: StepSize) -> None:
        self._rows = rows
        self._book = book
        self._size = size

    def take(self, plan: StepPlan, taken: Taken, result: StepResult, now: float) -> list[Output]:
        """Sort the rows into quick (one token, nothing else happens) and slow, and take each kind its way."""
        rows = self._rows
        took, token, failed = _by_row(plan, result, rows.size, one=taken.draft is None)
        alive = taken.takes & (rows.number == taken.number)
        good = alive & (failed == 0)
        np.copyto(rows.computed, taken.until, where=good)
        rows.in_flight -= taken.samples & alive & (taken.until >= rows.known)  # below: forced meanwhile
        if taken.draft is not None:
            rows.trim(taken, took, good)
        plain = good & ~rows.slow
        quick = plain & (took == 1) & (self._book.stops[token] == 0) & (rows.known < rows.end)
        if result.forced:
            quick[plan.row[list(result.forced)]] = False
        outputs = self._take_quick(quick, token, now)
        slow = taken.takes & ~quick & ~(plain & ~taken.samples)
        if np.count_nonzero(slow):
            first = np.cumsum(result.num_new) - result.num_new
            for index in slow[plan.row].nonzero()[0].tolist():
                news = self._take_slow(plan, result, index, int(first[index]), now)
                if news is not None:
                    outputs.append(news)
        return outputs

    def _take_quick(self, quick: Bool, token: Int, now: float) -> list[Output]:
        """One more token for each row of `quick`. Columns and map: Python runs no line for each row here."""
        rows, at = self._rows, quick.nonzero()[0]
        full, ids = len(at) == rows.size, rows.id  # all are cheaper to slice than to index
        these, named = (slice(None), ids) if full else (at, compress(ids, quick.tolist()))
        new, place = token[these], rows.known[these]
        rows.make_room(int(np.maximum.reduce(rows.known)) + 1)
        rows.tokens[at, place] = rows.last_token[these] = new
        rows.times_s[at, place] = now
        num_prompt = rows.num_prompt[these]
        num_output = place + 1 - num_prompt
        rows.known += quick
        self._book.counters.num_generated_tokens += len(at)
        return list(map(Output, named, rows.choice[these].tolist(), zip(new.tolist()), num_output.tolist(),
                        num_prompt.tolist(), rows.num_cached[these].tolist()))

    def _take_slow(self, plan: StepPlan, result: StepResult, index: int, first: int,
                   now: float) -> Output | None:
        """One row in full: ended or preempted meanwhile, failed, first token, log-probabilities, a possible
        end."""
        book = self._book
        request = book.requests.get(int(plan.request[index]))
        tokens = result.tokens[first:first + int(result.num_new[index])].tolist()
        tokens += result.forced.get(index, ())
        if request is None or plan.step <= request.void_step:
            book.surplus(request, len(tokens))
            return None
        note_step(request, int(plan.start[index]), result.started_s)
        if result.failed[index] == UNDONE and plan.num_tokens > self._size.least:
            self._size.num_undone += 1
            if request.row >= 0:
                book.undo(request)
            return None
        if result.failed[index]:
            book.finish(request, Finish.ERROR, now)
            return request.news(error=result.errors.get(index, "the step failed"))
        if request.row >= 0:
            self._rows.sync(request)
        owed = request.prompt_logprobs_from  # a prompt that is computed again brings them again
        is_known = int(plan.start[index] + plan.count[index]) < len(request.tokens)
        assert tokens or is_known or not plan.sample[index], "a row that samples brings a token or an error"
        scores = tuple(score for score in result.prompt_logprobs.get(index, ()) if score[0] >= owed)
        if scores:
            request.prompt_logprobs_from = scores[-1][0] + 1
        kept, reason = self._accept(request, tokens, now)
        if index in result.forced:
            request.num_forced += max(0, len(kept) - int(result.num_new[index]))
            if request.row >= 0:
                self._rows.in_flight[request.row] = 0  # what a step in flight samples is known by now
        if reason is not None:
            book.finish(request, reason, now)
        if not (kept or scores or reason):
            return None
        return request.news(
            tuple(kept), stop_token=kept[-1] if reason is Finish.STOP else None, prompt_logprobs=scores,
            logprobs=tuple(result.logprobs.get(index, ())[:len(kept)]), pooled=result.pooled.get(index))

    def _accept(self, request: Request, tokens: list[int], now: float) -> tuple[list[int], Finish | None]:
        """Append tokens up to the first that ends the request: (those kept, why it ends or None)."""
        rows, row = self._rows, request.row
        if request.max_tokens == 0:
            self._book.surplus(request, len(tokens))
            over = row >= 0 and rows.computed[row] >= request.end
            return [], Finish.LENGTH if over else None
        kept, reason = _until_end(request, tokens)
        request.token_times_s.extend([now] * len(kept))
        self._book.surplus(request, len(tokens) - len(kept))
        self._book.counters.num_generated_tokens += len(kept)
        if kept and request.first_token_s is None:
            request.first_token_s = now
            self._book.prompt_computed(request)
        if kept and row >= 0:
            rows.append(request, len(kept))
            rows.slow[row] = request.params.logprobs is not None
        return kept, reason


def note_step(request: Request, start: int, started_s: float) -> None:
    """A step that may be one of its prompt's: its first token there was at `start`."""
    request.num_chunks += start < request.num_prompt
    if request.first_started_s is None and request.first_scheduled_s is not None:
        request.first_started_s = max(request.first_scheduled_s, started_s)


def _by_row(plan: StepPlan, result: StepResult, num_rows: int, *,
            one: bool) -> tuple[Int, Int, NDArray[np.uint8]]:
    """(tokens taken, first token, failed), each by row instead of in the plan's order; zeros elsewhere.

    one: no row takes more than a token.
    """
    if one and plan.num_rows == plan.num_decodes == num_rows == len(result.tokens):
        return result.num_new, result.tokens, result.failed
    at, took, failed = plan.row, np.zeros(num_rows, np.int32), np.zeros(num_rows, np.uint8)
    token = np.zeros(num_rows, np.int32)
    took[at], failed[at] = result.num_new, result.failed
    if one:
        token[at[result.num_new.nonzero()[0]]] = result.tokens
        return took, token, failed
    some = result.num_new > 0
    token[at[some]] = result.tokens[(np.cumsum(result.num_new) - result.num_new)[some]]
    return took, token, failed


def _until_end(request: Request, tokens: list[int]) -> tuple[list[int], Finish | None]:
    """Append each token to the request until one ends it. An end id among the first min_tokens ends nothing
    (the sampler masks them there)."""
    for place, token in enumerate(tokens, start=1):
        request.tokens.append(token)
        if token in request.stop_token_ids and request.num_output > request.params.min_tokens:
            return tokens[:place], Finish.STOP
        if request.num_output >= request.max_tokens:
            return tokens[:place], Finish.LENGTH
    return tokens, None
