"""A LoRA adapter opened without torch: PEFT's folder read, checked, and put in terms of our weights.

Reads headers and JSON only; numbers are `adapters/load`'s. What is not done (DoRA, biases, whole modules
saved beside, embeddings, experts) is refused by name. Legend of a low-rank pair (Hu et al., LoRA, 2021,
section 4): y += scale B A x, with A [rank, in] and B [out, rank].
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.models.checkpoint import read_json
from ridgeline.models.families import weight_sources
from ridgeline.models.files.safetensors import read_safetensors
from ridgeline.models.files.stored import INCOMPLETE, StoredTensor
from ridgeline.models.read import ConfigReader, UnknownFieldError
from ridgeline.models.sources import Part
from ridgeline.spec.model import ModelSpec

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
ELEMENT_BYTES = 4  # pairs are held in float32
MAX_RANK = 16  # of an adapter, unless told
RANKS = 16  # the ranks of all pairs of a weight are held in whole sixteens
_PREFIX = "base_model.model."
_INERT = (
    "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "inference_mode",
    "lora_dropout", "megatron_core", "peft_version", "qalora_group_size", "revision", "task_type",
)  # fmt: skip
_STARTS = (True, False, "gaussian", "eva", "orthogonal")  # that leave the base's weights as they are
_UNDONE = {
    "fan_in_fan_out": "pairs of transposed matrices are not read",
    "lora_bias": "biases of adapters are not applied", "use_dora": "DoRA is not applied",
    "use_qalora": "QALoRA is not applied",
}  # fmt: skip
_EMPTY = {
    "alora_invocation_tokens": "activation by tokens is not done",
    "layer_replication": "layers are not repeated",
    "loftq_config": "the base's weights would have to be changed too",
    "modules_to_save": "whole modules beside the pairs are not exchanged",
    "target_parameters": "only linear layers take adapters",
    "trainable_token_indices": "embeddings are not adapted",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A linear layer of the checkpoint's own naming: rows [first, first + rows) of one of our weights, which
    has so many columns. part: how the checkpoint has these rows."""

    weight: str
    first: int
    rows: int
    columns: int
    part: Part


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One low-rank pair. a [rank, place.columns], b [place.rows, rank], as stored."""

    place: Place
    a: StoredTensor
    b: StoredTensor
    rank: int
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterFile:
    """What an adapter says of itself. base: the model that it was made for, as its config names it."""

    path: Path
    base: str
    pairs: tuple[Pair, ...]

    @property
    def rank(self) -> int:
        """The largest of its pairs."""
        return max(pair.rank for pair in self.pairs)


def places(spec: ModelSpec) -> dict[str, Place]:
    """Where a pair can stand: the linear layers of all blocks but experts, by their names in Hugging Face's
    model ("model.layers.0.self_attn.q_proj")."""
    found = {}
    params, sources = dict(spec.params()), weight_sources(spec)
    for name, param in params.items():
        source = sources[name]
        if (
            param.role != "linear"
            or len(param.shape) != 2
            or source.matrices
            or not name.startswith("layers.")
        ):
            continue
        first = 0
        for part in source.parts:
            rows = param.shape[0] if part.rows is None else part.rows
            if part.name.endswith(".weight") and not part.transposed:
                found[part.name.removesuffix(".weight")] = Place(
                    weight=name, first=first, rows=rows, columns=param.shape[1], part=part
                )
            first += rows
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What one weight, [rows, columns], takes of an adapter at most: so many ranks together, in whole RANKS.
    paired: rows of second matrices, each counted for the place that it is of."""

    rows: int
    columns: int
    ranks: int
    paired: int


