"""Protects the live page in a Chromium without a window: the numbers of the server behind its key, a phone,
both colours, the keyboard, a server that goes away. Part of `make soak`."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest

from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.account.live import Live
from ridgeline.account.metrics import Metrics
from ridgeline.base.clock import VirtualClock
from ridgeline.schedule.targets import Targets
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from ridgeline.web.app import labs_routes, live_routes
from tests.server.fake import fake_api, keyring
from tests.server.test_live import _stats
from tests.web.browser import Look, app_served, chromium, look
from tests.web.sample import GROUPS

pytestmark = pytest.mark.soak
KEY = "a key"


def _busy() -> Live:
    """Five minutes of an engine whose queue grows and shrinks, with a choice that ends each second."""
    clock = VirtualClock()
    live = Live(clock, Targets(ttft_s=0.5, tpot_s=0.05))
    for second in range(300):
        clock.advance_to(float(second))
        wave = 1 + math.sin(second / 20)
        live.sample(_stats(float(second), num_waiting=int(6 * wave), num_used_pages=int(300 + 100 * wave),
                           num_free_pages=500 - int(100 * wave), num_cached_pages=120,
                           waiting={"rank": int(5 * wave), "rows": 1, "pages": 0, "step": 0},
                           waited_s={"rank": 3.0 * second, "rows": 0.9 * second, "pages": 0.0,
                                     "step": 0.01 * second},
                           little_law={"num_in_system": 4.2, "difference": 2e-4}))
        live.ended(RequestClock(Metrics("m"), 0.0), ChoiceTimes(
            prompt=0, choice=0, finish="stop", num_output=20, first_s=0.0, last_s=0.6 + 0.4 * wave,
            ttft_s=0.2 * wave + 0.1, parts_s={"tokenise": 0.002, "queue": 0.2 * wave, "schedule": 0.008,
                                              "prefill": 0.085, "deliver": 0.005}))
    return live


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    api, engine = fake_api()
    api.live = _busy()
    pages = [*labs_routes(lambda: GROUPS), *live_routes()]
    app = build_app(api, Health(engine, VirtualClock(), 30.0), keys=keyring(KEY), pages=pages)
    with app_served(app) as url:
        yield url


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with chromium() as found:
        yield found


def _open(seen: Look) -> None:
    """The page with the key given, when its first numbers and curves are there."""
    seen.page.goto(seen.base + "/live")
    seen.page.wait_for_function(
        "() => !document.getElementById('key').hidden || +document.querySelector('.live').dataset.shown")
    if seen.page.is_visible("#key"):
        seen.page.fill("#secret", KEY)
        seen.page.keyboard.press("Enter")
    _next(seen)
    seen.page.wait_for_function(
        "() => document.querySelector('.plot')"
        " && [...document.querySelectorAll('.plot')].every((p) => p.data)")
    seen.complaints[:] = [text for text in seen.complaints if "status of 401" not in text]


def _next(seen: Look) -> None:
    """The next numbers are shown."""
    shown = seen.page.evaluate("+document.querySelector('.live').dataset.shown")
    seen.page.wait_for_function(f"() => +document.querySelector('.live').dataset.shown > {shown}")


def _heads(seen: Look) -> dict[str, str]:
    return dict(seen.page.eval_on_selector_all(
        "#heads li", "all => all.map(li => [li.children[0].innerText, li.children[1].innerText])"))


def test_the_numbers_come_with_the_key_alone(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.page.goto(base + "/live")
        seen.page.wait_for_selector("#key:not([hidden])")
        assert "API key" in seen.page.text_content("#failure") and not _heads(seen)
        seen.page.fill("#secret", "wrong")
        seen.page.click("#key button")
        seen.page.wait_for_function("() => document.getElementById('failure').textContent.includes('valid')")
        _open(seen)
        assert not seen.page.is_visible("#key") and not seen.page.is_visible("#failure")
        heads = _heads(seen)
        assert heads["Goodput"] == "0.167 requests/s" and heads["Running"] == "2"
        assert heads["Step, mean"] == "100 ms" and heads["Output"] == "20 tok/s"
        legend = seen.page.eval_on_selector_all("#bars figure", "all => all.map(one => one.innerText)")
        assert [word for word in legend[0].split() if word.endswith("%")] == ["25%", "50%", "25%"]
        assert "used" in legend[1] and "cached" in legend[1] and "prefill" in legend[2]
        rows = seen.page.eval_on_selector_all("#numbers tbody tr", "rows => rows.map(r => r.innerText)")
        names = [row.split("\t")[0] for row in rows]
        assert names == ["those before them", "a free row", "the step in flight"]
        assert "--max-num-seqs" in rows[1] and seen.page.locator("figure.chart").count() == 7
        seen.complaints[:] = [text for text in seen.complaints if "status of 401" not in text]


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_and_a_wide_screen_in_both_colours(page: Any, base: str, dark: bool) -> None:
    with look(page, base, width=360, dark=dark) as seen:
        _open(seen)
        for width in (360, 768, 1440):
            seen.page.set_viewport_size({"width": width, "height": 800})
            seen.page.wait_for_timeout(100)
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        lit = "< 60" if dark else "> 200"
        seen.page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every("
            f"(p) => parseInt(p.layout.paper_bgcolor.slice(1, 3), 16) {lit})")


def test_pause_and_everything_else_by_the_keyboard(page: Any, base: str) -> None:
    with look(page, base) as seen:
        _open(seen)
        visited = set()
        for _ in range(60):
            seen.page.keyboard.press("Tab")
            name = seen.page.evaluate(
                "(({id, textContent}) => id || textContent.trim())(document.activeElement)")
            visited.add(name)
            if name == "pause":
                seen.page.keyboard.press("Enter")
            if seen.page.evaluate("document.activeElement === document.body"):
                break
        assert {"theme", "pause", "PNG", "CSV", "Data table"} <= visited
        assert seen.page.get_attribute("#pause", "aria-pressed") == "true"
        shown = seen.page.evaluate("+document.querySelector('.live').dataset.shown")
        seen.page.wait_for_timeout(2500)
        assert seen.page.evaluate("+document.querySelector('.live').dataset.shown") == shown
        assert "Paused" in seen.page.text_content("#said")
        seen.page.click("#pause")
        _next(seen)
        seen.page.locator("figure.chart summary").first.click()
        _next(seen)
        assert seen.page.locator("figure.chart tbody tr").first.is_visible(), "it stays open"


def test_a_server_that_goes_away_and_comes_back_is_said(page: Any, base: str) -> None:
    with look(page, base) as seen:
        _open(seen)
        seen.page.route("**/v1/ridgeline/live", lambda route: route.abort())
        seen.page.wait_for_selector("#failure:not([hidden])")
        assert "No answer" in seen.page.text_content("#failure") and _heads(seen)
        seen.page.unroute_all()
        _next(seen)
        seen.page.wait_for_selector("#failure", state="hidden")
        assert "live again" in seen.page.text_content("#said")
        seen.complaints[:] = [text for text in seen.complaints if "ERR_FAILED" not in text]


def test_a_server_that_has_served_nothing_yet(page: Any, base: str) -> None:
    """No number is known, and none is made up."""
    bare = {"model": "m", **Live(VirtualClock()).data()}
    with look(page, base) as seen:
        seen.page.route("**/v1/ridgeline/live", lambda route: route.fulfill(body=json.dumps(bare)))
        seen.page.goto(base + "/live")
        _next(seen)
        assert _heads(seen)["Time to first token, median"] == "–"
        assert "Nobody waited" in seen.page.text_content("#numbers")
        seen.page.unroute_all()
