"""Protects the borders: who imports whom, which modules are torch-free, how fast the door opens."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "ridgeline"
TORCH_FREE = ("base", "spec", "models", "kv", "schedule", "workload", "ledger", "frontend", "account", "api",
              "server", "planner", "web")
START_LIMIT_S = 0.3

_WALK = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    heavy = [m for m in ("torch", "transformers", "triton") if m in sys.modules]
    if heavy:
        sys.exit(f"importing {name} loads {heavy[0]}")
"""


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def torch_free_modules() -> list[str]:
    """Every module that must load without torch, the API process's and the command line's included."""
    files = [p for room in TORCH_FREE for p in (PACKAGE / room).rglob("*.py")]
    files += (PACKAGE / "blocks").glob("*/spec.py")
    files += PACKAGE.glob("*.py")
    return sorted({_module(p) for p in files if p.name != "__main__.py"})


def test_torch_free_modules_load_without_torch() -> None:
    """The server process, the planner and `--help` must not pay seconds and hundreds of MB for torch."""
    names = torch_free_modules()
    assert "ridgeline" in names and "ridgeline.schedule.plan" in names
    done = subprocess.run([sys.executable, "-c", _WALK, *names], capture_output=True, text=True, timeout=60,
                          cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_import_contracts_hold() -> None:
    """The layer table of docs/ARCHITECTURE.md, as import-linter contracts in pyproject.toml."""
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([lint], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.parametrize("command", [["-c", "import ridgeline"], ["-m", "ridgeline.cli", "--help"]],
                         ids=["import", "help"])
def test_the_door_opens_fast(command: list[str]) -> None:
    """A newcomer's first `--help` answers at once. CPU seconds, best of 5: other load does not count."""
    spent = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=30, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if spent[-1] < START_LIMIT_S:
            return
    pytest.fail(f"best of 5 is {min(spent):.2f} s, the limit {START_LIMIT_S} s")
