"""`ridgeline bench startup`: seconds from nothing to the first token, in processes of their own, beside a
bare import of torch on the same machine. Each state twice: with empty caches of compiled kernels, then with
full ones.

Run as a module it is the process that is measured.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import format_bytes

_BARE = "import time, torch; torch.cuda.is_available() and torch.cuda.init(); print(time.time())"
_PROMPT = [5] * 64
_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start. total_s: of the process, from its launch to the first token. build_s: of the engine in it,
    by phases_s; first_token_s: of the first request."""

    caches: str
    total_s: float
    build_s: float
    first_token_s: float
    phases_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupReport:
    """bare_s: the least of a few processes that only import torch and open the GPU. floor_s: reading the
    weights once at the machine's rate; what a start takes beyond bare_s stands beside it."""

    model: str
    weights_bytes: int
    bare_s: float
    floor_s: float
    starts: tuple[Start, ...]

    def as_json(self) -> dict[str, Any]:
        return {"bench": "startup", **asdict(self)}

    def text(self) -> str:
        lines = [f"startup: {self.model}, weights of {format_bytes(self.weights_bytes)}",
                 f"  a process that only imports torch: {self.bare_s:.2f} s; reading the weights once: "
                 f"{self.floor_s:.3f} s"]
        for start in self.starts:
            beyond = start.total_s - self.bare_s
            phases = ", ".join(f"{name} {seconds:.2f}" for name, seconds in start.phases_s.items())
            lines.append(f"  {start.caches} caches: first token after {start.total_s:.2f} s, {beyond:.2f} s "
                         f"beyond that ({self.floor_s / beyond:.1%} of it is the floor): engine "
                         f"{start.build_s:.2f} ({phases}), first request {start.first_token_s:.2f}")
        return "\n".join(lines)


def run(engine: EngineConfig, *, as_json: bool = False, write: Callable[[str], object] = print) -> int:
    """Measure and write the report; the exit code. ConfigError with what a process said that failed."""
    starts, said = [], {}
    with TemporaryDirectory(prefix="startup-") as folder:
        for caches in ("empty", "full"):
            begun, text = _ran(_command(engine, Path(folder)))
            said = json.loads(text)
            starts.append(Start(caches=caches, total_s=said["at_s"] - begun, build_s=said["build_s"],
                                first_token_s=said["first_token_s"], phases_s=said["phases_s"]))
    bare = [_ran([sys.executable, "-c", _BARE]) for _ in range(3)]
    bare_s = min(float(text) - begun for begun, text in bare)
    report = StartupReport(model=said["name"], weights_bytes=said["weights_bytes"], bare_s=bare_s,
                           floor_s=said["weights_bytes"] / said["read_bytes_per_s"], starts=tuple(starts))
    write(json.dumps(report.as_json(), allow_nan=False) if as_json else report.text())
    return 0


def _command(engine: EngineConfig, folder: Path) -> list[str]:
    """The measured process, with caches of its own: ours, and Triton's."""
    caches = [f"RIDGELINE_CACHE={folder / 'ridgeline'}", f"TRITON_CACHE_DIR={folder / 'triton'}"]
    return ["env", *caches, sys.executable, "-m", "ridgeline.bench.startup", json.dumps(asdict(engine))]


def _ran(command: list[str]) -> tuple[float, str]:
    """(when the process was launched, by the system's clock; its last line)."""
    begun = time.time()
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ConfigError(f"a start failed: {said[-1] if said else f'exit code {done.returncode}'}")
    return begun, done.stdout.splitlines()[-1]


def main(settings: str) -> None:
    """The measured process: one request of one token."""
    begun = time.perf_counter()
    from ridgeline import LLM, SamplingParams

    engine = EngineConfig(**json.loads(settings))
    llm = LLM.from_config(engine)
    built = time.perf_counter()
    llm.generate(_PROMPT, SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), progress=False)
    ended, at_s = time.perf_counter(), time.time()
    info = llm.info
    print(json.dumps({
        "at_s": at_s, "name": info["name"], "weights_bytes": info["weights_bytes"], "build_s": built - begun,
        "first_token_s": ended - built, "phases_s": info["startup"]["phases_s"],
        "read_bytes_per_s": info["profile"]["read_bytes_per_s"],
    }), flush=True)
    llm.close()


if __name__ == "__main__":
    main(sys.argv[1])
