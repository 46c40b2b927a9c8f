"""What all rooms share: one thread, and one real server on the default model, started when a test first asks
for it."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.server.process import Server


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """torch computes on one thread unless the test, or the engine in it, says otherwise: tests beside one
    another share the cores, and a thread that waits for its share of tiny work spins."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def default_server() -> "Iterator[Server]":
    """`ridgeline serve` as a newcomer starts it, with room for 50 clients at once. Its clients' libraries are
    imported here, so that the tests of a GPU need none of them."""
    from tests.server.process import serving

    with serving("--max-num-seqs", "64") as server:
        server.probe()
        yield server


@pytest.fixture
def server(default_server: "Server") -> "Iterator[Server]":
    """The default server; a test must leave nothing in its engine, and it must answer as before."""
    assert default_server.process.poll() is None, "it ended:\n" + "\n".join(default_server.output[-40:])
    yield default_server
    default_server.idle()
    default_server.probe()
