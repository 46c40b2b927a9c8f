"""Reference models of the cases, made once a process."""

from collections.abc import Callable
from functools import cache

import pytest

from tests.oracle.oracles import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """By the name of a case."""
    return cache(lambda case: Oracle(case, tmp_path_factory.mktemp("oracle")))
