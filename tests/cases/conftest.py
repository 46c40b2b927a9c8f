"""A small server beside the default one, for cases about lengths rather than about text."""

from collections.abc import Iterator

import pytest

from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model of bytes with a context of 2048 tokens."""
    folder = tiny_folder(tmp_path_factory.mktemp("small"))
    with serving(str(folder), "--load-format", "dummy", "--kv-cache-bytes", "8MB") as server:
        yield server
