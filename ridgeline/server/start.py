"""From settings to working endpoints: opens the model's text side and starts its engine, both at once."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ridgeline.api.adapters import adapter_card
from ridgeline.api.answers import ModelCard
from ridgeline.api.limits import LIMITS, Limits
from ridgeline.api.openai import OpenAI
from ridgeline.api.served import Served
from ridgeline.base.clock import WallClock, since_exec_s
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.logs import TEXT, LogStyle
from ridgeline.frontend.client import ENGINE, STALL_S, EngineClient
from ridgeline.frontend.files import load_text
from ridgeline.frontend.keeper import EngineKeeper
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tools.formats import format_of
from ridgeline.frontend.tools.thinking import thinks
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.models.resolve import open_model
from ridgeline.schedule.policies.table import takes_priority
from ridgeline.schedule.targets import Targets
from ridgeline.server.rest import Rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Endpoints over a running engine. info: what the engine says of itself. rest: its sleep.

    seconds: of the start. "text" runs beside "engine"; the others follow one another from exec to "total".
    """

    api: OpenAI
    client: EngineKeeper
    info: Mapping[str, Any]
    seconds: Mapping[str, float]
    rest: Rest | None = None


@asynccontextmanager
async def start(
    config: EngineConfig, *, name: str | None = None, stall_s: float = STALL_S, logs: LogStyle = TEXT,
    limits: Limits = LIMITS, engine: str = ENGINE,
) -> AsyncIterator[Running]:
    """Open a model and start its engine, which is started again when it dies and ends with the block. engine:
    the module that runs as its process.

    Raises RidgelineError, with the one change that helps, when the model cannot be served.
    """
    begun, imports_s = time.monotonic(), since_exec_s()
    checkpoint = open_model(
        config.model,
        revision=config.revision,
        load_format=config.load_format,
        overrides=config.hf_overrides,
    )
    opened = time.monotonic()
    if checkpoint.path is not None:
        config = replace(config, model=str(checkpoint.path))
    launch = partial(EngineClient.start, stall_s=stall_s, logs=logs, module=engine)
    starting = asyncio.create_task(EngineKeeper.start(partial(launch, config)))
    try:
        text = await asyncio.to_thread(
            load_text, checkpoint.path, tokenizer=config.tokenizer, chat_template=config.chat_template
        )
        text_s = time.monotonic() - opened
        client = await starting
    except BaseException:
        await _undo(starting)
        raise
    seconds = {
        "imports": imports_s,
        "open": opened - begun,
        "text": text_s,
        "engine": time.monotonic() - opened,
        "total": since_exec_s(),
    }
    try:
        targets = Targets(ttft_s=config.ttft_s, tpot_s=config.tpot_s)
        api = OpenAI(_served(checkpoint, text, client.info, name, limits), client, WallClock(), targets)
        base = api.served.card
        api.adapters |= {info["name"]: adapter_card(base, info) for info in client.info["adapters"]}
        if base.id in api.adapters:
            raise ConfigError(f"--lora {base.id} is the base model's name: give the adapter another")
        rest = Rest(client, api.admission, config, checkpoint.spec, launch)
        yield Running(api=api, client=client, rest=rest, info=client.info, seconds=seconds)
    finally:
        await client.close()


async def _undo(starting: "asyncio.Task[EngineKeeper]") -> None:
    starting.cancel()
    (outcome,) = await asyncio.gather(starting, return_exceptions=True)
    if isinstance(outcome, EngineKeeper):
        await outcome.close()


def _served(
    checkpoint: Checkpoint, text: TextLayer, info: Mapping[str, Any], name: str | None, limits: Limits
) -> Served:
    templates = {} if text.template is None else text.template.sources
    card = ModelCard(
        id=name or checkpoint.name,
        created=int(time.time()),
        root=str(checkpoint.path or checkpoint.name),
        max_model_len=info["max_model_len"],
    )
    return Served(
        card=card,
        vocab_size=info["vocab_size"],
        max_request_tokens=info["max_request_tokens"],
        text=text,
        takes_priority=takes_priority(info["policy"]),
        defaults=checkpoint.sampling_defaults,
        tool_form=format_of(templates),
        thinks=thinks(templates),
        limits=limits,
    )
