"""Taking a step's result: tokens are appended, requests end, news is made. Most rows of most steps go the
quick way."""

import numpy as np
from numpy.typing import NDArray

from ridgeline.schedule.book import Book
from ridgeline.schedule.plan import SAMPLE_NEXT, Int, StepPlan, StepResult
from ridgeline.schedule.request import Finish, Output, Request
from ridgeline.schedule.rows import Rows

Long = NDArray[np.int64]


class Taker:
    """Applies results to rows and requests. A row may have ended, or been preempted, while its step ran."""

    def __init__(self, *, rows: Rows, book: Book) -> None:
        self._rows = rows
        self._book = book

    def take(self, plan: StepPlan, result: StepResult, now: float) -> list[Output]:
        """Sort the rows into quick (one token, nothing else happens) and slow, and take each kind its way."""
        rows, at, took = self._rows, plan.row, result.num_new
        alive = rows.number[at] == plan.request
        good = alive & (result.failed == 0)
        rows.computed[at[good]] = (plan.start + plan.count)[good]
        rows.in_flight[at[alive]] -= plan.sample[alive] == SAMPLE_NEXT
        first = np.cumsum(took) - took
        slow = ~good | rows.slow[at] | (took > 1)
        single = np.flatnonzero(~slow & (took == 1))
        tokens = result.tokens[first[single]]
        ends = (self._book.stops[tokens] > 0) | (rows.known[at[single]] >= rows.end[at[single]])
        slow[single[ends]] = True
        outputs = self._take_quick(at[single[~ends]], tokens[~ends], now)
        for index in np.flatnonzero(slow).tolist():
            news = self._take_slow(plan, result, index, int(first[index]), now)
            if news is not None:
                outputs.append(news)
        return outputs

    def _take_quick(self, at: Int, tokens: Int, now: float) -> list[Output]:
        rows, outputs = self._rows, []
        rows.known[at] += 1
        rows.last_token[at] = tokens
        num_output = (rows.known[at] - rows.num_prompt[at]).tolist()
        for row, token, count in zip(at.tolist(), tokens.tolist(), num_output):
            request = rows.request[row]
            assert request is not None
            request.tokens.append(token)
            request.token_times_s.append(now)
            outputs.append(Output(id=request.id, choice=request.choice, new_tokens=(token,), num_output=count,
                                  num_prompt=request.num_prompt, num_cached=request.num_cached))
        self._book.counters.num_generated_tokens += len(outputs)
        return outputs

    def _take_slow(self, plan: StepPlan, result: StepResult, index: int, first: int,
                   now: float) -> Output | None:
        """One row in full: ended or preempted meanwhile, failed, first token, log-probabilities, a possible
        end."""
        book = self._book
        request = book.requests.get(int(plan.request[index]))
        tokens = result.tokens[first:first + int(result.num_new[index])].tolist()
        if request is None:
            book.surplus(None, len(tokens))
            return None
        if result.failed[index]:
            book.finish(request, Finish.ERROR, now)
            return request.news(error=result.errors.get(index, "the step failed"))
        scores = tuple(result.prompt_logprobs.get(index, ()))
        if scores:
            request.prompt_logprobs_from = scores[-1][0] + 1
        kept, reason = self._accept(request, tokens, now)
        if reason is not None:
            book.finish(request, reason, now)
        if not (kept or scores or reason):
            return None
        return request.news(
            tuple(kept), stop_token=kept[-1] if reason is Finish.STOP else None, prompt_logprobs=scores,
            logprobs=tuple(result.logprobs.get(index, ())[:len(kept)]))

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
            rows.known[row] += len(kept)
            rows.last_token[row] = kept[-1]
            rows.slow[row] = request.params.logprobs is not None
        return kept, reason


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
