"""Reference models of the cases, made once a process."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from tests.oracle.oracles import Oracle


@pytest.fixture(scope="session")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Oracle]:
    """By the name of a case."""
    return cache(lambda case: Oracle(case, tmp_path_factory.mktemp("oracle")))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
