"""Published shapes by name, as configs: what load_format "dummy" and the planner run without any download.

Each is the public config.json of the model, without what does not shape it. They are data: a TOML file a
vendor. A table [like.NAME] holds what several models share and may be like another; `sizes` are hidden_size,
intermediate_size, num_hidden_layers, num_attention_heads and num_key_value_heads; `none` lists fields that
the config states as null; `also` are the model's other names and its Hub ids; `stored_as` is the format of
its published matrices (`spec.quant.FORMATS`), where that is no plain float; `stored_plain` is ModelSpec's.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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


def _read(path: Path) -> Iterator[tuple[str, Shape]]:
    with path.open("rb") as file:
        data = tomllib.load(file)

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
        yield name, Shape(config=config, **{key: fields[key] for key in _NOTES if key in fields})


PUBLISHED: Mapping[str, Shape] = {
    name: shape for path in sorted(Path(__file__).parent.glob("*.toml")) for name, shape in _read(path)}
SHAPES: Mapping[str, Config] = {name: shape.config for name, shape in PUBLISHED.items()}
