"""Adapters of the served model: loaded and unloaded by vLLM's bodies, and listed beside it."""

import time
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ridgeline.api.answers import ModelCard, to_json
from ridgeline.api.openai import OpenAI
from ridgeline.api.parse import parse
from ridgeline.api.types import Strict
from ridgeline.base.errors import invalid_value

Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]


class LoadRequest(Strict, kw_only=True):
    """POST /v1/load_lora_adapter. lora_path: a folder on the server's machine. load_inplace: also where an
    adapter of this name is loaded, whose requests go on with it to their ends."""

    lora_name: Name
    lora_path: Annotated[str, Meta(min_length=1, max_length=4096)]
    load_inplace: bool | None = None


class UnloadRequest(Strict, kw_only=True):
    """POST /v1/unload_lora_adapter. lora_int_id: accepted and not used, as in vLLM."""

    lora_name: Name
    lora_int_id: int | None = None


class Unloaded(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    deleted: bool = True


def adapter_card(base: ModelCard, info: Mapping[str, Any]) -> ModelCard:
    """An adapter as a model of its own. info: what the engine says of it."""
    return ModelCard(id=info["name"], created=int(time.time()), root=info["path"], parent=base.id,
                     max_model_len=base.max_model_len)  # fmt: skip


async def load_adapter(api: OpenAI, body: bytes) -> bytes:
    """Its card, once it can be asked. Raises RequestError."""
    request = parse(body, LoadRequest, api.served.limits)
    if request.lora_name == api.served.card.id:
        raise invalid_value("lora_name", f"{request.lora_name!r} is the base model's name")
    with api.admission.enter():
        info = await api.engine.load_adapter(
            request.lora_name, request.lora_path, replace=bool(request.load_inplace)
        )
    card = api.adapters[request.lora_name] = adapter_card(api.served.card, info)
    return to_json(card)


async def unload_adapter(api: OpenAI, body: bytes) -> bytes:
    """It cannot be asked any more; what it is asked already goes on. Raises RequestError."""
    name = parse(body, UnloadRequest, api.served.limits).lora_name
    with api.admission.enter():
        await api.engine.unload_adapter(name)
    api.adapters.pop(name, None)
    return to_json(Unloaded(id=name))