def seat_shapes(spec: ModelSpec, max_rank: int) -> dict[str, Seat]:
    """By full name of the weight: pairs of the largest rank at every place."""
    by_weight: dict[str, list[Place]] = {}
    for place in places(spec).values():
        by_weight.setdefault(place.weight, []).append(place)
    params = dict(spec.params())
    return {
        name: Seat(
            rows=params[name].shape[0], columns=params[name].shape[1],
            ranks=-(-max_rank * len(pairs) // RANKS) * RANKS, paired=sum(place.rows for place in pairs),
        )
        for name, pairs in by_weight.items()
    }  # fmt: skip


def slot_bytes(
    spec: ModelSpec, max_rank: int, *, element_bytes: int = ELEMENT_BYTES, stacked: bool = False
) -> int:
    """What one adapter takes at most. stacked: as a GPU holds it (adapters/stacked.py), second matrices as
    wide as their weight."""
    return element_bytes * sum(
        seat.columns * seat.ranks + (seat.ranks * seat.rows if stacked else max_rank * seat.paired)
        for seat in seat_shapes(spec, max_rank).values()
    )


def read_adapter(folder: str | Path, spec: ModelSpec, *, max_rank: int) -> AdapterFile:
    """Open a folder that PEFT has written for a model of this spec.

    CheckpointError for files that are missing, cut short or of another model; ConfigError for what is not
    done here, and for a rank above max_rank.
    """
    folder = Path(folder)
    for name in (CONFIG_NAME, WEIGHTS_NAME):
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder}: no {name} in this folder: name one that PEFT's save_pretrained has "
                "written, with safetensors"
            )
    settings = _Settings(ConfigReader(read_json(folder / CONFIG_NAME), str(folder / CONFIG_NAME)))
    known = places(spec)
    found = _modules(folder, read_safetensors(folder / WEIGHTS_NAME))
    for module in found:
        if module not in known:
            here = any(f"{module}.weight" in source.tensor_names for source in weight_sources(spec).values())
            why = (
                "which takes no adapter here: only linear layers of blocks do, and no experts; leave it out "
                "of target_modules when the adapter is trained"
                if here
                else f"and this {spec.family} model has no such layer: the adapter is for another model"
            )
            raise CheckpointError(f"{folder}: a pair for {module}, {why}")
    settings.check(str(folder), set(found), set(known))
    pairs = tuple(_pair(folder, module, found[module], known[module], settings) for module in sorted(found))
    largest = max(pairs, key=lambda pair: pair.rank)
    if largest.rank > max_rank:
        raise ConfigError(
            f"{folder}: its rank is {largest.rank} and slots have room for {max_rank}: start with "
            f"--max-lora-rank {largest.rank}"
        )
    return AdapterFile(path=folder, base=settings.base, pairs=pairs)


class _Settings:
    """The config of an adapter."""

    def __init__(self, config: ConfigReader) -> None:
        config.fixed("peft_type", "LORA")
        config.fixed("bias", "none")
        for name, why in _UNDONE.items():
            if config.flag(name, False):
                raise config.refuse(name, why)
        for name, why in _EMPTY.items():
            config.inert((name,))
            if config.stated(name):
                raise config.refuse(name, why)
        config.inert(
            (
                *_INERT,
                "init_lora_weights",
                "target_modules",
                "exclude_modules",
                "layers_to_transform",
                "layers_pattern",
                "rank_pattern",
                "alpha_pattern",
            )
        )
        if config.stated("init_lora_weights") not in (None, *_STARTS):
            raise config.refuse(
                "init_lora_weights",
                "such a start changes the base's weights too; convert the "
                "adapter to plain LoRA when it is saved",
            )
        self._rank, self._alpha = config.size("r"), config.number("lora_alpha", 8.0)
        self._root = config.flag("use_rslora", False)
        self._ranks, self._alphas = (_numbers(config, name) for name in ("rank_pattern", "alpha_pattern"))
        self._targets, self._excluded = (
            _matcher(config, name) for name in ("target_modules", "exclude_modules")
        )
        self._listed = config.stated("target_modules")
        self._layers = _layers(config)
        base = config.stated("base_model_name_or_path")
        self.base = base if isinstance(base, str) else ""
        try:
            config.finish()
        except UnknownFieldError as error:
            raise ConfigError(
                f"unknown field {', '.join(error.names)} in an adapter's config: it may change the "
                "results; take it out of the file if it does not"
            ) from None

    def rank(self, module: str) -> int:
        return int(_by_pattern(self._ranks, module, self._rank))

    def scale(self, module: str) -> float:
        """Of the module's pair; rank-stabilised LoRA (Kalajdzievski, 2023) divides by the root of the
        rank."""
        rank = self.rank(module)
        return _by_pattern(self._alphas, module, self._alpha) / (sqrt(rank) if self._root else rank)

    def check(self, where: str, found: set[str], known: set[str]) -> None:
        """The file holds what the config targets, and the model has it."""
        if isinstance(self._listed, list | tuple):
            for target in self._listed:
                if not any(name == target or name.endswith(f".{target}") for name in known):
                    raise CheckpointError(
                        f"{where}: target_modules has {target!r}, and this model has no such "
                        "linear layer in its blocks that takes adapters"
                    )
        wanted = {
            name
            for name in known
            if self._targets(name)
            and not self._excluded(name)
            and (self._layers is None or int(name.split(".")[2]) in self._layers)
        }
        missing = sorted(wanted - found)
        if missing or not found:
            what = f"no pair for {missing[0]}, which target_modules asks for" if missing else "no pair at all"
            raise CheckpointError(f"{where}: {what}: {INCOMPLETE}")


