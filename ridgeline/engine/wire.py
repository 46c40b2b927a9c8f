"""The scheduler's news as protocol messages, and requests as the loop takes them. Knows no socket."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import RequestError, invalid_value
from ridgeline.frontend.params import check_sampling, from_wire
from ridgeline.frontend.protocol import Logprobs, News, Submit, ToClient, Tokens
from ridgeline.schedule.plan import RowLogprobs
from ridgeline.schedule.request import NewRequest, Output


def news_of(output: Output) -> News:
    """An output in the form that the text layer reads, in this process or another."""
    return News(
        id=output.id,
        choice=output.choice,
        new_tokens=output.new_tokens,
        finish=None if output.finish is None else str(output.finish),
        stop_token=output.stop_token,
        error=output.error,
        logprobs=tuple(map(_logprobs, output.logprobs)),
        prompt_logprobs=tuple((position, _logprobs(row)) for position, row in output.prompt_logprobs),
        pooled=b"" if output.pooled is None else output.pooled.tobytes(),
        num_prompt=output.num_prompt,
        num_cached=output.num_cached,
        num_output=output.num_output,
        times_s=dict(output.times_s) or None,
        account=dict(output.account) or None,
    )


class Parcel:
    """What one client hears of a step, in order: runs of outputs that bring a token alone go as numbers."""

    def __init__(self) -> None:
        self.messages: list[ToClient] = []
        self._run: Tokens | None = None

    def add(self, output: Output, route: int | None) -> None:
        """route: by which the output's request may get `Tokens`; None: it may not."""
        if route is None or not _is_bare(output):
            self._run = None
            self.messages.append(news_of(output))
            return
        run = self._run
        if run is None:
            run = self._run = Tokens(routes=[], tokens=[])
            self.messages.append(run)
        run.routes.append(route + output.choice)
        run.tokens.append(output.new_tokens[0])


def _is_bare(output: Output) -> bool:
    return (output.finish is None and len(output.new_tokens) == 1
            and not (output.logprobs or output.prompt_logprobs or output.times_s or output.account)
            and output.pooled is None and output.error is None)


def _logprobs(row: RowLogprobs) -> Logprobs:
    return Logprobs(token_ids=row.token_ids.tolist(), logprobs=row.logprobs.tolist(), rank=int(row.rank))


def new_request(submit: Submit, now: float) -> NewRequest:
    """A submitted request, checked. Raises RequestError, whatever the sender wrote."""
    params = from_wire(submit.sampling)
    check_sampling(params)
    if "\0" in submit.cache_salt:  # what ends a part of the engine's own salts
        raise invalid_value("cache_salt", "holds a zero character")
    tokenised_s = now if submit.tokenised_s is None else min(submit.tokenised_s, now)
    arrived_s = tokenised_s if submit.arrived_s is None else min(submit.arrived_s, tokenised_s)
    return NewRequest(
        id=submit.id,
        prompt=token_array(submit.prompt),
        params=params,
        priority=submit.priority,
        cache_salt=submit.cache_salt,
        arrived_s=arrived_s,
        tokenised_s=tokenised_s,
        tenant=submit.tenant,
        predicted_output=submit.predicted_output,
    )


def token_array(token_ids: Sequence[int]) -> NDArray[np.int32]:
    """Token ids [tokens]. RequestError for one that is no 32-bit number."""
    try:
        return np.asarray(token_ids, np.int32)
    except OverflowError:
        wrong = next(token for token in token_ids if not -(2**31) <= token < 2**31)
        raise RequestError(
            f"token id {wrong} is outside the vocabulary", param="prompt", code="invalid_value"
        ) from None
