"""What this machine has for us: cores and memory, cgroup limits included. Reads /proc and /sys only."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


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
