"""Sampling parameters at the borders: what is allowed, and the form that crosses to the engine.

The last check before the sampler, for requests from Python or a foreign client. Torch-free.
"""

import math
from typing import Any

import msgspec

from ridgeline.base.errors import invalid_value
from ridgeline.frontend.protocol import Sampling
from ridgeline.spec.sampling import SamplingParams

MAX_LOGPROBS = 20
MAX_CHOICES = 128
REPETITION = 0.01, 100.0  # beyond, a logit that it divides or multiplies may leave float32
POOLS = ("mean", "last")


def to_wire(params: SamplingParams) -> Sampling:
    """Without what is the text layer's business."""
    values = {name: getattr(params, name) for name in Sampling.__struct_fields__}
    return Sampling(**values | {"logit_bias": dict(params.logit_bias)})


def from_wire(sampling: Sampling) -> SamplingParams:
    """The engine's side of `to_wire`."""
    return SamplingParams(**msgspec.structs.asdict(sampling))


def check_sampling(params: SamplingParams) -> None:
    """RequestError for a number that is out of range, not finite or not a number, and for an empty stop.

    Token ids are checked where the vocabulary is known, at the scheduler's door.
    """
    _whole(params, "n", 1, MAX_CHOICES)
    _number(params, "temperature", 0.0, math.inf)
    _whole(params, "top_k", 0, 2**31 - 1)
    _number(params, "top_p", 0.0, 1.0, above=True)
    _number(params, "min_p", 0.0, 1.0)
    _number(params, "repetition_penalty", *REPETITION)
    _number(params, "presence_penalty", -2.0, 2.0)
    _number(params, "frequency_penalty", -2.0, 2.0)
    _whole(params, "seed", -(2**63), 2**63 - 1, optional=True)
    _whole(params, "max_tokens", 0, 2**31 - 1, optional=True)
    _whole(params, "min_tokens", 0, 2**31 - 1)
    _whole(params, "logprobs", 0, MAX_LOGPROBS, optional=True)
    _whole(params, "prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
    _whole(params, "prompt_logprobs_from", 1, 2**31 - 1)
    _whole_numbers("stop_token_ids", params.stop_token_ids)
    _whole_numbers("logit_bias", params.logit_bias)
    for token, bias in params.logit_bias.items():
        if not _is_number(bias) or not -100.0 <= bias <= 100.0:
            raise invalid_value(
                "logit_bias", f"the bias {bias!r} of token {token} is not between -100 and 100"
            )
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise invalid_value("min_tokens", f"{params.min_tokens} is more than max_tokens {params.max_tokens}")
    if params.pool is not None and (params.pool not in POOLS or (params.n, params.max_tokens) != (1, 1)):
        raise invalid_value("pool", f"one of {', '.join(POOLS)}, and n and max_tokens 1")
    _check_stops(params)
    _check_grammar(params)


def _check_grammar(params: SamplingParams) -> None:
    """A text that must match a grammar ends where the grammar does."""
    if params.grammar is None:
        return
    if not isinstance(params.grammar, str) or not params.grammar:
        raise invalid_value("grammar", "write a grammar as frontend.structure makes it")
    if params.ignore_eos:
        raise invalid_value("ignore_eos", "a grammar says where the text ends; leave out one of them")
    if params.min_tokens:
        raise invalid_value("min_tokens", "a grammar says where the text ends; leave out one of them")


def _check_stops(params: SamplingParams) -> None:
    if not all(isinstance(stop, str) for stop in params.stop):
        raise invalid_value("stop", "write a string or several")
    if not all(params.stop):
        raise invalid_value("stop", "a stop string must not be empty")
    if params.stop and not params.detokenize:
        raise invalid_value("stop", "stop strings need detokenize to be True; use stop_token_ids")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole_numbers(name: str, values: Any) -> None:
    for value in values:
        if not _is_whole(value):
            raise invalid_value(name, f"{value!r} is not a token id")


def _number(params: SamplingParams, name: str, low: float, high: float, *, above: bool = False) -> None:
    value = getattr(params, name)
    if not _is_number(value) or not low <= value <= high or (above and value == low):
        span = f"{'above' if above else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high < math.inf else ""
        )
        raise invalid_value(name, f"{value!r} is not a number {span}")


def _whole(params: SamplingParams, name: str, low: int, high: int, *, optional: bool = False) -> None:
    value = getattr(params, name)
    if value is None and optional:
        return
    if not _is_whole(value) or not low <= value <= high:
        raise invalid_value(name, f"{value!r} is not a whole number from {low} to {high}")
