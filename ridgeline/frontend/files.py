"""A model's tokenizer files, or a GGUF file's metadata, as a text layer.

Owns what these files mean. Reads no weights and no config of the model.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tokenizers

from ridgeline.base.errors import CheckpointError, ConfigError
from ridgeline.frontend.gguf import tokenizer_from_gguf
from ridgeline.frontend.template import ChatTemplate
from ridgeline.frontend.text import TextLayer
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.models.files.gguf import read_gguf
from ridgeline.models.resolve import resolve

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "cls_token", "sep_token", "mask_token")


def text_from_folder(folder: Path, *, chat_template: str | None = None) -> TextLayer:
    """The text layer of a folder; without a tokenizer.json, one that takes token ids only.

    chat_template: a file or Jinja text that replaces the folder's own.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return TextLayer()
    config = _json_object(folder / "tokenizer_config.json")
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise CheckpointError(f"{path}: not a tokenizer that can be read: {error}") from None
    tokenizer = Tokenizer(
        backend,
        bos=_spelling(config.get("bos_token")),
        eos=_spelling(config.get("eos_token")),
        add_bos=config["add_bos_token"] if isinstance(config.get("add_bos_token"), bool) else None,
        special=_special_names(config),
    )
    return _with_template(tokenizer, chat_template, _folder_template(folder, config))


def text_from_gguf(metadata: Mapping[str, Any], *, chat_template: str | None = None) -> TextLayer:
    """The text layer that a GGUF file's metadata describes; one for token ids only without a tokenizer."""
    if "tokenizer.ggml.model" not in metadata:
        return TextLayer()
    key = "tokenizer.chat_template"
    own = {"default": metadata[key]} if key in metadata else {}
    own |= {name[len(key) + 1 :]: text for name, text in metadata.items() if name.startswith(key + ".")}
    return _with_template(tokenizer_from_gguf(metadata), chat_template, own)


def load_text(
    path: Path | None, *, tokenizer: str | None = None, chat_template: str | None = None
) -> TextLayer:
    """The text layer of a local model: a folder, a GGUF file, or nothing (a published shape).

    tokenizer: another place to take it from, anything that names a model; the template stays the model's own
    when that place has none.
    """
    own = _load(path, chat_template)
    if tokenizer is None:
        return own
    other = _load(resolve(tokenizer, load_format="dummy").path, chat_template)
    if other.tokenizer is None:
        raise ConfigError(f"--tokenizer {tokenizer}: there is no tokenizer there")
    if other.template is None and own.template is not None:
        return replace(
            other, template=ChatTemplate(own.template.sources, tokens=other.tokenizer.named_tokens)
        )
    return other


def _load(path: Path | None, chat_template: str | None) -> TextLayer:
    if path is None:
        return TextLayer()
    if path.is_dir():
        packed = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file() or (path / "tokenizer.json").is_file() or len(packed) != 1:
            return text_from_folder(path, chat_template=chat_template)
        path = packed[0]
    return text_from_gguf(read_gguf(path).metadata, chat_template=chat_template)


def _with_template(tokenizer: Tokenizer, given: str | None, own: Mapping[str, str]) -> TextLayer:
    source = {"default": _template_text(given)} if given is not None else own
    template = ChatTemplate(source, tokens=tokenizer.named_tokens) if source else None
    return TextLayer(tokenizer=tokenizer, template=template)


def _template_text(given: str) -> str:
    """--chat-template is Jinja itself when it has a Jinja bracket, else the path of a file."""
    if "{{" in given or "{%" in given:
        return given
    path = Path(given)
    if not path.is_file():
        raise ConfigError(f"--chat-template {given}: no such file")
    return path.read_text(encoding="utf-8")


def _folder_template(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Templates by name. chat_template.jinja beats chat_template.json, which beats tokenizer_config.json."""
    source: Any = config.get("chat_template")
    older = _json_object(folder / "chat_template.json").get("chat_template")
    source = older if older is not None else source
    single = folder / "chat_template.jinja"
    if single.is_file():
        source = single.read_text(encoding="utf-8")
    found = {"default": source} if isinstance(source, str) else {}
    if isinstance(source, list):
        found = {entry["name"]: entry["template"] for entry in source}
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    return found


def _special_names(config: Mapping[str, Any]) -> Iterable[str]:
    """Everything that the tokenizer's config calls special; tokenizer.json does not always say so too."""
    for name in _NAMED:
        if text := _spelling(config.get(name)):
            yield text
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key) or []
        for entry in listed.values() if isinstance(listed, Mapping) else listed:
            if text := _spelling(entry):
                yield text
    for entry in (config.get("added_tokens_decoder") or {}).values():
        if entry.get("special"):
            yield entry["content"]


def _spelling(entry: Any) -> str | None:
    """A token is written as a string or as an object with its content."""
    if isinstance(entry, Mapping):
        entry = entry.get("content")
    return entry if isinstance(entry, str) and entry else None


def _json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object")
    return value
