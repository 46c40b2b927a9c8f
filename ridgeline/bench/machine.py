"""Where a measurement was made: processor, cores, versions, commit, other load. Strings and numbers."""

import os
import platform
import subprocess
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path


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
    return Machine(processor=_processor(), cores=len(os.sched_getaffinity(0)), memory_bytes=memory_bytes,
                   torch=version("torch"), commit=_commit(), load=os.getloadavg()[0])


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _commit() -> str:
    """The commit of a working tree ("+" when it has changes), else the installed version."""
    root = Path(__file__).resolve().parents[2]
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--exclude=*"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        if done.returncode == 0:
            return done.stdout.strip()
    return version("ridgeline")
