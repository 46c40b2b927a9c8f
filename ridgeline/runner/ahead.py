"""Kernels compiled ahead of their first launch, by several processes at once.

Triton compiles a kernel where it is first launched, for a second or two, one after another. Under `missing`
launches of kernels that are not compiled yet are noted and left out (run under a graph's capture, where
nothing runs anyway); `compile_all` has them compiled into Triton's cache on disk, from where the next launch
loads them. The compiling processes see no GPU and import no torch. Knows no kernel.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from types import ModuleType
from typing import Any

_log = logging.getLogger(__name__)
_SLOW_S = 0.2  # loading a compiled kernel takes a few milliseconds
_MOST_PROCESSES = 16


@dataclass(frozen=True, slots=True)
class Job:
    """A kernel to compile: its module and name, and in Triton's words for which arguments."""

    module: str
    name: str
    arguments: str


@contextmanager
def missing() -> Iterator[list[Job]]:
    """From the first kernel on that had to be compiled, all that are not loaded yet are listed and not
    launched. Empty in the end: nothing was left out, and nothing took long."""
    import triton

    jobs: list[Job] = []
    begun_s, slow = 0.0, False

    def before(*, fn: Any, **about: Any) -> bool:
        nonlocal begun_s
        begun_s = perf_counter()
        if slow:
            jobs.append(Job(fn.module, fn.name, about["compile"]["specialization_data"]))
        return slow

    def after(**about: object) -> None:
        nonlocal slow
        slow = slow or perf_counter() - begun_s > _SLOW_S

    runtime = triton.knobs.runtime
    held = runtime.jit_cache_hook, runtime.jit_post_compile_hook
    runtime.jit_cache_hook, runtime.jit_post_compile_hook = before, after
    try:
        yield jobs
    finally:
        runtime.jit_cache_hook, runtime.jit_post_compile_hook = held


def compile_all(jobs: list[Job], processes: int | None = None) -> None:
    """Compile each distinct job. One that fails is left for its launch, which says why. processes: None for
    as many as there are cores."""
    from triton.runtime import driver

    target, distinct = vars(driver.active.get_current_target()), list(dict.fromkeys(jobs))
    num = min(len(distinct), processes or min(os.cpu_count() or 1, _MOST_PROCESSES))
    waiting: SimpleQueue[Job | None] = SimpleQueue()
    for job in (*distinct, *[None] * num):
        waiting.put(job)
    with ThreadPoolExecutor(max(1, num)) as threads:
        for said in threads.map(lambda _: _feed(waiting, target), range(num)):
            for line in said:
                _log.warning("a kernel was not compiled ahead: %s", line)


def _feed(waiting: "SimpleQueue[Job | None]", target: dict[str, Any]) -> list[str]:
    """One process compiles jobs as it gets done; what it said of those that failed."""
    command, said = [sys.executable, "-m", "ridgeline.runner.ahead"], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                          text=True, bufsize=1) as process:
        assert process.stdin is not None and process.stdout is not None
        print(json.dumps(target), file=process.stdin)
        while (job := waiting.get()) is not None:
            print(json.dumps([job.module, job.name, job.arguments]), file=process.stdin)
            answer = process.stdout.readline()
            if answer != "\n":
                said.append(answer.strip() or f"{job.name}: its process ended")
            if not answer:
                break
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
