"""Protects the compilation ahead: what is not compiled is listed and not launched, compiled meanwhile by
other processes and found afterwards. Where nothing is missing there are none."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.runner import ahead
from ridgeline.runner.ahead import compiled_meanwhile

triton = pytest.importorskip("triton", reason="Triton is not installed")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(120)
def test_missing_kernels_are_compiled_by_others(tmp_path: Path) -> None:
    """One that cannot be compiled is said and hinders no other."""
    env = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    command = [sys.executable, "-m", "tests.kernels.compiled_ahead"]
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, timeout=110)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    names = ["silu_mul_kernel", "rms_norm_kernel", "rms_norm_kernel"]
    assert said == {"jobs": names, "missing": 0, "found": [3, 3]}
    assert done.stderr.count("was not compiled ahead: rms_norm_kernel") == 1


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_target", dict)


def compiler(folder: Path, answers: str) -> Path:
    """A program in place of the one that compiles: it notes its start and each job in a file."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\ncd {folder}\nread target\necho started for $target >> log\n{answers}\n")
    path.chmod(0o755)
    return path


def launch(name: str, *, cache_hit: bool = False) -> None:
    """What Triton tells of a launch of a kernel that is not loaded."""
    about = SimpleNamespace(module="kernels", name=name)
    if not triton.knobs.runtime.jit_cache_hook(fn=about, compile={"specialization_data": "{}"}):
        triton.knobs.compilation.listener(cache_hit=cache_hit)


ANSWERS = 'while read job; do echo "$job" >> log; sleep 0.1; echo; done'


def test_a_warm_start_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is loaded and none was compiled, however long that takes."""
    monkeypatch.setattr(sys, "executable", str(compiler(tmp_path, ANSWERS)))
    with compiled_meanwhile(2) as jobs:
        for name in "abc":
            launch(name, cache_hit=True)
    assert not jobs and not (tmp_path / "log").exists()


def test_a_kernel_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By no more processes than there are kernels."""
    monkeypatch.setattr(sys, "executable", str(compiler(tmp_path, ANSWERS)))
    with compiled_meanwhile(5) as jobs:
        for name in "abcbcb":
            launch(name)
    assert [job.name for job in jobs] == ["b", "c"]
    lines = sorted((tmp_path / "log").read_text().splitlines())
    assert lines == ['["kernels", "b", "{}"]', '["kernels", "c", "{}"]', "started for {}", "started for {}"]


def test_an_error_leaves_what_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(compiler(tmp_path, ANSWERS)))
    with pytest.raises(ZeroDivisionError), compiled_meanwhile(1) as jobs:
        for num in range(100):
            launch(str(num))
        raise ZeroDivisionError
    assert len(jobs) == 99
    assert len((tmp_path / "log").read_text().splitlines()) < 99
    assert triton.knobs.runtime.jit_cache_hook is None and triton.knobs.compilation.listener is None


@pytest.mark.parametrize("answers", ["exit 1", "read job; exit 1", "read job; echo; exit 1", None])
def test_processes_that_end_hinder_nothing(
    answers: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """At their start, at a kernel, after one; or there is no program."""
    path = tmp_path / "none" if answers is None else compiler(tmp_path, answers)
    monkeypatch.setattr(sys, "executable", str(path))
    with compiled_meanwhile(2) as jobs:
        for name in "abcdef":
            launch(name)
    assert len(jobs) == 5
    assert [record.message[:31] for record in caplog.records] == ["a kernel was not compiled ahead"] * 2
