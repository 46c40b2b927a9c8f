"""The engine's socket has a path that the system takes, however deep the temporary folder is."""

import tempfile
from pathlib import Path

import pytest

from ridgeline.frontend.client import _socket_folder


def test_a_deep_folder_is_left_for_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket's path has about a hundred bytes; nothing is left in the folder that was too deep."""
    deep = tmp_path / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    folder = Path(_socket_folder())
    try:
        assert len(str(folder / "engine.sock")) <= 104
        assert not list(deep.iterdir())
    finally:
        folder.rmdir()
