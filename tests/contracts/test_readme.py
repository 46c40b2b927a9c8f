"""Protects the README's promises that can rot: the table of models, the names of commands and the links."""

import re
from pathlib import Path

from ridgeline.cli import COMMANDS
from ridgeline.models.families import FAMILIES
from ridgeline.models.shapes import SHAPES

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ridgeline"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DRAWN = "docs/figures/steps.svg"  # by docs/figures/steps.py, on an idle machine


def test_the_table_of_models_is_the_table_of_families() -> None:
    table = README.partition("| family |")[2].partition("\n\n")[0]
    listed = [name for row in table.splitlines()[2:] for name in re.findall(r"`(\w+)`", row.split("|")[2])]
    assert sorted(listed) == sorted(FAMILIES)


def test_every_command_that_is_named_exists() -> None:
    named = set(re.findall(r"`ridgeline ([a-z][a-z-]*)", README))
    assert named <= set(COMMANDS) and {"serve", "version"} >= set(COMMANDS) - named
    assert set(re.findall(r"ridgeline bench \w+ ([a-z0-9.-]+)", README)) <= set(SHAPES)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make (\w+)", README):
        assert re.search(rf"^{target}: ", makefile, re.MULTILINE), target


def test_every_link_leads_somewhere() -> None:
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http") and link != DRAWN:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_every_module_that_the_architecture_names_exists() -> None:
    """`room/module`, `room/module.py` or `room/`, under ridgeline/ or the root."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = {name.rstrip("/") for name in re.findall(r"`([a-z_]+/[a-z_/*]*(?:\.\w+)?)`", text)}
    assert len(named) > 20

    def exists(name: str) -> bool:
        stem = name.removesuffix(".py")
        return any(list(base.glob(end)) for base in (PACKAGE, ROOT) for end in (stem, f"{stem}.py"))

    missing = sorted(name for name in named if not exists(name))
    assert not missing, missing
