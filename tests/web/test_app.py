"""Protects the labs over HTTP: every lab answers, mistakes name their control, no page reaches elsewhere."""

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

import ridgeline.web
from ridgeline.planner.lab import Lab
from ridgeline.planner.labs import load_labs
from ridgeline.planner.labs.table import LABS as OURS
from ridgeline.web.app import labs_app, labs_routes
from tests.web.sample import CACHE, CHAIN, GROUPS

STATIC = Path(ridgeline.web.__file__).parent / "static"
LABS = (CACHE, CHAIN)


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(labs_app(lambda: GROUPS))


@pytest.fixture(scope="module")
def ours() -> TestClient:
    return TestClient(labs_app(load_labs))


def strict(body: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    return json.loads(body, parse_constant=refuse)


def asked(client: TestClient, lab: Lab, query: Mapping[str, Any] | None = None) -> Any:
    answer = client.get(f"/labs/api/{lab.key}", params=dict(query or {}))
    assert answer.status_code == 200, answer.text
    return strict(answer.text)


# ---- JSON


@pytest.mark.parametrize("lab", OURS, ids=lambda lab: lab.key)
def test_every_lab_answers(ours: TestClient, lab: Lab) -> None:
    """Its page, and its result at the defaults: every number has a key, a label and a text."""
    page = ours.get(f"/labs/{lab.key}")
    assert page.status_code == 200 and lab.title in html.unescape(page.text)
    assert all(f'data-key="{control.key}"' in page.text for control in lab.controls)
    got = asked(ours, lab)
    assert got["values"] and got["numbers"] and set(got["state"]) == {control.key for control in lab.controls}
    assert all(one["key"] and one["label"] and one["text"] for one in got["numbers"])
    assert got["num_steps"] == 0 or any(control.key == "step" for control in lab.controls)
    for chart in got["charts"]:
        assert all(
            len(one["x"]) == len(one["y"]) and len(one["upper"]) in (0, len(one["y"]))
            for one in chart["series"]
        )


def test_a_result_has_every_number_in_its_unit(client: TestClient) -> None:
    got = asked(client, CACHE)
    assert got["values"]["kv_bytes_per_sequence"] == 2**30 and got["values"]["fits"] is True
    assert got["readings"] == {"nominal": {"max_users": 59}}
    first = got["numbers"][0]
    assert (first["text"], first["also"], first["unit"]) == ("1.07 GB", "1.00 GiB", "bytes")
    assert first["formula"] and first["inputs"]
    assert got["charts"][0]["log_x"] is True and got["charts"][0]["series"][2]["kind"] == "band"
    assert got["bars"][0]["fits"] is True and got["bars"][0]["rest"]["label"] == "free"
    assert got["state"] == {"gpu": "h100", "context": 8192, "users": 8, "weights": "bf16", "fp8": False}


@pytest.mark.parametrize(
    "query", [{"gpu": "h200"}, {"context": 16384}, {"users": 9}, {"weights": "int4"}, {"fp8": 1}]
)
def test_each_control_changes_what_is_computed(client: TestClient, query: dict[str, Any]) -> None:
    plain, changed = asked(client, CACHE), asked(client, CACHE, query)
    assert plain["state"] != changed["state"]
    assert (plain["values"], plain["bars"]) != (changed["values"], changed["bars"])


def test_a_bar_that_overflows_says_by_how_much(client: TestClient) -> None:
    (bar,) = asked(client, CACHE, {"users": 64})["bars"]
    assert not bar["fits"] and bar["rest"]["label"] == "does not fit"
    assert sum(part["share"] for part in bar["parts"]) == pytest.approx(1) and bar["total"]["share"] < 1


def test_the_list_names_every_control(client: TestClient) -> None:
    listed = strict(client.get("/labs/api").text)["labs"]
    assert [lab["key"] for lab in listed] == [lab.key for lab in LABS]
    assert [c["key"] for c in listed[0]["controls"]] == [c.key for c in CACHE.controls]


@pytest.mark.parametrize(("query", "param", "says"), [
    ("contxt=1", "contxt", "no control"),
    ("context=1e9", "context", "from 128 to 131072"),
    ("context=", "context", "takes a number"),
    ("context=nan", "context", "takes a number"),
    ("context=inf", "context", "takes a number"),
    ("context=8k", "context", "takes a number"),
    ("gpu=h1000", "gpu", "one of h100"),
    ("fp8=maybe", "fp8", "true or false"),
    ("users=1&users=2", "users", "given twice"),
    ("users=14", "users", "multiple of 7"),
    ("weights=bf16%00", "weights", "one of"),
    ("gpu=" + "x" * 5000, "gpu", "one of h100"),
])  # fmt: skip
def test_a_mistake_is_400_and_names_its_control(
    client: TestClient, query: str, param: str, says: str
) -> None:
    answer = client.get(f"/labs/api/{CACHE.key}?{query}")
    error = strict(answer.text)["error"]
    assert answer.status_code == 400 and error["param"] == param and says in error["message"]
    assert error["type"] == "invalid_request_error" and error["code"] == "invalid_value"


def test_an_unknown_lab_is_404_with_the_nearest(client: TestClient) -> None:
    answer = client.get("/labs/api/sample-cash")
    assert answer.status_code == 404 and "sample-cache" in strict(answer.text)["error"]["message"]
    page = client.get("/labs/<b>cash")
    assert page.status_code == 404 and "<b>" not in page.text and "&lt;b&gt;" in page.text


@pytest.mark.parametrize("path", ["/labs", f"/labs/{CACHE.key}", f"/labs/api/{CACHE.key}"])
def test_nothing_is_changed_by_asking(client: TestClient, path: str) -> None:
    assert client.head(path).status_code == 200
    assert client.post(path).status_code == client.delete(path).status_code == 405


# ---- pages


def test_the_index_leads_to_every_lab(client: TestClient) -> None:
    page = client.get("/labs")
    assert page.headers["content-type"].startswith("text/html")
    assert all(f'href="/labs/{lab.key}"' in page.text and lab.lead in page.text for lab in LABS)
    assert str(client.get("/").url).endswith("/labs") and str(client.get("/labs/").url).endswith("/labs")


def test_a_page_stands_where_its_address_says(client: TestClient) -> None:
    page = client.get(f"/labs/{CACHE.key}?context=4096&gpu=l40s&fp8=true&users=wrong").text
    assert re.search(r'id="c-context" name="context" value="4096"', page)
    assert "<option selected>l40s</option>" in page
    assert re.search(r'name="fp8" role="switch"[^>]* checked', page)
    assert re.search(r'name="users" value="8"', page) and "wrong" not in page


def test_every_control_has_a_name_for_those_who_listen(client: TestClient) -> None:
    page = client.get(f"/labs/{CACHE.key}").text
    for inputs in re.findall(r"<(?:input|select)[^>]*>", page):
        labelled = re.search(r'id="([\w-]+)"', inputs)
        assert (
            "aria-label" in inputs
            or "checkbox" in inputs
            or "radio" in inputs
            or (labelled and (f'for="{labelled[1]}"' in page or labelled[1] == "jump"))
        ), inputs
    assert 'aria-live="polite"' in page and "<noscript>" in page and 'lang="en"' in page
    assert page.count('role="switch"') == 1 and 'id="stepper"' not in page
    assert 'id="stepper"' in client.get(f"/labs/{CHAIN.key}").text


def test_no_page_and_no_file_of_ours_names_another_host(client: TestClient, ours: TestClient) -> None:
    pages = [client.get(path).text for path in ("/labs", *(f"/labs/{lab.key}" for lab in LABS))]
    pages += [ours.get("/labs").text]
    files = [path.read_text(encoding="utf-8") for path in STATIC.iterdir()]
    for text in (*pages, *files):
        outside = re.findall(r"https?:|(?<![:\w/])//\w+\.", text.replace("http://www.w3.org/2000/svg", ""))
        assert not outside, outside
    for page in pages:
        links = re.findall(r'(?:href|src)="([^"]*)"', page)
        assert links and all(link.startswith(("/labs", "#")) for link in links), links
        assert "<script>" not in page and " style=" not in page


def test_pages_forbid_what_they_do_not_need(client: TestClient) -> None:
    for path in ("/labs", f"/labs/{CACHE.key}", f"/labs/api/{CACHE.key}", "/labs/static/labs.js"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


# ---- files


def test_every_file_that_a_page_names_is_served(client: TestClient) -> None:
    page = client.get(f"/labs/{CACHE.key}").text
    named = set(re.findall(r'"(/labs/static/[^"]+)"', page)) | {
        f"/labs/static/{path.name}" for path in STATIC.iterdir()
    }
    kinds = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200 and answer.content, path
        assert answer.headers["content-type"].startswith(kinds[path[path.rindex(".") :]]), path
    (plotly,) = (path for path in named if "plotly" in path)
    packed, plain = client.get(plotly), client.get(plotly, headers={"accept-encoding": "identity"})
    assert "immutable" in packed.headers["cache-control"] and packed.content == plain.content
    assert packed.headers["content-encoding"] == "gzip" and "content-encoding" not in plain.headers
    assert int(packed.headers["content-length"]) < len(plain.content) / 2


@pytest.mark.parametrize("name", [
    "../app.py", "..%2fapp.py", "%2e%2e/app.py", "%2e%2e%2fapp.py", "....//app.py", "/etc/passwd",
    "%2fetc%2fpasswd", "..\\app.py", "labs.js/../../app.py", "labs.js%00", "none.js", "", ".",
])  # fmt: skip
def test_no_path_leads_out_of_the_files(client: TestClient, name: str) -> None:
    answer = client.get(f"/labs/static/{name}")
    assert answer.status_code == 404 and "import" not in answer.text and "root:" not in answer.text


def test_the_labs_work_under_a_prefix() -> None:
    app = Starlette(routes=[Mount("/tools", Starlette(routes=labs_routes(lambda: GROUPS)))])
    page = TestClient(app).get(f"/tools/labs/{CACHE.key}").text
    links = re.findall(r'(?:href|src|data-api)="([^"#]+)"', page)
    assert links and all(link.startswith("/tools/labs") for link in links)
