"""Async tests of this folder run on asyncio, by anyio's own plugin."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
