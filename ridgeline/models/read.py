"""Typed reading of a checkpoint's config: every field is used, listed as inert, or unknown.

An unknown field is refused unless its value is None or False: a field that a family ignores may change what
the model computes. Knows no family.
"""

from collections.abc import Callable, Iterable, Mapping
from types import UnionType
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import LayerSpec, ModelSpec

Blocks = tuple[tuple[str, BlockSpec], ...]
Read = tuple[list[Blocks], int, float, int]  # blocks of each layer, hidden size, norm eps, context
Reader = Callable[["ConfigReader"], Read]

# Fields that change nothing in inference: training, bookkeeping, other libraries' notes.
INERT = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_flash_attn_2_enabled",
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "base_model_name_or_path",
    "bos_token", "chunk_size_feed_forward", "embd_pdrop", "eos_token", "full_attn_mod", "hidden_dropout",
    "id2label", "initializer_range", "interpolate_factor", "is_decoder", "is_llama_config", "label2id",
    "max_sequence_length", "model_type", "pad_token", "pretraining_tp", "problem_type", "resid_pdrop",
    "return_dict", "sep_token_id", "tokenizer_class", "torchscript", "transformers.js_config",
    "transformers_version", "unk_token_id", "unsloth_fixed", "unsloth_version", "use_cache",
    # defaults of generation that older writers put beside the model's own fields
    "diversity_penalty", "encoder_no_repeat_ngram_size", "length_penalty", "max_length", "min_length",
    "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_return_sequences", "pruned_heads",
    "repetition_penalty", "temperature", "top_k", "top_p", "typical_p",
})


