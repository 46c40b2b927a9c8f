"""Protects the labs as people use them, in a Chromium without a window: each control, the address, the phone,
both colours, the exports, the keyboard.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ridgeline.planner.lab import Control, Lab
from ridgeline.planner.labs.table import LABS
from tests.web.browser import Look, chromium, look, served
from tests.web.sample import CACHE, CHAIN

pytestmark = pytest.mark.soak
ALL = (CACHE, CHAIN, *LABS)
EACH = pytest.mark.parametrize("lab", ALL, ids=lambda lab: lab.key)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with served(ALL) as address:
        yield address


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with chromium() as found:
        yield found


def _others(control: Control) -> list[str]:
    """Values that a control may be moved to, far from its default first."""
    if control.kind == "toggle":
        return ["false" if control.default else "true"]
    if control.kind == "choice":
        return [choice for choice in control.choices[::-1] if choice != control.default]
    low, high, at = control.low or 0, control.high or 0, float(control.default)
    near = [
        at + (control.step or (high - low) / 8),
        at - (control.step or (high - low) / 8),
        (at + high) / 2,
        at / 2,
        high,
        low,
    ]
    whole = isinstance(control.default, int)
    return [f"{int(value) if whole else value}" for value in near if low <= value <= high and value != at]


def _set(seen: Look, control: Control, value: str) -> None:
    field = f'.field[data-key="{control.key}"]'
    if control.kind == "toggle":
        seen.page.set_checked(f"{field} input", value == "true")
    elif control.kind == "number" and control.key != "step":
        seen.page.fill(f"{field} input[type=number]", value)
    elif control.key == "step":
        seen.page.locator(f"{field} input").evaluate(
            "(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})) }", value
        )
    elif seen.page.locator(f"{field} select").count():
        seen.page.select_option(f"{field} select", value)
    else:
        seen.page.locator(f'{field} label:has(input[value="{value}"])').click()
    seen.settled()


def _content(data: Any) -> Any:
    return {key: data[key] for key in ("values", "numbers", "bars", "charts", "notes")}


@EACH
def test_each_control_changes_what_the_ledger_gives_and_the_page_shows_it(
    page: Any, base: str, lab: Lab
) -> None:
    steps = [control for control in lab.controls if control.key == "step"]
    last = f"?step={steps[0].high}" if steps else ""  # where every control has its say
    with look(page, base) as seen:
        seen.open(f"/labs/{lab.key}{last}")
        plain = seen.api()
        start = plain["state"]
        for control in lab.controls:
            for value in _others(control):
                _set(seen, control, value)
                if seen.page.locator("#results.stale").count():
                    continue  # this value alone is refused beside the others' defaults
                changed = seen.api()
                assert list(seen.values().values()) == [
                    one["text"] + ("\n" + one["also"] if one["also"] else "") for one in changed["numbers"]
                ]
                if _content(changed) != _content(plain):
                    break
            else:
                pytest.fail(f"{control.key} changes nothing")
            _set(seen, control, str(start[control.key]).lower())
            seen.complaints[:] = [text for text in seen.complaints if "status of 400" not in text]


@EACH
def test_an_address_is_a_state(page: Any, base: str, lab: Lab) -> None:
    """Reloaded it shows the same; the back button returns to where one came from."""
    with look(page, base) as seen:
        seen.open(f"/labs/{lab.key}")
        assert "?" not in seen.page.url
        first = seen.values()
        control = next(c for c in lab.controls if c.kind != "toggle")
        _set(seen, control, _others(control)[0])
        assert f"{control.key}=" in seen.page.url
        then, address = seen.values(), seen.page.url
        seen.page.reload()
        seen.settled()
        assert seen.values() == then and seen.page.url == address
        seen.page.go_back()
        seen.settled()
        assert seen.values() == first and "?" not in seen.page.url
        seen.page.go_forward()
        seen.settled()
        assert seen.values() == then


@EACH
@pytest.mark.parametrize("first", [360, 1440])
def test_a_page_fits_its_window_and_takes_the_systems_colours(
    page: Any, base: str, lab: Lab, first: int
) -> None:
    """Opened on a phone or on a wide screen, and then in windows of other widths and in both colours."""
    plots = "[...document.querySelectorAll('.plot')]"
    lightness = "(c) => Math.max(...c.match(/\\d+/g).slice(0, 3).map(Number))"
    with look(page, base, width=first) as seen:
        seen.open(f"/labs/{lab.key}")
        for width in (first, 768, 360, 1440):
            seen.page.set_viewport_size({"width": width, "height": 800})
            seen.page.wait_for_function(
                f"() => {plots}.every((p) => p.querySelector('svg').clientWidth === p.clientWidth)"
            )
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
        for dark in (True, False):
            seen.page.emulate_media(color_scheme="dark" if dark else "light")
            ground = seen.page.evaluate(f"({lightness})(getComputedStyle(document.body).backgroundColor)")
            assert ground < 60 if dark else ground > 200
            lit = "< 60" if dark else "> 200"
            seen.page.wait_for_function(
                f"() => {plots}.every((p) => parseInt(p.layout.paper_bgcolor.slice(1, 3), 16) {lit})"
            )


@EACH
def test_the_steps_come_before_the_controls_and_these_before_the_results(
    page: Any, base: str, lab: Lab
) -> None:
    """On a phone too, where the steps stay in sight."""
    with look(page, base, width=360) as seen:
        seen.open(f"/labs/{lab.key}")
        tops = seen.page.evaluate(
            "[...document.querySelector('.lab').children].filter((e) => e.offsetHeight)"
            ".map((e) => [e.id, e.offsetTop])"
        )
        assert [name for name, _ in sorted(tops, key=lambda one: one[1])] == [name for name, _ in tops]
        assert [name for name, _ in tops if name != "controls"][-1] == "results"
        if seen.page.locator("#stepper").count():
            seen.page.evaluate("scrollTo(0, document.body.scrollHeight)")
            assert seen.page.locator("#stepper").bounding_box()["y"] >= 0


def test_the_theme_can_be_chosen_and_is_kept(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        for name in ("light", "dark"):
            seen.page.click("#theme")
            assert seen.page.text_content("#theme") == f"Theme: {name}"
        seen.open(f"/labs/{CHAIN.key}")
        assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert seen.page.evaluate("document.querySelector('.plot').layout.paper_bgcolor") == "#15191c"


@EACH
def test_charts_leave_as_png_and_csv_and_show_their_data(
    page: Any, base: str, lab: Lab, tmp_path: Path
) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{lab.key}")
        charts = seen.api()["charts"]
        figures = seen.page.locator("figure.chart")
        assert figures.count() == len(charts)
        for place, chart in enumerate(charts):
            figure, num_rows = figures.nth(place), sum(len(series["x"]) for series in chart["series"])
            for kind in ("PNG", "CSV"):
                with seen.page.expect_download() as caught:
                    figure.get_by_role("button", name=kind).click()
                caught.value.save_as(tmp_path / kind)
                assert caught.value.suggested_filename == f"{lab.key}-{chart['key']}.{kind.lower()}"
            assert (tmp_path / "PNG").read_bytes().startswith(b"\x89PNG") and (
                tmp_path / "PNG"
            ).stat().st_size > 5000
            assert len((tmp_path / "CSV").read_text().splitlines()) == 1 + num_rows
            figure.locator("summary").click()
            assert figure.locator("tbody tr").count() == num_rows
            figure.locator("summary").click()


def test_a_mistake_is_shown_beside_its_control_and_goes_with_it(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        for key, wrong in (("context", "999999999"), ("context", ""), ("users", "14")):
            seen.page.click("#reset")
            seen.page.fill(f"#c-{key}", wrong)
            seen.settled()
            assert seen.page.is_visible(f"#error-{key}") and key in (
                seen.page.text_content(f"#error-{key}") or ""
            )
            assert seen.page.get_attribute(f"#c-{key}", "aria-invalid") == "true" and seen.values()
        seen.page.fill("#c-users", "9")
        seen.page.fill("#c-context", "4096")
        seen.settled()
        assert (
            not seen.page.locator(".error:visible").count()
            and not seen.page.locator("[aria-invalid]").count()
        )
        seen.complaints[:] = [text for text in seen.complaints if "status of 400" not in text]


def test_an_answer_that_comes_too_late_is_dropped(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        held: list[Any] = []
        seen.page.route("**/api/*users=20*", lambda route: held.append(route))
        seen.page.fill("#c-users", "20")
        seen.page.wait_for_timeout(300)
        seen.page.fill("#c-users", "9")
        seen.settled()
        assert held and seen.values()["kv_total_bytes: KV total"].startswith("9.66 GB")
        held[0].fulfill(status=200, body=json.dumps({"error": "too late"}))
        seen.page.unroute_all()
        seen.page.wait_for_timeout(200)
        assert seen.values()["kv_total_bytes: KV total"].startswith("9.66 GB")
        assert not seen.page.locator("#results.stale").count()


def test_a_run_of_movements_asks_seldom_and_makes_one_entry(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        before = len(seen.asked)
        seen.page.locator('[data-key="users"] input[type=range]').evaluate(
            "(e) => { for (let i = 0; i < 12; i++) {"
            "e.stepUp(); e.dispatchEvent(new Event('input', {bubbles: true})); } }"
        )
        seen.settled()
        assert seen.page.input_value("#c-users") == "20" and "users=20" in seen.page.url
        assert [address for address in seen.asked[before:] if "/api/" in address] == [
            f"{base}/labs/api/{CACHE.key}?users=20"
        ]
        assert "KV total" in (seen.page.text_content("#said") or "")
        seen.page.go_back()
        seen.settled()
        assert seen.page.input_value("#c-users") == "8" and "?" not in seen.page.url


def test_the_slider_and_its_field_go_together(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        slider = seen.page.locator('[data-key="context"] input[type=range]')
        seen.page.fill("#c-context", "128")
        assert slider.input_value() == "0" and slider.get_attribute("aria-valuetext") == "128 tokens"
        slider.press("End")
        seen.settled()
        assert seen.page.input_value("#c-context") == "131072" and "context=131072" in seen.page.url


def test_steps_go_by_button_and_by_arrow(page: Any, base: str) -> None:
    with look(page, base) as seen:
        seen.open(f"/labs/{CHAIN.key}")
        assert seen.page.is_disabled("#back")
        seen.page.click("#next")
        seen.page.keyboard.press("ArrowRight")
        seen.settled()
        assert seen.page.text_content("#place") == "Step 3 of 8" and "step=3" in seen.page.url
        assert seen.values()["num_passes: Passes so far"] == "3"
        seen.page.keyboard.press("ArrowLeft")
        for _ in range(9):
            seen.page.click("#next", force=True)
        seen.settled()
        assert seen.page.text_content("#place") == "Step 8 of 8" and seen.page.is_disabled("#next")


def test_everything_is_reached_by_the_keyboard(page: Any, base: str) -> None:
    """Tab alone visits every control, export and table of a page, and each shows that it has the focus."""
    with look(page, base) as seen:
        seen.open(f"/labs/{CACHE.key}")
        visited = set()
        for _ in range(60):
            seen.page.keyboard.press("Tab")
            visited.add(
                seen.page.evaluate(
                    "(({name, id, textContent}) => name || id || textContent.trim())(document.activeElement)"
                )
            )
            if seen.page.evaluate("document.activeElement === document.body"):
                break
        assert {control.key for control in CACHE.controls} | {
            "theme",
            "jump",
            "reset",
            "copy",
            "json",
            "PNG",
            "CSV",
            "Data table",
        } <= visited


def test_the_index_leads_to_a_page_on_a_phone(page: Any, base: str) -> None:
    with look(page, base, width=360) as seen:
        seen.page.goto(base)
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= 360
        seen.page.click(f'a[href$="{CACHE.key}"]')
        seen.settled()
        assert seen.page.url.endswith(CACHE.key) and seen.values()
