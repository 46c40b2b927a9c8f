"""The report of `ridgeline doctor`. Starts the engine once, asks it for one token, and accounts for the
seconds.
"""

import asyncio
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ridgeline.account.caller import Caller
from ridgeline.base.clock import since_exec_s
from ridgeline.base.config import EngineConfig, cache_dir
from ridgeline.base.units import format_bytes
from ridgeline.commands.doctor_ledger import start_ledger
from ridgeline.server.banner import memory_plan
from ridgeline.server.start import Running, start

PACKAGES = (
    "ridgeline",
    "torch",
    "numpy",
    "tokenizers",
    "pyzmq",
    "msgspec",
    "fastapi",
    "uvicorn",
    "uvloop",
    "httptools",
)
ISA = (
    "avx2",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
)


def doctor(config: EngineConfig) -> int:
    """Print the report. Raises RidgelineError when the model cannot be served; the machine's part is out by
    then.
    """
    for line in _machine():
        print(line, flush=True)
    asyncio.run(_engine(config))
    return 0


async def _engine(config: EngineConfig) -> None:
    caller = Caller()
    async with start(config) as running:
        asked_s = since_exec_s()
        await running.api.completion(b'{"prompt": [0], "max_tokens": 1}', caller)
        told_s = since_exec_s()
    (choice,) = running.api.accounts.account(caller, caller.request_id)["choices"]
    ledger = start_ledger(
        running.seconds, running.info["startup"], asked_s=asked_s, told_s=told_s,
        ttft_parts_s=choice["ttft_parts_s"],
    )  # fmt: skip
    for line in (*_model(running), *_given(config), "start", *ledger.lines()):
        print(line)


def _machine() -> Iterator[str]:
    yield f"python     {platform.python_version()}, {platform.platform()}"
    yield "packages   " + ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    cpu = _cpu()
    flags = set(cpu.get("flags", "").split())
    name, cores = cpu.get("model name", platform.machine()), len(os.sched_getaffinity(0))
    yield f"cpu        {name}, {cores} cores allowed"
    yield "isa        " + " ".join(word if word in flags else f"no-{word}" for word in ISA)
    yield f"memory     {format_bytes(os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE'))}"
    yield f"cache      {cache_dir()}"


def _model(running: Running) -> Iterator[str]:
    info, served = running.info, running.api.served
    yield f"model      {served.card.id}, {info['family']}, {info['num_params']:,} parameters"
    yield f"from       {served.card.root}"
    yield from memory_plan(info)
    yield _floor(info["profile"])
    yield "chosen"
    for name, choice in info["startup"]["choices"].items():
        yield f"  {name} = {choice['value']}: {choice['why']}"


def _given(config: EngineConfig) -> Iterator[str]:
    """The flags that are not as they would be without them."""
    plain = EngineConfig()
    given = {one.name: getattr(config, one.name) for one in fields(config)}
    shown = [f"{name} = {value}" for name, value in given.items() if value != getattr(plain, name)]
    yield "given      " + (", ".join(shown) or "nothing: all of it is chosen here")


def _floor(profile: Mapping[str, Any]) -> str:
    """What no engine can beat here with these weights."""
    num_bytes, seconds = profile["decode_read_bytes"], profile["decode_floor_s"]
    return (
        f"floor      one sequence reads {format_bytes(num_bytes)} for a token: {seconds * 1e3:.3g} ms at "
        f"{profile['read_bytes_per_s'] / 1e9:.3g} GB/s, at most {1 / seconds:.3g} tokens/s"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"


def _cpu() -> Mapping[str, str]:
    """The first processor's fields of /proc/cpuinfo."""
    fields: dict[str, Any] = {}
    for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    return fields
