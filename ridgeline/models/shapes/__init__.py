"""Published shapes by name, as configs: what load_format "dummy" and the planner run without any download.

Each is the public config.json of the model, without what does not shape it. They are data: a TOML file a
vendor. A table [like.NAME] holds what several models share and may be like another; `sizes` are hidden_size,
intermediate_size, num_hidden_layers, num_attention_heads and num_key_value_heads; `none` lists fields that
the config states as null; `also` are the model's other names and its Hub ids; `stored_as` is the format of
its published matrices (`spec.quant.FORMATS`), where that is no plain float; `stored_plain` is ModelSpec's.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Config = Mapping[str, object]
_SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads")
_NOTES = ("also", "stored_as", "stored_plain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One published model: its config, its other names, the format of its matrices ("" for plain floats)."""

    config: Config
    also: tuple[str, ...] = ()
    stored_as: str = ""
    stored_plain: tuple[str, ...] = ()


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `over` beside and over those of `base`; sections are merged field by field."""
    both = {name: _merged(base[name], value) for name, value in over.items()
            if isinstance(value, Mapping) and isinstance(base.get(name), Mapping)}
    return {**base, **over, **both}


@cache
def _files() -> Mapping[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("*.toml"))}


@cache
def _shapes(path: Path) -> Mapping[str, Shape]:
    """The models of a vendor's file."""
    data = tomllib.loads(_files()[path])
    found = {}

    def whole(entry: Mapping[str, Any]) -> dict[str, Any]:
        base = whole(data["like"][entry["like"]]) if "like" in entry else {}
        sizes = dict(zip(_SIZES, entry.get("sizes", ()), strict=False))
        stated = {name: tuple(value) if name in ("also", "stored_plain") else value for name,
                  value in entry.items()
                  if name not in ("like", "sizes", "none")}
        return _merged(base, dict.fromkeys(entry.get("none", ())) | sizes | stated)

    for name, entry in data["models"].items():
        fields = whole(entry)
        config = {key: value for key, value in fields.items() if key not in _NOTES}
        found[name] = Shape(config=config, **{key: fields[key] for key in _NOTES if key in fields})
    return found


class _Published(Mapping[str, Shape]):
    """All shapes by their own names; one that is asked for is read without the other vendors' files."""

    def __getitem__(self, name: str) -> Shape:
        header = re.compile(rf'^(\[models\.)?"?{re.escape(name)}"?( = {{|\])', re.MULTILINE)
        for path, text in _files().items():
            if header.search(text) and name in _shapes(path):
                return _shapes(path)[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for path in _files() for name in _shapes(path))

    def __len__(self) -> int:
        return sum(len(_shapes(path)) for path in _files())


class _Configs(Mapping[str, Config]):
    """The configs of PUBLISHED."""

    def __getitem__(self, name: str) -> Config:
        return PUBLISHED[name].config

    def __iter__(self) -> Iterator[str]:
        return iter(PUBLISHED)

    def __len__(self) -> int:
        return len(PUBLISHED)


PUBLISHED: Mapping[str, Shape] = _Published()
SHAPES: Mapping[str, Config] = _Configs()
