"""A model by what people call it: a published shape under all its names, a folder, a GGUF file, a Hub id.

Planning's door: nothing is downloaded but a Hub id's config.json, no weight is read, and models that are only
described are found too (`describe`). Running's door is `resolve`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.base.errors import ConfigError
from ridgeline.models.describe import describe
from ridgeline.models.families import runs
from ridgeline.models.read import UnknownFieldError
from ridgeline.models.shapes import PUBLISHED
from ridgeline.spec.model import ModelSpec

if TYPE_CHECKING:
    from ridgeline.models.checkpoint import Checkpoint

PUBLISHED_SHAPE, FOLDER, GGUF, HUB = "published shape", "folder", "GGUF file", "Hub config"
# words of a name that say nothing of its shape, or the format of its matrices
_PLAIN = frozenset({
    "meta", "instruct", "chat", "it", "pt", "base", "hf", "bf16", "fp16", "gguf", "thinking", "sft", "dpo",
    "preview", "latest", "tuned", "static", "pertensor", "dynamic"})
SHORT = {"num_kv_heads": "num_key_value_heads", "num_heads": "num_attention_heads",
         "num_layers": "num_hidden_layers"}
_FORMATS = {"fp8": "fp8", "nvfp4": "nvfp4", "fp4": "nvfp4", "mxfp4": "mxfp4", "awq": "int4_g128_zero",
            "gptq": "int4_g128", "int4": "int4_g128", "w4a16": "int4_g128", "int8": "int8_row",
            "w8a8": "int8_row"}
_DATE = re.compile(r"\d{4}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A model and where it was found: one of PUBLISHED_SHAPE, FOLDER, GGUF, HUB.

    stored_bytes: of each parameter as the files hold it, by full name, exact from their headers; None where
    there are no weights, or where the model is described and its tensors' names are not known. files_bytes:
    of all tensors of the files together, None without files.
    """

    name: str
    spec: ModelSpec
    where: str
    stored_bytes: Mapping[str, int] | None = None
    files_bytes: int | None = None


def find_model(text: str) -> ModelSpec:
    """The spec of a model by name, path or Hub id; ConfigError gives the nearest names."""
    return find(text).spec


def find(text: str, overrides: Mapping[str, object] | None = None) -> Found:
    """As find_model, with what else is known of it. overrides: fields that replace the config's (a short name
    of SHORT too); a changed shape has no weights anywhere, so that its bytes are those of its formats."""
    changes = {SHORT.get(name, name): value for name, value in (overrides or {}).items()}
    try:
        return _find(text, changes)
    except UnknownFieldError as error:
        wrong = next((name for name in error.names if name in changes), None)
        if wrong is None:
            raise
        near = get_close_matches(wrong, [*error.known, *SHORT], n=3, cutoff=0.4)
        raise ConfigError(f"{text} has no field {wrong!r} to change: the nearest are "
                          f"{', '.join(near or sorted(error.known))}") from None


def _find(text: str, changes: Mapping[str, object]) -> Found:
    path = Path(text).expanduser()
    if text and path.exists():
        return _of_files(path, changes)
    known = _known(text)
    if known is not None:
        name, stored_as = known
        shape = PUBLISHED[name]
        spec = replace(describe({**shape.config, **changes}, name), stored_as=stored_as or shape.stored_as,
                       stored_plain=shape.stored_plain)
        return Found(name=name, spec=spec, where=PUBLISHED_SHAPE)
    if text.startswith((".", "/", "~")) or path.suffix in (".gguf", ".json"):
        raise ConfigError(f"no file or folder {text!r}: give one that is there, a Hub id (org/name), or a "
                          "model's name, such as llama-3-8b")
    if text.count("/") != 1:
        raise ConfigError(f"no model {text!r}: {_nearest(text)}, or give a folder, a GGUF file or a Hub id "
                          "(org/name)")
    from ridgeline.models.checkpoint import read_json
    from ridgeline.models.hub import config_file

    repo, _, revision = text.partition("@")
    try:
        config = config_file(repo, revision or None)
    except ConfigError as error:
        raise ConfigError(f"{error}; by name, {_nearest(text)}") from None
    spec = describe({**read_json(config), **changes}, f"{text}: config.json")
    return Found(name=repo, spec=spec, where=HUB)


def model_names() -> tuple[str, ...]:
    """The published shapes' own names, in alphabetical order; other names lead to them too."""
    return tuple(sorted(PUBLISHED))


def _of_files(path: Path, changes: Mapping[str, object]) -> Found:
    from ridgeline.models.checkpoint import open_checkpoint, read_json
    from ridgeline.models.files.safetensors import read_folder

    if path.is_file() or not (path / "config.json").is_file():
        found = open_checkpoint(path, overrides=changes, load_format="dummy" if changes else "auto")
        if changes:
            return Found(name=found.name, spec=found.spec, where=GGUF)
        return Found(name=found.name, spec=found.spec, where=GGUF, stored_bytes=_by_parameter(found),
                     files_bytes=sum(tensor.num_bytes for tensor in found.tensors.values()))
    config = {**read_json(path / "config.json"), **changes}
    spec = describe(config, str(path / "config.json"))
    name = path.resolve().name
    if changes or not any(path.glob("*.safetensors")):
        return Found(name=name, spec=spec, where=FOLDER)
    stored = _by_parameter(open_checkpoint(path)) if runs(config) else None
    total = sum(tensor.num_bytes for tensor in read_folder(path).values())
    return Found(name=name, spec=spec, where=FOLDER, stored_bytes=stored, files_bytes=total)


def _by_parameter(found: "Checkpoint") -> dict[str, int]:
    """Bytes of the tensors that each parameter is made of."""
    return {name: sum(found.tensors[tensor].num_bytes for tensor in source.tensor_names)
            for name, source in found.sources.items()}


def _key(text: str, words: frozenset[str] = frozenset()) -> str:
    """A name without its owner, case, separators and the given words: "meta-llama/Llama-3.1-8B" is
    llama3.18b."""
    name = text.strip().lower().rpartition("/")[2]
    return "".join(word for word in re.split(r"[\s_:-]+", name) if word not in words)


@cache
def _keys() -> dict[str, str]:
    """Key -> published name; a name goes before another's alias."""
    found = {_key(name): name for name in PUBLISHED}
    for name, shape in PUBLISHED.items():
        for other in shape.also:
            found.setdefault(_key(other), name)
            found.setdefault(_key(other, _PLAIN), name)
    return found


def _known(text: str) -> tuple[str, str] | None:
    """(published name, format that the name states or ""); None when no published shape is called so. Words
    that say nothing of a shape are left out one kind after another: a date may be of a model of its own."""
    if text.lower() in PUBLISHED:
        return text.lower(), ""
    keys, words = _keys(), re.split(r"[\s_:/-]+", text.lower())
    dates = {word for word in words if _DATE.fullmatch(word)}
    for left_out in (frozenset[str](), _PLAIN, _PLAIN | _FORMATS.keys(), _PLAIN | _FORMATS.keys() | dates):
        key = _key(text, left_out)
        if key in keys:
            formats = [_FORMATS[word] for word in words if word in _FORMATS and word in left_out]
            return keys[key], formats[0] if formats else ""
    return None


def _nearest(text: str) -> str:
    keys = _keys()
    near = dict.fromkeys(keys[key] for key in get_close_matches(_key(text, _PLAIN), keys, n=6, cutoff=0.5))
    return f"the nearest are {', '.join([*near][:3])}" if near else f"known are {', '.join(model_names())}"
