"""Protects what a user installs: a wheel with the package and its data alone, which runs from any folder."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".py", ".toml", ".c", ".h", ".typed", ".html", ".css", ".js", ".svg")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", out],
                   check=True, capture_output=True, timeout=60, cwd=ROOT)
    (built,) = out.glob("*.whl")
    return built


def test_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = {str(p.relative_to(ROOT)) for p in (ROOT / "ridgeline").rglob("*")
               if p.suffix in SUFFIXES and "__pycache__" not in p.parts}
    assert tracked <= names
    assert all(n.startswith(("ridgeline/", "ridgeline-")) for n in names)


def test_wheel_installs_and_runs(wheel: Path, tmp_path: Path) -> None:
    """Imported from the installed copy, not from the working tree."""
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target"]
    subprocess.run([*install, tmp_path, wheel], check=True, capture_output=True, timeout=60)
    script = ("import sys; sys.path.insert(0, sys.argv.pop(1)); import ridgeline; print(ridgeline.__file__); "
              "import runpy; runpy.run_module('ridgeline.cli', run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path), "--help"], capture_output=True,
                          text=True, timeout=30, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) in done.stdout and "serve" in done.stdout