def _numbers(config: ConfigReader, name: str) -> dict[str, float]:
    value = config.stated(name) or {}
    if not isinstance(value, Mapping) or not all(
        isinstance(number, int | float) and number > 0 for number in value.values()
    ):
        raise config.refuse(name, "should be an object of numbers above 0")
    return {_regex(config, name, str(key)): float(number) for key, number in value.items()}


def _regex(config: ConfigReader, name: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise config.refuse(name, f"{text!r} is no regular expression ({error})") from None
    return text


def _by_pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The first pattern that matches the end of a module's name, from a dot on."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _matcher(config: ConfigReader, name: str) -> Callable[[str], bool]:
    """Which modules a field means: a list of last parts, a regular expression, or all linear layers."""
    value = config.stated(name)
    if value == "all-linear":
        return lambda module: True
    if isinstance(value, str):
        pattern = re.compile(_regex(config, name, value))
        return lambda module: pattern.fullmatch(module) is not None
    if value is not None and not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
        raise config.refuse(name, "should be a list of names or a regular expression")
    ends = tuple(value or ())
    return lambda module: any(module == end or module.endswith(f".{end}") for end in ends)


def _layers(config: ConfigReader) -> frozenset[int] | None:
    """Numbers of the layers that have pairs; None for all."""
    value = config.stated("layers_to_transform")
    if value is None or value == []:
        return None
    numbers = [value] if isinstance(value, int) else value
    if not isinstance(numbers, list) or not all(isinstance(number, int) for number in numbers):
        raise config.refuse("layers_to_transform", "should be a number or a list of numbers")
    return frozenset(numbers)


def _modules(folder: Path, tensors: Mapping[str, StoredTensor]) -> dict[str, dict[str, StoredTensor]]:
    """The two matrices of each module, as "A" and "B"."""
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight", name)
        if match is None:
            raise CheckpointError(
                f"{folder}: tensor {name} is none of a linear layer's low-rank pair, and nothing "
                "else of an adapter is applied"
            )
        found.setdefault(match[1], {})[match[2]] = tensor
    return found


def _pair(
    folder: Path, module: str, found: Mapping[str, StoredTensor], place: Place, settings: _Settings
) -> Pair:
    rank = settings.rank(module)
    for side, shape in (("A", (rank, place.columns)), ("B", (place.rows, rank))):
        tensor = found.get(side)
        if tensor is None:
            raise CheckpointError(f"{folder}: lora_{side} of {module} is missing: {INCOMPLETE}")
        if tensor.shape != shape:
            raise CheckpointError(
                f"{folder}: tensor {tensor.name} is {list(tensor.shape)}, where this model and "
                f"this config need {list(shape)}: the adapter is for another model"
            )
    return Pair(place=place, a=found["A"], b=found["B"], rank=rank, scale=settings.scale(module))
