"""The labs over HTTP: pages for people, JSON for programs, and the files that the pages need.

Knows no lab by name. A page's script asks /labs/api; nothing is fetched from another host.
"""

import difflib
import gzip
import importlib.util
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from ridgeline.base.errors import ConfigError
from ridgeline.planner.lab import Lab, Value
from ridgeline.web.show import lab_data, result_data

Groups = Mapping[str, Sequence[Lab]]  # what the index shows, by its headings
_HERE = Path(__file__).parent
_HEADERS = {
    # The plot library writes style attributes; scripts come from this host's files alone.
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def labs_app(load: Callable[[], Groups]) -> Starlette:
    """The labs as an app of their own; / leads to them."""
    return Starlette(routes=[Route("/", lambda request: RedirectResponse("labs")), *labs_routes(load)])


def labs_routes(load: Callable[[], Groups]) -> list[BaseRoute]:
    """The routes under /labs, for any app. load: called at the first page, for what it imports takes time.
    Handlers run in threads: a slow lab holds up no event loop."""
    site = _Site(load)
    return [
        Route("/labs", site.index),
        Route("/labs/", lambda request: RedirectResponse("../labs")),
        Route("/labs/api", site.list),
        Route("/labs/api/{key}", site.result),
        Route("/labs/static/{name}", site.file),
        Route("/labs/{key}", site.page),
    ]


def live_routes() -> list[BaseRoute]:
    """The live page of a server that answers /v1/ridgeline/live; it uses files of the labs beside it."""
    return [Route("/live", _Site(dict).live)]


class _Site:
    """What the routes share: the labs, the templates, and the files by name. Labs compute one at a time, so
    that a crowd of visitors takes one thread from whatever else the process does."""

    def __init__(self, load: Callable[[], Groups]) -> None:
        self._load, self._turn = load, threading.Lock()
        self._files = {path.name: path for path in (_HERE / "static").iterdir()}
        self._plotly = f"plotly-{version('plotly')}.min.js"
        self._files[self._plotly] = plot_library()
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "pages"), autoescape=True, undefined=StrictUndefined,
            trim_blocks=True, lstrip_blocks=True,
        )  # fmt: skip

    @cached_property
    def _groups(self) -> Groups:
        return self._load()

    @cached_property
    def _labs(self) -> Mapping[str, Lab]:
        return {lab.key: lab for labs in self._groups.values() for lab in labs}

    def index(self, request: Request) -> Response:
        """All labs, by title."""
        return self._html(request, "index.html")

    def page(self, request: Request) -> Response:
        """One lab with its controls as the query says; what the query has wrong, the script will show."""
        lab = self._labs.get(request.path_params["key"])
        if lab is None:
            return self._html(request, "missing.html", 404, message=self._unknown(request))
        state: Mapping[str, Value] = lab.state({})
        for key, text in request.query_params.items():
            try:
                state = {**state, key: lab.state({key: text})[key]}
            except ConfigError:
                continue
        order = list(self._labs)
        place = order.index(lab.key)
        beside = [self._labs[key] for key in order[max(place - 1, 0) : place] + order[place + 1 : place + 2]]
        return self._html(
            request, "lab.html", lab=lab_data(lab, state), before=beside[0] if place else None,
            after=beside[-1] if place + 1 < len(order) else None, plotly=self._plotly,
        )  # fmt: skip

    def live(self, request: Request) -> Response:
        """The server's dashboard; its script asks for the numbers, with the key that a person gives it."""
        api = request.scope.get("root_path", "").rstrip("/") + "/v1/ridgeline/live"
        return self._html(request, "live.html", plotly=self._plotly, api=api)

    def list(self, request: Request) -> Response:
        """Every lab with its controls and their defaults."""
        return _json({"labs": [lab_data(lab, lab.state({})) for lab in self._labs.values()]})

    def result(self, request: Request) -> Response:
        """What a lab gives for the query's state, or 400 with the control at fault under error.param."""
        lab = self._labs.get(request.path_params["key"])
        if lab is None:
            return _refusal(self._unknown(request), None, 404)
        given: dict[str, str] = {}
        for key, text in request.query_params.multi_items():
            try:
                if key in given:
                    raise ConfigError(f"{key} is given twice: {given[key]!r} and {text!r}")
                lab.state({key: text})
            except ConfigError as error:
                return _refusal(str(error), key)
            given[key] = text
        state = lab.state(given)
        try:
            with self._turn:
                result = lab.compute(state)
        except ConfigError as error:
            named = [word for word in re.findall(r"\w+", str(error)) if word in state]
            return _refusal(str(error), named[0] if named else None)
        return _json(result_data(lab, state, result))

    def file(self, request: Request) -> Response:
        """A file of the pages. For good: the icon, and the library, whose name has its version."""
        name = request.path_params["name"]
        if name not in self._files:
            return _refusal(f"there is no file {name:.80} here", None, 404)
        keep = "public, max-age=31536000, immutable" if name in (self._plotly, "ridge.svg") else "no-cache"
        headers = {**_HEADERS, "cache-control": keep, "vary": "accept-encoding"}
        if name == self._plotly and "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(self._packed_library, headers=headers, media_type="text/javascript")
        return FileResponse(self._files[name], headers=headers)

    @cached_property
    def _packed_library(self) -> bytes:
        """A third of its 4.8 MB, for a phone on the same network."""
        return gzip.compress(self._files[self._plotly].read_bytes(), 6)

    def _unknown(self, request: Request) -> str:
        key = request.path_params["key"]
        near = difflib.get_close_matches(key, self._labs, n=3, cutoff=0.4)
        return f"there is no lab {key:.80}" + (f"; near it: {', '.join(near)}" if near else "")

    def _html(self, request: Request, name: str, status: int = 200, **given: Any) -> Response:
        root = request.scope.get("root_path", "").rstrip("/") + "/labs"
        text = self._templates.get_template(name).render(root=root, groups=self._groups, **given)
        headers = {**_HEADERS, "cache-control": "no-cache"}
        return Response(text, status, media_type="text/html", headers=headers)


def plot_library() -> Path:
    """plotly.js out of the installed Python package, which is not imported."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "package_data" / "plotly.min.js"


def _json(data: Any, status: int = 200) -> Response:
    headers = {**_HEADERS, "cache-control": "no-store"}
    return Response(msgspec.json.encode(data), status, media_type="application/json", headers=headers)


def _refusal(message: str, param: str | None, status: int = 400) -> Response:
    code = {400: "invalid_value", 404: "not_found"}[status]
    detail = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return _json({"error": detail}, status)