class UnknownFieldError(ConfigError):
    """Fields that nobody read: `names`; `known` are those that the family reads."""

    def __init__(self, message: str, *, names: tuple[str, ...], known: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names, self.known = names, known


class ConfigReader:
    """Reads fields of one dict and remembers them. `where` names the dict in errors ("config.json").

    A field that is None counts as absent. Without a default an absent field is a ConfigError.
    """

    def __init__(self, fields: Mapping[str, object], where: str) -> None:
        self._fields = fields
        self._where = where
        self._seen: set[str] = set()

    def renamed(self, names: Mapping[str, str]) -> "ConfigReader":
        """The same fields, unread, some under the names that another family has for them."""
        return ConfigReader({names.get(name, name): value for name, value in self._fields.items()},
                            self._where)

    def has(self, name: str) -> bool:
        """True when the field is there, even as None."""
        return name in self._fields

    def integer(self, name: str, default: int | None = None) -> int:
        """A whole number; 4096.0 counts."""
        value = self.optional_integer(name, default)
        if value is None:
            raise self._absent(name)
        return value

    def size(self, name: str, default: int | None = None) -> int:
        """A whole number of at least one."""
        value = self.integer(name, default)
        if value < 1:
            raise self._wrong(name, value, "at least 1")
        return value

    def optional_size(self, name: str) -> int | None:
        """A whole number of at least one; None where the field is absent or None."""
        return None if self.optional_integer(name) is None else self.size(name)

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        """A whole number, or None when the field is None; the default only when it is absent."""
        value = self._take(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise self._wrong(name, value, "a whole number")
        if value is not None and value < 0:
            raise self._wrong(name, value, "at least 0")
        return default if value is None and not self.has(name) else value

    def number(self, name: str, default: float | None = None) -> float:
        """A number."""
        value = self.optional_number(name)
        if value is None:
            value = default
        if value is None:
            raise self._absent(name)
        return value

    def optional_number(self, name: str) -> float | None:
        """A number or None."""
        value = self._take(name, None)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self._wrong(name, value, "a number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """True or False."""
        value = self._take(name, default)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._take(name, default)
        if value is None and default is None:
            raise self._absent(name)
        value = default if value is None else value
        if not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def numbers(self, name: str) -> tuple[float, ...]:
        """A list of numbers; () when absent."""
        return tuple(float(v) for v in self._items(name, int | float, "a list of numbers"))

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; () when absent."""
        return tuple(str(v) for v in self._items(name, str, "a list of strings"))

    def token_ids(self, name: str) -> tuple[int, ...]:
        """One token id or a list of them, negative ones (meaning none) left out; () when absent."""
        value = self._take(name, None)
        ids = value if isinstance(value, list | tuple) else () if value is None else (value,)
        for item in ids:
            if not isinstance(item, int) or isinstance(item, bool):
                raise self._wrong(name, value, "a token id or a list of them")
        return tuple(dict.fromkeys(item for item in ids if item >= 0))

    def stated(self, name: str) -> object:
        """The field as it is, where a word may stand for a number; not yet read."""
        return self._fields.get(name)

    def section(self, name: str) -> "ConfigReader | None":
        """A nested dict, to be finished by the caller; None when absent or empty."""
        value = self._take(name, None)
        if not value:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return ConfigReader(value, f"{self._where}: {name}")

    def fixed(self, name: str, value: bool | float | str) -> None:
        """A field that must be absent or have the one value that we do."""
        if self._take(name, value) not in (value, None):
            raise self.refuse(name, f"not supported in this family: {value} is")

    def inert(self, names: Iterable[str]) -> None:
        """Fields that are known and change nothing."""
        self._seen.update(names)

    def finish(self) -> None:
        """Refuse what nobody read."""
        unread = {name: value for name, value in self._fields.items() if name not in self._seen}
        unknown = {name: value for name, value in unread.items() if value is not None and value is not False}
        if unknown:
            listed = ", ".join(f"{name} = {_short(value)}" for name, value in sorted(unknown.items()))
            first = min(unknown)
            raise UnknownFieldError(
                f"{self._where}: unknown field {listed}: it may change the results. "
                f"If it does not, run with hf_overrides={{{first!r}: None}} to drop it",
                names=tuple(unknown), known=tuple(self._seen - INERT))

    def refuse(self, name: str, why: str) -> ConfigError:
        """The error for a field whose value is known and not supported; to be raised by the caller."""
        return ConfigError(f"{self._where}: {name} = {_short(self._fields.get(name))}: {why}")

    def _take(self, name: str, default: object) -> object:
        self._seen.add(name)
        return self._fields.get(name, default)

    def _items(self, name: str, kind: type | UnionType, words: str) -> tuple[Any, ...]:
        value = self._take(name, None)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(isinstance(item, kind) for item in value):
            raise self._wrong(name, value, words)
        return tuple(value)

    def _absent(self, name: str) -> ConfigError:
        return ConfigError(f"{self._where}: the field {name} is missing: add it, or give it by "
                           f"hf_overrides={{{name!r}: ...}}")

    def _wrong(self, name: str, value: object, words: str) -> ConfigError:
        return ConfigError(f"{self._where}: {name} = {_short(value)} should be {words}")


def read_model(config: ConfigReader, family: str, read: Reader, *, tied: bool = False) -> ModelSpec:
    """The model of a config: what `read` takes from it, and what all families say alike.

    tied: whether the embedding is the head too, when the config does not say.
    """
    config.inert(INERT)
    layers, hidden, eps, max_position = read(config)
    bos, pad = config.token_ids("bos_token_id"), config.token_ids("pad_token_id")
    spec = ModelSpec(
        family=family, hidden_size=hidden, vocab_size=config.size("vocab_size"), norm_eps=eps,
        max_position=max_position, tied_embeddings=config.flag("tie_word_embeddings", tied),
        layers=tuple(LayerSpec(blocks=blocks) for blocks in layers),
        dtype=config.text("dtype", config.text("torch_dtype", "bfloat16")),
        bos_token_id=bos[0] if bos else None, eos_token_ids=config.token_ids("eos_token_id"),
        pad_token_id=pad[0] if pad else None)
    config.finish()
    return spec


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
