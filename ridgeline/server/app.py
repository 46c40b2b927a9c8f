"""The routes: HTTP in, HTTP out. What an endpoint means lives in the modules that it calls.

Open without a key: /health (the engine lives), /ready (new work is taken) and /ping. CORS is off unless asked
for.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib.metadata import version
from math import ceil
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from ridgeline.account.caller import Caller
from ridgeline.account.metrics import CONTENT_TYPE, EngineValue
from ridgeline.api.adapters import load_adapter, unload_adapter
from ridgeline.api.answers import ModelList, to_json
from ridgeline.api.embeddings import embeddings
from ridgeline.api.errors import as_request_error, body_at, unsupported
from ridgeline.api.limits import Limits, too_large
from ridgeline.api.messages import Messages
from ridgeline.api.openai import OpenAI, Reply
from ridgeline.api.parse import parse
from ridgeline.api.responses import Responses
from ridgeline.api.resume import Streams
from ridgeline.api.schema import describe_bodies
from ridgeline.api.score import score
from ridgeline.api.stream import RESUME, ClientGone, EventStream, until_gone
from ridgeline.api.tokens import detokenize, tokenize
from ridgeline.base.errors import EngineDeadError, RequestError, invalid_value
from ridgeline.server.access import OPEN, Access
from ridgeline.server.health import Health
from ridgeline.server.journal import Journal
from ridgeline.server.keys import Keys
from ridgeline.server.rest import ASLEEP, AWAKE, Reload, Rest

_JSON = "application/json"
RETRY_S = 5.0
_FRESH = {"cache-control": "no-store"}


def _need_admin(request: Request) -> None:
    """RequestError for a key that may ask and not change what is served."""
    if not request.scope["caller"].admin:
        raise RequestError(
            "this API key may not change what the server serves: that needs one with admin = true in the "
            "file of --api-key-file, or a server's only key", code="admin_needed", status=403,
        )  # fmt: skip


_ADMIN = [Depends(_need_admin)]


def build_app(
    api: OpenAI, health: Health, *, keys: Keys, origins: tuple[str, ...] = (),
    pages: Sequence[BaseRoute] = (), log_prompts: bool = False, rest: Rest | None = None,
) -> ASGIApp:  # fmt: skip
    """The whole server as an ASGI app. pages: routes of others. A browser sends no key, so these must hold
    nothing of clients: they, and all below their first segments, are open. log_prompts: of each request.
    rest: what admins may put to sleep; None: nobody may."""
    app = FastAPI(title="Ridgeline", version=version("ridgeline"), redirect_slashes=False)
    for kind in (RequestError, EngineDeadError, HTTPException, Exception):
        app.add_exception_handler(kind, _on_error)
    _add_generation(app, api)
    _add_messages(app, api)
    _add_responses(app, api)
    _add_streams(app, api.streams)
    _add_model(app, api)
    _add_operation(app, api, health, keys, rest)
    if rest is not None:
        _add_rest(app, api, rest)
    describe_bodies(app)
    app.router.routes.extend(pages)
    trees = {page.path.split("/")[1] for page in pages if isinstance(page, Route)}
    routes = {route.path for route in app.routes if isinstance(route, Route)}
    access = Access(app, keys=keys, origins=origins, open_trees=trees)
    return Journal(access, routes=routes, quiet={*OPEN, "/metrics"}, prompts=log_prompts)


def _add_generation(app: FastAPI, api: OpenAI) -> None:
    @app.post("/v1/completions", tags=["generate"])
    async def completions(request: Request) -> Response:
        """Continue a prompt."""
        return await _generate(api, request, api.completion)

    @app.post("/v1/embeddings", tags=["generate"])
    async def post_embeddings(request: Request) -> Response:
        """Texts as vectors."""
        return await _generate(api, request, partial(embeddings, api))

    @app.post("/v1/score", tags=["generate"])
    async def post_score(request: Request) -> Response:
        """How likely continuations of contexts are."""
        return await _generate(api, request, partial(score, api))

    @app.post("/v1/chat/completions", tags=["generate"])
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation."""
        return await _generate(api, request, api.chat)


def _add_messages(app: FastAPI, api: OpenAI) -> None:
    messages = Messages(api)

    @app.post("/v1/messages", tags=["generate"])
    async def create_message(request: Request) -> Response:
        """Answer a conversation, in Anthropic's dialect."""
        return await _generate(api, request, messages.create)

    @app.post("/v1/messages/count_tokens", tags=["model"])
    async def count_tokens(request: Request) -> Response:
        """The length of a conversation's prompt, in Anthropic's dialect."""
        return _json(await messages.count_tokens(await _body(request, api.served.limits)))


