"""What a start says on stderr while it takes its time."""

import time
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.engine import build
from ridgeline.nn import progress
from ridgeline.nn.progress import told_when_slow
from tests.engine.tiny import tiny_folder


@pytest.mark.parametrize(("lasts_s", "shown", "said"), [
    (0.3, True, "making tea ...\n"), (0.3, False, ""), (0.0, True, "")])
def test_a_line_when_it_takes_long(lasts_s: float, shown: bool, said: str, capsys: pytest.CaptureFixture[str],
                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: one line for slow work, none for quick work or when no progress is wanted."""
    monkeypatch.setattr(progress, "_QUIET_S", 0.1)
    with told_when_slow("making tea", shown=shown):
        time.sleep(lasts_s)
    time.sleep(0.2)
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("shown", [True, False])
def test_a_first_start_says_that_it_compiles(shown: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str],
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """Protects: the compile of a first start, which takes up to 20 s, is not silent."""
    monkeypatch.setattr(progress, "_QUIET_S", 0.1)
    monkeypatch.setattr(build, "native", lambda: time.sleep(0.3))
    folder = tiny_folder(tmp_path, tokenizer=False)
    build.build_engine(EngineConfig(model=str(folder), load_format="dummy", dtype="float32", threads=1,
                                    kv_cache_bytes=1 << 20, progress=shown)).close()
    assert capsys.readouterr().err.count("compiling the CPU kernels ...\n") == shown
