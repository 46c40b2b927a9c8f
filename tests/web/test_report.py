"""Protects the report of a simulation: one file that needs no network and holds the runs' numbers."""

import json
import re
from html import unescape
from pathlib import Path

import pytest

from ridgeline.schedule.targets import Targets
from ridgeline.sim.cluster import Topology, simulate_cluster
from ridgeline.sim.fragments import MemoryUse
from ridgeline.sim.node import Serving
from ridgeline.sim.study import Change, Loads, Study, watch
from ridgeline.web.report import report_html, write_report
from tests.sim.helpers_sim import machine, workload
from tests.web.browser import chromium

TARGETS = Targets(ttft_s=3.0, tpot_s=1.5)
LOAD = workload(*[(0.5 * i, 5 + 11 * i % 40, 1 + 5 * i % 9) for i in range(12)])


def study() -> Study:
    one, serving = Topology(engines=(machine(num_rows=4),)), Serving(targets=TARGETS)
    runs = [watch("<first>", one, serving, LOAD),
            watch("two", Topology(engines=one.engines * 2), serving, LOAD)]
    outcomes = [simulate_cluster(one, serving, LOAD)] * 2
    return Study(
        title="A & B", about=["twelve requests"], targets=TARGETS, runs=runs, base=runs[0],
        loads=[Loads(name="<first>", rates=[1.0, 2.0], outcomes=outcomes)],
        changes=[Change(knob="--replicas", before="1", after="2", outcome=runs[1].outcome)],
        memory=[MemoryUse(name="pages", used=0.5, internal=0.1, external=0.0, free=0.4, mean_residents=3.5,
                          most_residents=4)])


@pytest.fixture(scope="module")
def page() -> str:
    return report_html(study())


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return json.loads(found[1])


def test_nothing_is_fetched(page: str) -> None:
    """Nor does its script hold a module's import, which no single file could follow."""
    plain = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.findall(r'\b(?:src|href)="', plain) and "@import" not in plain and "url(" not in plain
    script = re.findall(r'<script type="module">(.*?)</script>', page, re.S)[-1]
    assert not re.search(r"^(import|export) ", script, re.M) and "showCharts" in script
    assert page.count("<script") == page.count("</script>") == 4


def test_the_tables_say_what_the_runs_gave(page: str) -> None:
    made = study()
    cells = [unescape(cell) for cell in re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", page)]
    assert "<first>" in cells and "A &amp; B" in page
    assert f"{made.runs[0].outcome.goodput:.3g}/s" in cells
    moved = made.runs[1].outcome.goodput / made.runs[0].outcome.goodput - 1
    assert cells[cells.index("--replicas"):][:4] == ["--replicas", "1", "2", f"{moved:+.1%}"]


def test_the_pictures_hold_the_runs(page: str) -> None:
    data = data_of(page)
    first, two = data["timelines"]
    assert len(first["lanes"]) == 4 and len(two["lanes"]) > 4 and first["name"] == "<first>"
    kinds = {kind for lane in first["lanes"] for kind, *_ in lane["segments"]}
    assert {"prefill", "decode"} <= kinds <= {"prefill", "decode", "idle"}
    charts = {chart["key"]: chart for chart in data["charts"]}
    assert set(charts) == {"loads", "against", "cdf-ttft", "cdf-tpot", "cdf-itl", "cdf-e2e", "occupancy",
                           "fragments", "residents"}
    ttft = charts["cdf-ttft"]["series"][0]
    assert ttft["x"] == sorted(ttft["x"]) and (ttft["y"][0], ttft["y"][-1]) == (0.0, 1.0)
    assert charts["cdf-ttft"]["marks"][0]["x"] == 3.0 and not charts["cdf-itl"]["marks"]
    assert [one["name"] for one in charts["loads"]["series"]] == ["<first>: served", "<first>: in time"]


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_draws_without_a_network_and_on_a_phone(tmp_path: Path, scheme: str) -> None:
    write_report(study(), tmp_path / "report.html")
    with chromium() as page:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": 400, "height": 800})
        told: list[str] = []
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: told.append(request.url) if request.url[:5] == "http:" else None)
        page.goto((tmp_path / "report.html").as_uri())
        page.wait_for_selector("#timelines .plot .main-svg")
        assert page.locator("#charts .plot .main-svg").count() >= 9 and not told
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
