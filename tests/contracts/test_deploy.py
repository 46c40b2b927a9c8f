"""Protects what an operator installs: metrics that are documented and drawn exist, the image and the unit
start commands that exist, and the unit keeps its walls."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from docs.metrics import PAGE, page
from ridgeline.account.metrics import described
from ridgeline.cli import build_parser

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
WALLS = {
    "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
    "PrivateTmp": "yes", "PrivateDevices": "yes", "PrivateUsers": "yes", "ProtectKernelTunables": "yes",
    "RestrictNamespaces": "yes", "CapabilityBoundingSet": "", "Restart": "on-failure", "KillMode": "mixed",
}  # fmt: skip


def test_the_page_of_metrics_is_what_the_server_shows() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m docs.metrics"


def _expressions() -> list[str]:
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


def test_every_expression_of_the_dashboard_names_metrics_that_exist() -> None:
    """By the right one of a histogram's three names, a counter as a rate, and labels that the metric has."""
    known = {one.name: one for one in described()}
    assert len(_expressions()) > 20
    for expression in _expressions():
        names = re.findall(r"(rate\()?ridgeline:([a-z0-9_]+)", expression)
        assert names and expression.count("(") == expression.count(")"), expression
        labels = {"le"} if "_bucket" in expression else set()
        for rate, name in names:
            metric = known.get(name) or known.get(re.sub("_(bucket|sum|count)$", "", name))
            assert metric is not None, f"{name} in {expression}"
            assert (name != metric.name) == (metric.kind == "histogram"), expression
            assert bool(rate) == (metric.kind != "gauge"), expression
            labels |= set(metric.labels)
        for by in re.findall(r"by \((\w+)\)", expression):
            assert by in labels, expression


def test_the_panels_of_the_dashboard_stand_beside_one_another() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text(encoding="utf-8"))
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def _unit() -> dict[str, list[str]]:
    lines = (DEPLOY / "ridgeline.service").read_text(encoding="utf-8").splitlines()
    found: dict[str, list[str]] = {}
    for name, _, value in (line.partition("=") for line in lines if re.match("[A-Z]", line)):
        found.setdefault(name, []).append(value)
    return found


def _serve(words: list[str]) -> Any:
    """The settings of words that must be a `serve`."""
    args = build_parser(["serve"]).parse_args(words)
    assert args.command == "serve" and args.log_format == "json"
    return args


def test_the_unit_starts_a_command_that_exists_and_waits_for_its_end() -> None:
    unit = _unit()
    (start,) = unit["ExecStart"]
    program, *words = shlex.split(start.replace("%d", "/run/credentials"))
    args = _serve(words)
    assert program.endswith("/bin/ridgeline") and args.api_key_file.name == "keys.toml"
    assert int(unit["TimeoutStopSec"][0]) > args.shutdown_timeout + 5


def test_the_unit_has_its_walls() -> None:
    unit = _unit()
    assert {name: unit[name][0] for name in WALLS} == WALLS
    assert unit["RestrictAddressFamilies"] == ["AF_INET AF_INET6 AF_UNIX"]
    assert any(value.startswith("~") for value in unit["SystemCallFilter"])


@pytest.mark.parametrize("word", ["COPY", "CMD"])
def test_the_image_copies_and_starts_what_exists(word: str) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    lines = re.findall(rf"^{word} (.*)$", text, re.MULTILINE)
    assert lines
    if word == "CMD":
        assert "USER ridgeline" in text
        _serve(json.loads(lines[-1]))
        return
    for source in (source for line in lines for source in line.split()[:-1]):
        assert (ROOT / source).exists() and f"!{source}" in ignored, source
