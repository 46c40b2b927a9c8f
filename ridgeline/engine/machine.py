"""What this machine is and has for us: processor, cores and memory, cgroup limits included. Reads /proc, /sys
and, in a working tree, git's name of the commit."""

import hashlib
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """One machine at one moment. load: runnable processes of the last minute, this one not yet among them."""

    processor: str
    cores: int
    memory_bytes: int
    torch: str
    commit: str
    load: float

    def about(self) -> dict[str, str]:
        """For a profile or a report."""
        return {"processor": self.processor, "cores": str(self.cores), "torch": self.torch,
                "commit": self.commit, "load": f"{self.load:.1f}"}


def this_machine() -> Machine:
    """The machine that runs this process, with the cores that it may use."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(processor=_processor(), cores=num_cores(), memory_bytes=memory_bytes,
                   torch=version("torch"), commit=_commit(), load=os.getloadavg()[0])


def machine_name() -> str:
    """A file name for this kind of machine: the processor's own name, and a few digits of its features, which
    tell apart what virtual machines call alike."""
    words = "\n".join(line for line in _lines(Path("/proc/cpuinfo"))
                      if line.startswith(("model", "cpu family", "flags", "Features", "CPU part")))
    digits = hashlib.sha256(f"{words} {num_cores()}".encode()).hexdigest()[:6]
    slug = re.sub(r"[^a-z0-9]+", "-", _processor().lower()).strip("-")
    return f"{slug}-{digits}"


def num_cores() -> int:
    """Cores that this process may use, a container's CPU quota included; at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota = _words(_CGROUP / "cpu.max")
    if len(quota) == 2 and quota[0] != "max":
        allowed = min(allowed, max(1, int(quota[0]) // int(quota[1])))
    return allowed


def available_bytes() -> int:
    """Memory to be had without pushing others out: the kernel's estimate, or what the cgroup leaves."""
    free = _meminfo("MemAvailable")
    limit, used = _words(_CGROUP / "memory.max"), _words(_CGROUP / "memory.current")
    if limit and used and limit[0] != "max":
        reclaimable = _stat(_CGROUP / "memory.stat", "inactive_file")
        free = min(free, max(0, int(limit[0]) - int(used[0]) + reclaimable))
    return free


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/meminfo has no {name}")


def _stat(path: Path, name: str) -> int:
    found = dict(line.split() for line in _lines(path))
    return int(found.get(name, 0))


def _words(path: Path) -> list[str]:
    return " ".join(_lines(path)).split()


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _processor() -> str:
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of a working tree ("+" when it has changes), else the installed version."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return own_version()
        if done.returncode == 0:
            return done.stdout.strip()
    return own_version()


def own_version() -> str:
    """Ridgeline's own; "unknown" where it runs from a source tree that was never installed."""
    try:
        return version("ridgeline")
    except PackageNotFoundError:
        return "unknown"
