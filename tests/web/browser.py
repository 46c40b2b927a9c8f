"""A Chromium without a window that looks at the labs, and notes what it complained of and whom it asked."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ridgeline.base.sockets import bound, url
from ridgeline.planner.lab import Lab
from ridgeline.web.app import labs_app

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def served(labs: Sequence[Lab]) -> AbstractContextManager[str]:
    """The labs on a free port, by their address."""
    return app_served(labs_app(lambda: {"all": labs}))


@contextmanager
def app_served(app: ASGIApp) -> Iterator[str]:
    """An app on a free port, by its address."""
    with bound("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield url("127.0.0.1", listener)
        server.should_exit = True
        thread.join(10)


@contextmanager
def chromium() -> Iterator[Any]:
    """A page of the system's Chromium, driven by playwright (the extra `browser`). One page for many looks:
    a fresh one would compile the plot library each time."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, _NAMES)), None)
    assert found, "these tests need a Chromium of the system: apt-get install chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser.new_context(accept_downloads=True).new_page()
        browser.close()


@dataclass(slots=True, kw_only=True)
class Look:
    """One page. complaints: console errors and exceptions. asked: addresses of every request."""

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)
        self.settled()
        self.page.wait_for_function("() => [...document.querySelectorAll('.plot')].every((p) => p.data)")

    def settled(self) -> None:
        """The newest question has its answer, and the page shows it: of the state in its address."""
        self.page.wait_for_function(
            "() => document.querySelector('.lab')?.dataset.shown === location.search"
            " && document.getElementById('results')?.ariaBusy === 'false'"
        )

    def values(self) -> dict[str, str]:
        """The table of numbers: value by key and label."""
        rows = self.page.eval_on_selector_all(
            "#numbers tbody tr",
            "rows => rows.map(r => [r.dataset.key + ': ' + r.cells[0].innerText, r.cells[1].innerText])",
        )
        return dict(rows)

    def api(self) -> Any:
        """What the API gives for the state of the page."""
        return self.page.evaluate("async () => (await fetch(document.getElementById('json').href)).json()")


@contextmanager
def look(page: Any, base: str, *, width: int = 1280, dark: bool = False) -> Iterator[Look]:
    """A look that must end without a complaint and without having asked another host."""
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme="dark" if dark else "light")
    seen = Look(page=page, base=base)
    notes: dict[str, Callable[[Any], None]] = {
        "console": lambda said: seen.complaints.append(said.text) if said.type == "error" else None,
        "pageerror": lambda error: seen.complaints.append(str(error)),
        "request": lambda request: seen.asked.append(request.url),
    }
    for event, note in notes.items():
        page.on(event, note)
    yield seen
    page.evaluate("localStorage.clear()")
    for event, note in notes.items():
        page.remove_listener(event, note)
    assert not seen.complaints, seen.complaints
    outside = [address for address in seen.asked if not address.startswith((base + "/", "data:", "blob:"))]
    assert not outside, outside