def _add_responses(app: FastAPI, api: OpenAI) -> None:
    responses = Responses(api)

    @app.post("/v1/responses", tags=["generate"])
    async def create_response(request: Request) -> Response:
        """Answer a conversation, and keep it for the next turn."""
        return await _generate(api, request, responses.create)

    @app.get("/v1/responses/{response_id}", tags=["generate"])
    async def get_response(request: Request, response_id: str) -> Response:
        """A response of this API key; with stream=true its events after the one numbered starting_after."""
        asked, caller = _query(request, "stream", "starting_after"), request.scope["caller"]
        stream, after = asked.get("stream", "false"), asked.get("starting_after")
        if stream not in ("true", "false"):
            raise invalid_value("stream", "true or false")
        if after is not None and not _is_number(after):
            raise invalid_value("starting_after", "the sequence number of an event, a whole number")
        if stream == "true":
            return EventStream(responses.follow(response_id, caller, -1 if after is None else int(after)))
        if after is not None:
            raise invalid_value("starting_after", "needs stream=true")
        return _json(responses.retrieve(response_id, caller))

    @app.post("/v1/responses/{response_id}/cancel", tags=["generate"])
    async def cancel_response(request: Request, response_id: str) -> Response:
        """End a response that is being streamed, or made in the background."""
        return _json(responses.cancel(response_id, request.scope["caller"]))

    @app.delete("/v1/responses/{response_id}", tags=["generate"])
    async def delete_response(request: Request, response_id: str) -> Response:
        """Forget a response."""
        return _json(responses.delete(response_id, request.scope["caller"]))


def _add_model(app: FastAPI, api: OpenAI) -> None:
    @app.get("/v1/models", tags=["model"])
    async def models() -> Response:
        """The models that are served: the base model and its adapters."""
        return _json(to_json(ModelList(data=api.cards)))

    @app.get("/v1/models/{name:path}", tags=["model"])
    async def model(name: str) -> Response:
        """One model's card."""
        return _json(to_json(api.card(name)))

    @app.post("/v1/load_lora_adapter", tags=["operation"], dependencies=_ADMIN)
    async def post_load_adapter(request: Request) -> Response:
        """Serve an adapter under a name."""
        return _json(await load_adapter(api, await _body(request, api.served.limits)))

    @app.post("/v1/unload_lora_adapter", tags=["operation"], dependencies=_ADMIN)
    async def post_unload_adapter(request: Request) -> Response:
        """Serve an adapter no more."""
        return _json(await unload_adapter(api, await _body(request, api.served.limits)))

    @app.post("/tokenize", tags=["model"])
    async def post_tokenize(request: Request) -> Response:
        """The token ids of a prompt or a conversation."""
        return _json(await tokenize(api, await _body(request, api.served.limits)))

    @app.post("/detokenize", tags=["model"])
    async def post_detokenize(request: Request) -> Response:
        """The text of token ids."""
        return _json(await detokenize(api, await _body(request, api.served.limits)))


def _add_operation(app: FastAPI, api: OpenAI, health: Health, keys: Keys, rest: Rest | None) -> None:
    @app.head("/health", include_in_schema=False)
    @app.get("/health", tags=["operation"])
    async def get_health() -> Response:
        """200 while the engine makes progress or was put to sleep, 503 when it is gone or stuck."""
        if rest is not None and rest.state != AWAKE:
            return _state(True, rest.state)
        trouble = health.trouble()
        return _state(trouble is None, trouble or "ok")

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", tags=["operation"])
    async def ready() -> Response:
        """200 while new requests are taken; 503 from the beginning of a shutdown or a sleep on, too."""
        trouble = api.admission.shut or health.trouble()
        return _state(trouble is None, trouble or "ok")

    @app.head("/ping", include_in_schema=False)
    @app.get("/ping", tags=["operation"])
    async def ping() -> Response:
        """200 while this process answers."""
        return _state(True, "ok")

    @app.get("/metrics", tags=["operation"])
    async def metrics() -> Response:
        """Prometheus text."""
        own: dict[str, EngineValue] = {
            "goodput_requests_per_second": api.live.goodput(), "requests_limited_total": keys.limited,
        }  # fmt: skip
        return Response(api.metrics.render(await health.gauges() | own), media_type=CONTENT_TYPE)

    @app.get("/v1/ridgeline/requests/{request_id:path}", tags=["operation"])
    async def account(request: Request, request_id: str) -> Response:
        """What became of a request of this API key, by the x-request-id of its answer."""
        return _json(to_json(api.accounts.account(request.scope["caller"], request_id)))

    @app.get("/v1/ridgeline/live", tags=["operation"])
    async def live() -> Response:
        """What the page /live shows: the last minute, the time since the start, and curves."""
        return _json(to_json({"model": api.served.card.id, **api.live.data()}), headers=_FRESH)

    @app.get("/version", tags=["operation"])
    async def get_version() -> Response:
        """The server's version."""
        return _json(to_json({"version": version("ridgeline")}))


