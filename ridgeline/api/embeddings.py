"""/v1/embeddings: prompts as vectors of length 1, by the model's final hidden states."""

import base64
from typing import Any, Literal

import msgspec
import numpy as np

from ridgeline.account.caller import Caller
from ridgeline.api.answers import PromptUsage, to_json
from ridgeline.api.errors import renamed, unsupported
from ridgeline.api.openai import OpenAI
from ridgeline.api.parse import parse
from ridgeline.api.prompts import completion_prompts
from ridgeline.api.types import Strict
from ridgeline.base.errors import RequestError
from ridgeline.spec.sampling import SamplingParams


class EmbeddingsRequest(Strict, kw_only=True):
    """POST /v1/embeddings. input: as a completion's prompt. pooling: of the hidden states of all tokens, or
    the last one's, which it is when absent. user: accepted and not used.
    """

    input: str | list[Any]
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    pooling: Literal["last", "mean"] | None = None
    dimensions: int | None = None
    user: str | None = None


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """embedding: numbers, or float32, lowest byte first, in base 64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    data: list[Embedding]
    model: str
    usage: PromptUsage
    object: str = "list"


async def embeddings(api: OpenAI, body: bytes, caller: Caller | None = None) -> bytes:
    """One vector for each input, in order. Raises as OpenAI.completion does."""
    clock = api.arrived(caller)
    with api.admission.enter():
        request = parse(body, EmbeddingsRequest, api.served.limits)
        model = api.card(request.model).id
        if request.dimensions is not None:
            raise unsupported("dimensions", "a vector has all of this model's dimensions; leave it out")
        try:
            prompts = await completion_prompts(api.served, request.input, 1)
        except RequestError as error:
            raise renamed(error, {"prompt": "input"}) from None
        params = SamplingParams(temperature=0.0, max_tokens=1, pool=request.pooling or "last")
        job, usage = await api.read(prompts, params, clock, model)
        data = []
        for index in range(len(prompts)):
            news = job.choice(index).last_news
            assert news is not None and news.pooled, "a pooled request ends with its vector"
            vector = _written(news.pooled, as_text=request.encoding_format == "base64")
            data.append(Embedding(index=index, embedding=vector))
        return to_json(EmbeddingsAnswer(data=data, model=model, usage=usage))


def _written(pooled: bytes, *, as_text: bool) -> list[float] | str:
    vector = np.frombuffer(pooled, np.float32).astype(np.float64)
    vector /= max(float(np.linalg.norm(vector)), 1e-12)
    if as_text:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.astype(np.float32).tolist()
