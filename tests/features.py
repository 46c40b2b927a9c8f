"""What tests prove of model families: marks that docs/families.py gathers into docs/FAMILIES.md.

A test that shows a family running with a feature carries `runs`, one that shows it refused `refused`, whose
reason stands in the error that the test sees.
"""

from collections.abc import Iterable

import pytest

from ridgeline.models.families import FAMILIES

FEATURES = ("logits whole", "in chunks", "token by token", "in a batch", "safetensors folder", "GGUF",
            "packed weights", "bfloat16", "cache as planned", "prefix cache", "forks", "preemption",
            "ngram drafts", "draft model", "GPU", "drafts on a GPU")  # fmt: skip


def runs(family: str, *features: str) -> pytest.MarkDecorator:
    """A mark: the test shows that these features run."""
    assert family in FAMILIES and set(features) <= set(FEATURES), (family, features)
    return pytest.mark.runs(family, *features)


def refused(family: str, reason: str, *features: str) -> pytest.MarkDecorator:
    """A mark: the test shows that these features are refused with the reason."""
    assert family in FAMILIES and set(features) <= set(FEATURES), (family, features)
    return pytest.mark.refused(family, reason, *features)


def each_running(families: Iterable[str], *features: str) -> list[object]:
    """Families as parameters of a test that shows these features running."""
    return [pytest.param(family, id=family, marks=runs(family, *features)) for family in families]


def cases_running(cases: Iterable[str], *features: str) -> list[object]:
    """Cases as parameters; those that are called like a family show these features running."""
    return [pytest.param(case, id=case, marks=[runs(case, *features)] if case in FAMILIES else [])
            for case in cases]
