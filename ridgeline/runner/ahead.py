"""Kernels compiled ahead of their first launch, by several processes at once.

Triton compiles a kernel where it is first launched, for a second or two, one after another. Under
`compiled_meanwhile` launches of kernels that are not loaded yet are left out (run under a graph's capture,
where nothing runs anyway), and other processes compile them into Triton's cache on disk, from where the next
launch loads them. These processes see no GPU and import no torch. Knows no kernel.
"""

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)
_MOST_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to compile: its module and name, and in Triton's words for which arguments."""

    module: str
    name: str
    arguments: str


@contextmanager
def compiled_meanwhile(processes: int) -> Iterator[Collection[Job]]:
    """From the first kernel on that had to be compiled, all that are not loaded yet are listed, not launched,
    and compiled from then on; all are in the end. One that fails is left for its launch, which says why. An
    error inside leaves those that are not begun. Empty in the end: nothing was left out, and no process was
    started. processes: at most."""
    most = min(processes, _MOST_PROCESSES)
    jobs: dict[Job, None] = {}
    waiting: SimpleQueue[Job | None] = SimpleQueue()
    fed: list[Future[list[str]]] = []
    with ThreadPoolExecutor(most) as threads:

        def note(job: Job) -> None:
            if job in jobs:
                return
            jobs[job] = None
            waiting.put(job)
            if len(fed) < most:
                fed.append(threads.submit(_feed, waiting, _target()))

        try:
            with _missing(note):
                yield jobs
        except BaseException:
            with suppress(Empty):
                while True:
                    waiting.get_nowait()
            raise
        finally:
            for _ in fed:
                waiting.put(None)
    for said in fed:
        for line in said.result():
            _log.warning("a kernel was not compiled ahead: %s", line)


@contextmanager
def _missing(note: Callable[[Job], None]) -> Iterator[None]:
    """From the first kernel on that had to be compiled, each that is not loaded is noted, not launched."""
    import triton

    compiled = False

    def before(*, fn: Any, **about: Any) -> bool:
        if compiled:
            note(Job(fn.module, fn.name, about["compile"]["specialization_data"]))
        return compiled

    def after(*, cache_hit: bool, **about: object) -> None:
        nonlocal compiled
        compiled = compiled or not cache_hit

    runtime, compilation = triton.knobs.runtime, triton.knobs.compilation
    held = runtime.jit_cache_hook, compilation.listener
    runtime.jit_cache_hook, compilation.listener = before, after
    try:
        yield
    finally:
        runtime.jit_cache_hook, compilation.listener = held


def _target() -> dict[str, Any]:
    """The GPU to compile for."""
    from triton.runtime import driver

    return vars(driver.active.get_current_target())


def _feed(waiting: "SimpleQueue[Job | None]", target: dict[str, Any]) -> list[str]:
    """One process compiles jobs as it gets done, until None; what it said of those that failed. Once it has
    ended, or where there is none, the others go on."""
    command, said = [sys.executable, "-m", "ridgeline.runner.ahead"], []
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
                              stderr=subprocess.DEVNULL) as process:
            assert process.stdin is not None and process.stdout is not None
            print(json.dumps(target), file=process.stdin)
            while (job := waiting.get()) is not None:
                print(json.dumps([job.module, job.name, job.arguments]), file=process.stdin)
                answer = process.stdout.readline()
                if not answer:
                    raise BrokenPipeError(f"{job.name}: its process ended")
                if answer.strip():
                    said.append(answer.strip())
    except OSError as error:
        said.append(str(error))
    return said


def _compile(target: Any, jobs: Iterable[str]) -> None:
    """In a process of its own, without a GPU. Answers each job by a line, empty where it went well."""
    from triton.runtime import driver

    class NoGpu:
        def get_current_device(self) -> int:
            return 0

        def get_current_target(self) -> Any:
            return target

    driver.set_active(NoGpu())
    _leave_doors_shut()
    for line in jobs:
        module, name, arguments = json.loads(line)
        said = ""
        try:
            getattr(import_module(module), name).preload(arguments)
        except Exception as error:  # its launch will say more
            said = f"{name}: {error}".replace("\n", " ")
        print(said, flush=True)


def _leave_doors_shut() -> None:
    """The kernels' packages without their doors, which import torch for seconds."""
    here = Path(__file__).parent.parent / "kernels"
    for folder in here.iterdir():
        if (folder / "triton.py").is_file():
            package = ModuleType(f"ridgeline.kernels.{folder.name}")
            package.__path__ = [str(folder)]
            sys.modules[package.__name__] = package


if __name__ == "__main__":
    from triton.backends.compiler import GPUTarget

    _compile(GPUTarget(**json.loads(sys.stdin.readline())), sys.stdin)
