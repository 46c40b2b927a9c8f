"""Writes docs/FAMILIES.md: every model family against every feature, from the marks of the tests.

    python -m docs.families

Collects the tests that carry marks of tests/features.py and runs none.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ridgeline.models.families import FAMILIES
from tests.features import FEATURES

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "FAMILIES.md"
HEAD = """# What runs, family by family

Written by `docs/families.py` from the marks of the tests, and held to them by a test. Each cell says whether
a feature runs or is refused; its number names the test below that shows it, with the family in place of `…`.

"""


@dataclass(slots=True)
class Proofs:
    """A pytest plugin that notes what the collected tests prove.

    cells: (family, feature) -> (the first test's id with … for the family, the reason of a refusal or "").
    """

    cells: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    @pytest.hookimpl(tryfirst=True)  # before tests are deselected, those that need a GPU too
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            for mark in item.iter_markers("runs"):
                family, *features = mark.args
                self._note(item, family, features, "")
            for mark in item.iter_markers("refused"):
                family, reason, *features = mark.args
                self._note(item, family, features, reason)

    def _note(self, item: pytest.Item, family: str, features: Iterable[str], reason: str) -> None:
        test, _, parameters = item.nodeid.partition("[")
        shown = f"{test}[{parameters.replace(family, '…')}"
        for feature in features:
            known = self.cells.setdefault((family, feature), (shown, reason))
            if bool(known[1]) != bool(reason):
                raise pytest.UsageError(f"{family}, {feature}: {known[0]} and {shown} contradict each other")


def collect() -> dict[tuple[str, str], tuple[str, str]]:
    """The cells of every test that has a mark."""
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py"))
             if "tests.features import" in path.read_text(encoding="utf-8")]
    proofs = Proofs()
    quiet = ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts="]
    code = pytest.main([*quiet, "--import-mode=importlib", "--collect-only", "--rootdir", str(ROOT), *files],
                       plugins=[proofs])
    if code:
        raise SystemExit(f"pytest cannot collect {', '.join(files)}: {code}")
    return proofs.cells


def page(cells: dict[tuple[str, str], tuple[str, str]]) -> str:
    """The Markdown of the table. ValueError names a cell without a test."""
    untested = [f"{family}: {feature}" for family in FAMILIES for feature in FEATURES
                if (family, feature) not in cells]
    if untested:
        raise ValueError(f"no test proves or refuses {'; '.join(untested)}")
    lines = ["| family | " + " | ".join(FEATURES) + " |", "|---" * (len(FEATURES) + 1) + "|"]
    numbers: dict[tuple[str, str], int] = {}
    for feature in FEATURES:  # numbers rise along the columns
        for family in FAMILIES:
            numbers.setdefault(_proof(family, *cells[family, feature]), len(numbers) + 1)
    for family in FAMILIES:
        row = []
        for feature in FEATURES:
            test, reason = cells[family, feature]
            number = numbers[_proof(family, test, reason)]
            row.append(f"**refused** ({number})" if reason else f"runs ({number})")
        lines.append(f"| `{family}` | " + " | ".join(row) + " |")
    proofs = [f"{number}. `{test}`" + (f": {reason}" if reason else "")
              for (test, reason), number in numbers.items()]
    return HEAD + "\n".join((*lines, "", *proofs, ""))


def _proof(family: str, test: str, reason: str) -> tuple[str, str]:
    return test, reason.replace(family, "…")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    PAGE.write_text(page(collect()), encoding="utf-8")
