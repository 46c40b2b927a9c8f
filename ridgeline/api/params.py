"""The rules between a request's fields: a parsed body becomes SamplingParams, the model's own defaults filled
in.
"""

import re
from collections.abc import Mapping
from typing import Any

from ridgeline.api.errors import unsupported
from ridgeline.api.limits import LIMITS
from ridgeline.api.types import ChatRequest, CompletionRequest, Generate
from ridgeline.base.errors import invalid_value
from ridgeline.frontend.params import check_sampling
from ridgeline.spec.sampling import SamplingParams

DEFAULT_COMPLETION_TOKENS = 16
_ID = re.compile(r"0|-?[1-9][0-9]{0,19}")  # one spelling each
# Values of features that this server does not have which ask for nothing; null always does.
_INERT: Mapping[str, tuple[Any, ...]] = {
    "suffix": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "functions": ([],),
    "function_call": ("none",),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "reasoning_effort": (),
    "web_search_options": (),
}


def completion_params(
    request: CompletionRequest, vocab_size: int, defaults: Mapping[str, float], grammar: str | None = None
) -> SamplingParams:
    """Raises RequestError. With max_tokens 0 one token is made, which the answer leaves out."""
    _refuse_absent_features(request)
    max_tokens = DEFAULT_COMPLETION_TOKENS if request.max_tokens is None else request.max_tokens
    if max_tokens == 0 and not request.echo:
        raise invalid_value("max_tokens", "must be at least 1 unless echo is true")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise unsupported(
            "best_of", "ranking of several answers is not supported; leave it out or set it to n"
        )
    scores = request.logprobs if request.echo else None
    if request.prompt_logprobs is not None:
        scores = max(request.prompt_logprobs, scores or 0)
    return _common(request, max(1, max_tokens), request.logprobs, scores, vocab_size, defaults, grammar)


def chat_params(
    request: ChatRequest, vocab_size: int, defaults: Mapping[str, float], grammar: str | None = None
) -> SamplingParams:
    """Raises RequestError. Without a limit the answer may run to the end of the context."""
    _refuse_absent_features(request)
    limits = {value for value in (request.max_tokens, request.max_completion_tokens) if value is not None}
    if len(limits) > 1:
        raise invalid_value("max_tokens", "differs from max_completion_tokens; send one of them")
    if limits == {0}:
        raise invalid_value(
            "max_completion_tokens" if request.max_tokens is None else "max_tokens", "must be at least 1"
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid_value("top_logprobs", "needs logprobs to be true")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return _common(
        request, min(limits, default=None), logprobs, request.prompt_logprobs, vocab_size, defaults, grammar
    )


def _refuse_absent_features(request: Generate) -> None:
    for name, inert in _INERT.items():
        value = getattr(request, name, None)
        if value is not None and value not in inert:
            allowed = ", ".join(["null", *map(repr, inert)])
            raise unsupported(name, f"{value!r:.80} is not supported by this server; accepted: {allowed}")
    if request.stream_options is not None and not request.stream:
        raise invalid_value("stream_options", "needs stream to be true")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid_value("prompt_logprobs", "needs stream to be false")


def _common(
    request: Generate,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    vocab_size: int,
    defaults: Mapping[str, float],
    grammar: str | None,
) -> SamplingParams:
    def chosen(name: str, otherwise: float) -> float:
        value = getattr(request, name)
        return defaults.get(name, otherwise) if value is None else value

    params = SamplingParams(
        n=request.n or 1,
        temperature=chosen("temperature", 1.0),
        top_k=max(0, int(chosen("top_k", 0))),
        top_p=max(chosen("top_p", 1.0), 1e-9),  # 0 keeps the best token only
        min_p=chosen("min_p", 0.0),
        repetition_penalty=chosen("repetition_penalty", 1.0),
        presence_penalty=chosen("presence_penalty", 0.0),
        frequency_penalty=chosen("frequency_penalty", 0.0),
        logit_bias=_logit_bias(request.logit_bias or {}, vocab_size),
        seed=request.seed,
        max_tokens=max_tokens,
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        stop=_stop(request.stop),
        stop_token_ids=_token_ids(request.stop_token_ids or [], vocab_size),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        grammar=grammar,
    )
    check_sampling(params)
    return params


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > LIMITS.stops:
        raise invalid_value("stop", f"holds {len(stops)} strings, at most {LIMITS.stops} are allowed")
    if any(len(text) > LIMITS.stop_chars for text in stops):
        raise invalid_value("stop", f"a stop string must not be longer than {LIMITS.stop_chars} characters")
    return stops


def _token_ids(ids: list[int], vocab_size: int) -> tuple[int, ...]:
    if len(ids) > LIMITS.stop_token_ids:
        raise invalid_value(
            "stop_token_ids", f"holds {len(ids)} ids, at most {LIMITS.stop_token_ids} are allowed"
        )
    for token in ids:
        if not 0 <= token < vocab_size:
            raise invalid_value(
                "stop_token_ids", f"{token!s:.40} is not a token id of this model (0 to {vocab_size - 1})"
            )
    return tuple(ids)


def _logit_bias(bias: dict[str, float], vocab_size: int) -> dict[int, float]:
    if len(bias) > LIMITS.bias:
        raise invalid_value("logit_bias", f"holds {len(bias)} entries, at most {LIMITS.bias} are allowed")
    checked: dict[int, float] = {}
    for key, value in bias.items():
        if not _ID.fullmatch(key) or not 0 <= int(key) < vocab_size:
            raise invalid_value(
                "logit_bias", f"{key:.40} is not a token id of this model (0 to {vocab_size - 1})"
            )
        checked[int(key)] = value
    return checked
