"""The door: what can never run is refused here, before it holds anything; what may run becomes one Request a
choice."""

from array import array
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.errors import RequestError
from ridgeline.schedule.request import NewRequest, Request, Status
from ridgeline.spec.sampling import SamplingParams

_MASK = (1 << 64) - 1


def mix_seed(seed: int, index: int) -> int:
    """A seed in [0, 2^63) for the index-th of a family of streams: splitmix64's output function."""
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return (z ^ (z >> 31)) >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The limits of one engine. All in tokens; prompt and output of one request together for the last two.

    max_model_len: the context. max_request_tokens: the most that the cache can hold of one request alone (at
    most max_model_len). eos_token_ids: what ends a text unless ignore_eos. prompt_borders: see Capacity.
    """

    vocab_size: int
    max_model_len: int
    max_request_tokens: int
    eos_token_ids: tuple[int, ...]
    prompt_borders: tuple[int, ...] = ()

    def check(self, new: NewRequest) -> None:
        """RequestError, with the field at fault and the numbers in its text, when the request can never
        run."""
        params, length = new.params, len(new.prompt)
        if length == 0:
            raise RequestError("the prompt has no tokens: send at least one", param="prompt",
                               code="invalid_value")
        if length >= self.max_model_len:
            raise RequestError(
                f"the prompt has {length} tokens and the context of this model holds {self.max_model_len}, "
                f"one of them for the answer: shorten the prompt to at most {self.max_model_len - 1} tokens",
                param="prompt", code="context_length_exceeded")
        if length >= self.max_request_tokens:
            raise RequestError(
                f"the prompt has {length} tokens and the KV cache of this engine holds at most "
                f"{self.max_request_tokens} of one request: shorten the prompt to at most "
                f"{self.max_request_tokens - 1} tokens or start the engine with a larger --kv-cache-bytes",
                param="prompt", code="kv_cache_exceeded")
        self._check_ids(new.prompt, "prompt")
        if params.stop_token_ids:
            self._check_ids(np.array(params.stop_token_ids, object), "stop_token_ids")
        if params.logit_bias:
            self._check_ids(np.array(list(params.logit_bias), object), "logit_bias")
        _check_counts(params)

    def _check_ids(self, ids: NDArray, param: str) -> None:
        if np.minimum.reduce(ids) < 0 or np.maximum.reduce(ids) >= self.vocab_size:
            wrong = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
            raise RequestError(f"token id {ids[wrong[0]]} is outside the vocabulary: use 0 to "
                               f"{self.vocab_size - 1}", param=param, code="invalid_value")

    def choices(self, new: NewRequest, first_number: int, drawn_seed: int) -> list[Request]:
        """One Request for each of the n choices; those after the first wait for the first one's prompt. One
        that has its first token already goes on as after a preemption.

        max_tokens is cut where the context or the cache ends. drawn_seed is used when the request brings
        none.
        """
        params = new.params
        seed = drawn_seed if params.seed is None else params.seed
        stops = frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else self.eos_token_ids)
        known = np.asarray(new.prompt, np.int32)
        prompt = known if new.first_token_s is None else known[:-1]
        room = self.max_request_tokens - len(prompt)
        max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
        scored_from = len(prompt) if params.prompt_logprobs is None else params.prompt_logprobs_from
        side = bisect_left(self.prompt_borders, len(prompt))
        salt = f"{new.cache_salt}\0{side}" if side else new.cache_salt
        return [
            Request(
                number=first_number + choice, id=new.id, choice=choice, params=params,
                seed=seed if choice == 0 else mix_seed(seed, choice), prompt=prompt,
                tokens=array("i", known.tobytes()),
                stop_token_ids=stops, max_tokens=max_tokens, end=max(1, len(prompt) + max_tokens - 1),
                priority=new.priority, cache_salt=salt,
                adapter=new.adapter, tenant=new.tenant, arrived_s=new.arrived_s, num_prompt=len(prompt),
                imported=new.imported, leases=new.leases, first_token_s=new.first_token_s,
                token_times_s=array("d", () if new.first_token_s is None else (new.first_token_s,)),
                tokenised_s=new.arrived_s if new.tokenised_s is None else new.tokenised_s,
                predicted_output=new.predicted_output or 0,
                status=Status.WAITING if choice == 0 else Status.PREPARING,
                prompt_logprobs_from=scored_from if choice == 0 else len(prompt))
            for choice in range(params.n)
        ]


def _check_counts(params: SamplingParams) -> None:
    if params.n < 1:
        raise RequestError(f"n is {params.n}: ask for at least one choice", param="n", code="invalid_value")
    if params.max_tokens is not None and params.max_tokens < 0:
        raise RequestError(f"max_tokens is {params.max_tokens}: use 0 to score the prompt, or more, or leave "
                           "it out", param="max_tokens", code="invalid_value")
    if params.min_tokens < 0:
        raise RequestError(f"min_tokens is {params.min_tokens}: use 0 or more", param="min_tokens",
                           code="invalid_value")
