"""/v1/score: how likely a model finds given continuations of given contexts, all pairs in one call.

What harnesses that rank answers ask for: of each pair the continuation's log-probability and whether it is
what the model would say by itself. Pairs with the same context read it from the cache: the first of them
computes it, the others start when that one has ended.
"""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from ridgeline.account.caller import Caller
from ridgeline.api.answers import PromptUsage, to_json
from ridgeline.api.job import Job
from ridgeline.api.logprobs import FLOOR
from ridgeline.api.openai import OpenAI
from ridgeline.api.parse import parse
from ridgeline.api.prompts import Prompt, check_fits, check_token_ids
from ridgeline.api.served import Served
from ridgeline.api.types import Strict
from ridgeline.base.errors import invalid_value
from ridgeline.spec.sampling import SamplingParams


class ScorePair(Strict, kw_only=True):
    """Two texts, or the token ids of two. Texts are tokenized as one; the continuation's tokens are those
    from the first on that differ from the context's own."""

    context: str | list[Any]
    continuation: str | list[Any]


class ScoreRequest(Strict, kw_only=True):
    """POST /v1/score. user: accepted and not used."""

    pairs: Annotated[list[ScorePair], Meta(min_length=1)]
    model: str | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    user: str | None = None


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Of a continuation: the sum of its tokens' log-probabilities, and whether each is the model's first
    choice."""

    index: int
    logprob: float
    is_greedy: bool
    token_ids: list[int]
    token_logprobs: list[float]
    object: str = "score"


class ScoreAnswer(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Score]
    model: str
    usage: PromptUsage
    object: str = "list"


async def score(api: OpenAI, body: bytes, caller: Caller | None = None) -> bytes:
    """One score for each pair, in order. Raises as OpenAI.completion does."""
    clock = api.arrived(caller)
    with api.admission.enter():
        request = parse(body, ScoreRequest, api.served.limits)
        model = api.card(request.model).id
        if len(request.pairs) > (most := api.served.limits.choices):
            raise invalid_value("pairs", f"holds {len(request.pairs)}, at most {most} are allowed")
        prompts = await asyncio.to_thread(_prompts, request.pairs, api.served)
        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        job, usage = await api.read(prompts, params, clock, model, cache_salt=request.cache_salt)
        data = [_score(job, index) for index in range(len(prompts))]
        return to_json(ScoreAnswer(data=data, model=model, usage=usage))


def _prompts(pairs: list[ScorePair], served: Served) -> list[Prompt]:
    first: dict[tuple[int, ...], int] = {}
    prompts = []
    for index, pair in enumerate(pairs):
        token_ids, begin = _joined(pair, f"pairs[{index}]", served)
        check_fits(token_ids, served, f"pairs[{index}]")
        leader = first.setdefault(tuple(token_ids[:begin]), index)
        after = None if leader == index else leader
        prompts.append(Prompt(token_ids=token_ids, scored_from=begin, after=after))
    return prompts


def _joined(pair: ScorePair, where: str, served: Served) -> tuple[list[int], int]:
    """A pair's tokens, and where the continuation's begin."""
    context, continuation = pair.context, pair.continuation
    if isinstance(context, str) and isinstance(continuation, str):
        before = served.text.encode_prompt(context)
        token_ids = served.text.encode_prompt(context + continuation)
        same = (i for i, (one, other) in enumerate(zip(before, token_ids)) if one != other)
        begin = next(same, min(len(before), len(token_ids)))
    elif isinstance(context, list) and isinstance(continuation, list):
        for name, ids in (("context", context), ("continuation", continuation)):
            check_token_ids(ids, f"{where}.{name}", served.vocab_size)
        token_ids, begin = [*context, *continuation], len(context)
    else:
        raise invalid_value(where, "give context and continuation both as texts, or both as token ids")
    if begin == len(token_ids):
        raise invalid_value(f"{where}.continuation", "is empty: there is nothing to score")
    if not begin:
        raise invalid_value(f"{where}.context", "has no token of its own: nothing predicts what follows")
    return token_ids, begin


def _score(job: Job, index: int) -> Score:
    found = [entry for _, entry in job.generations[index].prompt_logprobs]
    values = [max(entry.logprobs[0], FLOOR) for entry in found]
    prompt = job.prompts[index]
    assert len(values) == len(prompt.token_ids) - prompt.scored_from, "each token of it was asked for"
    return Score(index=index, logprob=sum(values), is_greedy=all(entry.rank == 0 for entry in found),
                 token_ids=prompt.token_ids[prompt.scored_from:], token_logprobs=values)
