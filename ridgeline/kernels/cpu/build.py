"""Makes the kernel library with the machine's own compiler: compiled once, tried in a process, kept.

A kept file is named by what it was made from and by its own content, so a damaged or foreign one is never
loaded; what no start has used for a day goes when another is made. Knows the sources and nothing of what
they compute.
"""

import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from ridgeline.base.errors import ConfigError

_log = logging.getLogger(__name__)
_SOURCES = ("linear.c", "attention.c", "tape.c")
_HEADERS = ("common.h", "kernels.h", "tiles.h")
_KEEP_S = 86_400.0
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-ffp-contract=off", "-fno-math-errno")
# In another process: an instruction that this CPU lacks must not end this one.
_TRIAL = """import sys
sys.path.insert(0, sys.argv[1])
from ridgeline.kernels.cpu.selfcheck import main
main(sys.argv[2])"""


def built(cc: Sequence[str], folder: Path, flags: Sequence[str] = FLAGS) -> Path:
    """The library's path, made first when `folder` does not have it. cc: the compiler, with arguments if any.

    Raises ConfigError when the compiler fails or the library computes wrongly on this machine, OSError or
    SubprocessError when either cannot be run.
    """
    room = files("ridgeline.kernels.cpu")
    texts = {name: (room / "src" / name).read_bytes() for name in (*_HEADERS, *_SOURCES)}
    check = (room / "selfcheck.py").read_bytes()
    said = subprocess.run([*cc, "--version"], capture_output=True, check=True, timeout=60).stdout
    key = _digest(repr((sorted(texts.items()), check, (*cc[1:], *flags), said, _cpu())).encode())
    refused = folder / f"cpu-{key}.refused"
    if refused.is_file():
        raise ConfigError(f"{refused.read_text().strip()}; remove {refused} to try again")
    for kept in folder.glob(f"cpu-{key}-*.so"):
        if kept.name == _name(key, kept):
            with suppress(OSError):
                os.utime(kept)  # its last use, for `_sweep`
            return kept
        _log.warning("%s is damaged: building the CPU kernels again", kept)
        kept.unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="cpu-work-") as work:
        made = _compile(cc, flags, texts, Path(work))
        wrong = _trial(made)
        if wrong:
            refused.write_text(wrong)
            raise ConfigError(wrong)
        target = folder / _name(key, made)
        os.replace(made, target)
    _sweep(folder, key, target.stat().st_mtime - _KEEP_S)
    return target


def _sweep(folder: Path, key: str, before_s: float) -> None:
    """Remove what was made from something else and last used before then; others may do the same just now."""
    for old in folder.glob("cpu-*"):
        with suppress(OSError):
            if not old.name.startswith(f"cpu-{key}") and old.stat().st_mtime < before_s:
                shutil.rmtree(old) if old.is_dir() else old.unlink()


def _compile(cc: Sequence[str], flags: Sequence[str], texts: Mapping[str, bytes], work: Path) -> Path:
    for name, text in texts.items():
        (work / name).write_bytes(text)
    out = work / "out.so"
    command = [*cc, *flags, *_SOURCES, "-o", str(out), "-lm"]
    done = subprocess.run(command, cwd=work, capture_output=True, timeout=300)
    if done.returncode:
        raise ConfigError(f"{shlex.join(cc)} failed: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return out


def _trial(library: Path) -> str:
    """What is wrong with the library on this machine, "" for nothing."""
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "-c", _TRIAL, str(root), str(library)]
    done = subprocess.run(command, capture_output=True, timeout=120)
    if done.returncode == 0:
        return ""
    said = done.stderr.decode(errors="replace").strip().rpartition("\n")[2] or f"status {done.returncode}"
    return f"they failed their check on this machine ({said})"


def _name(key: str, library: Path) -> str:
    return f"cpu-{key}-{_digest(library.read_bytes())}.so"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:20]


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        told = {line for line in lines if line.startswith(("flags", "model name", "Features"))}
        return repr(sorted(told))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
