"""The OpenAPI document: the bodies are msgspec types, read by the server itself, so they are described here.
"""

from typing import Any

import msgspec
from fastapi import FastAPI

from ridgeline.api.answers import (
    ChatCompletion,
    Completion,
    DetokenizeAnswer,
    ModelCard,
    ModelList,
    TokenizeAnswer,
)
from ridgeline.api.embeddings import EmbeddingsAnswer, EmbeddingsRequest
from ridgeline.api.errors import ErrorBody
from ridgeline.api.messages_types import CountAnswer, CountRequest, MessageAnswer, MessagesRequest
from ridgeline.api.responses_types import ResponseAnswer, ResponsesRequest
from ridgeline.api.score import ScoreAnswer, ScoreRequest
from ridgeline.api.types import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest

_BODIES: dict[str, tuple[Any, Any]] = {
    "/v1/completions": (CompletionRequest, Completion),
    "/v1/chat/completions": (ChatRequest, ChatCompletion),
    "/v1/embeddings": (EmbeddingsRequest, EmbeddingsAnswer),
    "/v1/score": (ScoreRequest, ScoreAnswer),
    "/v1/messages": (MessagesRequest, MessageAnswer),
    "/v1/messages/count_tokens": (CountRequest, CountAnswer),
    "/v1/responses": (ResponsesRequest, ResponseAnswer),
    "/v1/responses/{response_id}": (None, ResponseAnswer),
    "/v1/responses/{response_id}/cancel": (None, ResponseAnswer),
    "/tokenize": (TokenizeRequest, TokenizeAnswer),
    "/detokenize": (DetokenizeRequest, DetokenizeAnswer),
    "/v1/models": (None, ModelList),
    "/v1/models/{name}": (None, ModelCard),
}


def describe_bodies(app: FastAPI) -> None:
    """Put the types into the app's /openapi.json, made once when it is first asked for."""
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _fill(plain())
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend the document


def _fill(document: dict[str, Any]) -> None:
    kinds = [kind for pair in _BODIES.values() for kind in pair if kind is not None]
    refs, parts = msgspec.json.schema_components(
        [*kinds, ErrorBody], ref_template="#/components/schemas/{name}"
    )
    ref_of = dict(zip([*kinds, ErrorBody], refs, strict=True))
    document.setdefault("components", {}).setdefault("schemas", {}).update(parts)
    for path, methods in document["paths"].items():
        asked, answered = _BODIES.get(path, (None, None))
        for operation in methods.values():
            responses = {"default": _content(ref_of[ErrorBody], "A refusal or a failure")}
            if answered is not None:
                responses["200"] = _content(ref_of[answered], "The answer")
            operation["responses"] = operation.get("responses", {}) | responses
            operation["responses"].pop("422", None)
            if asked is not None:
                operation["requestBody"] = {"required": True, **_content(ref_of[asked])}


def _content(ref: Any, description: str | None = None) -> dict[str, Any]:
    body: dict[str, Any] = {"content": {"application/json": {"schema": ref}}}
    return body if description is None else {"description": description, **body}
