"""A checkpoint opened without torch: its config, ModelSpec, tensor table and weight sources, checked.

Reads headers and JSON only. Where the model argument points is `resolve`'s business; weights are `nn/load`'s.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.models.families import left_out, model_spec, runs, weight_sources
from ridgeline.models.files.gguf import read_gguf
from ridgeline.models.files.safetensors import read_folder
from ridgeline.models.files.stored import INCOMPLETE, StoredTensor
from ridgeline.models.gguf_config import ROPE_TENSORS, gguf_config, gguf_sampling
from ridgeline.models.shapes import SHAPES
from ridgeline.models.sources import Source
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.model import ModelSpec

SAMPLING_FIELDS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says of itself.

    path: the folder or GGUF file, None for a published shape. config: config.json's fields (or GGUF metadata
    in that spelling) with the overrides in. generation_config: its fields, {} without one. dummy: weights are
    to be random; tensors and sources are then empty. sources: our full weight name -> checkpoint tensors.
    """

    name: str
    path: Path | None
    config: Mapping[str, object]
    generation_config: Mapping[str, object]
    spec: ModelSpec
    dummy: bool
    tensors: Mapping[str, StoredTensor]
    sources: Mapping[str, Source]

    @property
    def sampling_defaults(self) -> dict[str, float]:
        """The checkpoint's own sampling defaults, by SamplingParams' names; only what it states."""
        found = {name: self.generation_config.get(name) for name in SAMPLING_FIELDS}
        return {name: value for name, value in found.items()
                if isinstance(value, int | float) and not isinstance(value, bool)}


def open_checkpoint(path: str | Path, *, name: str | None = None, load_format: str = "auto",
                    overrides: Mapping[str, object] | None = None) -> Checkpoint:
    """Open a folder or a GGUF file; name defaults to the path's last part.

    load_format "dummy" needs no weights. overrides replace config fields, None drops one. CheckpointError for
    files that are missing or broken, ConfigError for a config that we cannot run.
    """
    if load_format not in ("auto", "dummy"):
        raise ConfigError(f"load_format {load_format!r} is not known: use auto or dummy")
    path, dummy = Path(path), load_format == "dummy"
    if path.is_file():
        return _open_gguf(path, name or path.stem, dummy, overrides or {})
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such folder or file")
    if not (path / "config.json").is_file():
        files = sorted(path.glob("*.gguf"))
        if len(files) != 1:
            found = f"; it holds {', '.join(f.name for f in files)}: name one of them" if files else ""
            raise CheckpointError(f"{path}: no config.json in this folder{found}")
        return _open_gguf(files[0], name or path.name, dummy, overrides or {})
    return _open_folder(path, name or path.name, dummy, overrides or {})


def open_shape(name: str, *, overrides: Mapping[str, object] | None = None) -> Checkpoint:
    """A published shape by name, to be run with random weights; it has no tokenizer."""
    key = name.lower()
    if key not in SHAPES:
        raise ConfigError(f"no published shape named {name!r}: known are {', '.join(run_shapes())}")
    config = {**SHAPES[key], **(overrides or {})}
    return Checkpoint(
        name=key, path=None, config=config, generation_config={}, spec=model_spec(config, key), dummy=True,
        tensors={}, sources={})


def run_shapes() -> list[str]:
    """Names of the published shapes that run; the others are described for planning."""
    return [name for name, config in SHAPES.items() if runs(config)]


def _open_folder(folder: Path, name: str, dummy: bool, overrides: Mapping[str, object]) -> Checkpoint:
    config = {**read_json(folder / "config.json"), **overrides}
    beside = folder / "generation_config.json"
    generation = read_json(beside) if beside.is_file() else {}
    tensors = {} if dummy else read_folder(folder)
    embed = tensors.get("model.embed_tokens.weight")
    spec = _finished(model_spec(config, str(folder / "config.json")), embed, generation)
    sources = {} if dummy else weight_sources(spec)
    if not dummy:
        _check(folder, tensors, sources, spec, config)
    return Checkpoint(name=name, path=folder, config=config, generation_config=generation, spec=spec,
                      dummy=dummy, tensors=tensors, sources=sources)