def _add_rest(app: FastAPI, api: OpenAI, rest: Rest) -> None:
    @app.post("/sleep", tags=["operation"], dependencies=_ADMIN)
    async def sleep(request: Request) -> Response:
        """End what runs, then give back all memory of the cache and the weights; levels 1 and 2 are alike."""
        level = _query(request, "level").get("level", "1")
        if level not in ("1", "2"):
            raise RequestError(f"level is {level:.20}; use 1 or 2", param="level", code="invalid_value")
        await rest.sleep()
        return _json(to_json({"is_sleeping": True, "given_back": ["cache", "weights"]}))

    @app.post("/wake_up", tags=["operation"], dependencies=_ADMIN)
    async def wake_up(request: Request) -> Response:
        """Load the weights again, and serve."""
        _query(request)
        await rest.wake_up()
        return _json(to_json({"is_sleeping": False}))

    @app.get("/is_sleeping", tags=["operation"])
    async def is_sleeping() -> Response:
        """Whether the engine sleeps."""
        return _json(to_json({"is_sleeping": rest.state == ASLEEP}))

    @app.post("/v1/ridgeline/reload", tags=["operation"], dependencies=_ADMIN)
    async def reload(request: Request) -> Response:
        """Serve the weights of another checkpoint of the same shape, {"path": ...}."""
        limits = api.served.limits
        asked = parse(await _body(request, limits), Reload, limits)
        api.comes_from(await rest.reload(asked.path))
        return _json(to_json({"path": asked.path}))


async def _generate(
    api: OpenAI, request: Request, endpoint: Callable[[bytes, Caller], Coroutine[Any, Any, Reply]]
) -> Response:
    keep = request.headers.get(RESUME)
    if keep not in (None, "keep"):
        raise invalid_value(RESUME, 'the header is "keep", or is left out')
    body, caller = await _body(request, api.served.limits), request.scope["caller"]
    try:
        reply = await until_gone(request.receive, endpoint(body, caller))
    except ClientGone:
        return Response(status_code=499)  # nobody reads this
    if isinstance(reply, bytes):
        return _json(reply)
    if keep is None:
        return EventStream(reply)
    name, events = await api.streams.keep(caller, reply)
    return EventStream(events, name)


def _add_streams(app: FastAPI, streams: Streams) -> None:
    @app.get("/v1/ridgeline/streams/{name}", tags=["operation"])
    async def resume(request: Request, name: str) -> Response:
        """The rest of a kept stream: the events after the first `from`, or after Last-Event-ID."""
        asked = _query(request, "from").get("from", "0")
        place = request.headers.get("last-event-id") or asked
        if not _is_number(place):
            raise invalid_value("from", "how many events are there already, a whole number")
        try:
            rest = streams.resume(request.scope["caller"], name, int(place))
            return EventStream(await until_gone(request.receive, rest), name)
        except ClientGone:
            return Response(status_code=499)  # nobody reads this

    @app.delete("/v1/ridgeline/streams/{name}", tags=["operation"])
    async def end_stream(request: Request, name: str) -> Response:
        """End the request of a kept stream, and forget its events."""
        streams.end(request.scope["caller"], name)
        return _json(to_json({"id": name, "object": "ridgeline.stream", "deleted": True}))


def _query(request: Request, *known: str) -> dict[str, str]:
    """What stands behind the path's question mark. RequestError for what nobody there reads."""
    asked = dict(request.query_params)
    for name in asked.keys() - set(known):
        raise unsupported(name, "is not known here; leave it out")
    return asked


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


async def _body(request: Request, limits: Limits) -> bytes:
    """The body within its limits, before anything looks at it."""
    kind = request.headers.get("content-type", _JSON).partition(";")[0].strip().lower()
    if kind != _JSON:
        raise RequestError(f"Content-Type is {kind:.80}; send {_JSON}", param="body", status=415)
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise RequestError(f"Content-Encoding is {packed:.80}; send the body as it is", param="body",
                           status=415)
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limits.body_bytes:
        raise too_large(limits)
    parts = bytearray()
    try:
        async with asyncio.timeout(limits.body_s):
            async for part in request.stream():
                parts += part
                if len(parts) > limits.body_bytes:
                    raise too_large(limits)
    except TimeoutError:
        raise RequestError(
            f"the body took longer than {limits.body_s:.0f} s", param="body", status=408
        ) from None
    except ClientDisconnect:
        raise RequestError("the client left before its body was complete", status=499) from None
    return bytes(parts)


async def _on_error(request: Request, error: Exception) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        known = {
            404: f"there is no {request.url.path:.200} here",
            405: f"{request.method} is not allowed here",
        }
        headers = dict(error.headers or {})
        error = RequestError(known.get(error.status_code, str(error.detail)), status=error.status_code)
    refusal = as_request_error(error)
    if refusal.status in (429, 503):
        headers["retry-after"] = str(ceil(refusal.retry_after_s or RETRY_S))
    told = body_at(request.url.path, refusal)
    request.scope["error_code"] = told.error.code
    return _json(to_json(told), refusal.status, headers)


def _state(good: bool, text: str) -> Response:
    return _json(to_json({"status": text}), 200 if good else 503)


def _json(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(body, status_code=status, media_type=_JSON, headers=headers)