def _open_gguf(path: Path, name: str, dummy: bool, overrides: Mapping[str, object]) -> Checkpoint:
    file = read_gguf(path)
    config = {**gguf_config(file), **overrides}
    spec = model_spec(config, str(path))
    tensors = {} if dummy else {n: t for n, t in file.tensors.items() if n not in ROPE_TENSORS}
    sources = {} if dummy else weight_sources(spec, gguf=True, stored=tensors)
    if not dummy:
        _check(path, tensors, sources, spec, config)
    return Checkpoint(name=name, path=path, config=config, generation_config=gguf_sampling(file.metadata),
                      spec=spec, dummy=dummy, tensors=tensors, sources=sources)


def _finished(spec: ModelSpec, embed: StoredTensor | None, generation: Mapping[str, object]) -> ModelSpec:
    """The spec with the embedding's padded rows and with the ends of text that the generation config adds."""
    more = generation.get("eos_token_id")
    ends = [i for i in (more if isinstance(more, list) else [more]) if isinstance(i, int)]
    rows = max(embed.rows if embed else 0, spec.vocab_size)
    return replace(spec, vocab_size=rows, eos_token_ids=tuple(dict.fromkeys((*spec.eos_token_ids, *ends))))


def _check(path: Path, tensors: Mapping[str, StoredTensor], sources: Mapping[str, Source],
           spec: ModelSpec, config: Mapping[str, object]) -> None:
    """Every weight has its tensors, and every tensor is some weight's (a bias left over is an error)."""
    wanted = {name for source in sources.values() for name in source.tensor_names}
    missing = sorted(wanted - tensors.keys())
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise CheckpointError(f"{path}: tensor {missing[0]}{more} is missing: {INCOMPLETE}, or the config "
                              "is not that of these weights")
    for name, param in spec.params():
        _check_shape(name, param, sources[name], tensors)
    further = config.get("num_nextn_predict_layers")  # layers that predict tokens after the next: not run
    numbers = range(len(spec.layers), len(spec.layers) + (further if isinstance(further, int) else 0))
    spare = tuple(f"model.layers.{number}." for number in numbers)
    tied = "lm_head.weight" if spec.tied_embeddings else ""  # some writers store the embedding a second time
    unneeded = left_out(spec.family)
    extra = sorted(name for name in tensors.keys() - wanted
                   if name != tied and not name.endswith("rotary_emb.inv_freq")
                   and not name.startswith(spare)
                   and not any(fnmatchcase(name, one) for one in unneeded))
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        raise CheckpointError(f"{path}: tensor {extra[0]}{more} has no place in a {spec.family} model "
                              "of this config: the config is not that of these weights")


def _check_shape(name: str, param: ParamSpec, source: Source, tensors: Mapping[str, StoredTensor]) -> None:
    """Each part has its rows and the weight's other axes."""
    rows, *columns = source.shape_of_each(param.shape)
    for part in source.parts:
        tensor = tensors[part.name]
        one = (rows if part.rows is None else part.rows, *columns)
        one = one[::-1] if part.transposed else one
        one = (*one[:-1], one[-1] // 32, 16) if part.scales else one  # MXFP4: bytes of blocks
        expected = (source.matrices, *one) if part.stacked else one
        if tensor.shape != expected or (part.scales and tensors[part.scales].shape != expected[:-1]):
            hint = "; it looks transposed" if tensor.shape == expected[::-1] else ""
            raise CheckpointError(
                f"{tensor.file}: wrong shape: tensor {tensor.name} is {list(tensor.shape)}, where {name} "
                f"needs {list(expected)}{hint}: the config is not that of these weights")


def _number(fields: dict[str, object]) -> object:
    """transformers writes Infinity as an object, since JSON has no such number."""
    return float(str(fields["__float__"])) if fields.keys() == {"__float__"} else fields


def read_json(path: Path) -> dict[str, object]:
    """The object that a JSON file holds; CheckpointError when it holds none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_hook=_number)
    except ValueError as error:
        raise CheckpointError(f"{path}: not readable as JSON ({error}); {INCOMPLETE}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: holds a {type(value).__name__}, not an object")
    return value
