"""Two load tests side by side, ours or `vllm bench serve`'s; those that differ in more than their server are
refused.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ridgeline.base.errors import ConfigError

_LOAD = ("request_rate", "burstiness", "max_concurrency", "num_prompts", "backend")
_OURS = ("dataset", "arrival", "rate_scale", "length_scale", "seed", "asked_duration_s", "patience_s")
_SAME = 0.01  # mean lengths of answered requests may differ by this share
_NUMBERS = ("request_throughput", "request_goodput", "output_throughput", "total_token_throughput")


def compare(paths: tuple[Path, Path]) -> str:
    """A table of both and their ratio. ConfigError names every difference in load, lengths or percentiles."""
    one, two = (_load(path) for path in paths)
    differences = list(_differences(one, two))
    if differences:
        raise ConfigError(f"{paths[0]} and {paths[1]} cannot be compared: " + "; ".join(differences))
    rows = [(name, one[name], two[name]) for name in (*_NUMBERS, *sorted(k for k in one if k.endswith("_ms")))
            if _number(one.get(name)) and _number(two.get(name))]
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{'':{width}}{paths[0].stem[:14]:>16}{paths[1].stem[:14]:>16}{'second/first':>14}"]
    lines += [f"{name:{width}}{a:16.2f}{b:16.2f}{f'{b / a:.3f}' if a else '-':>14}" for name, a, b in rows]
    lines += [f"{path}: {found['failed']} of {found['num_prompts']} failed"
              for path, found in zip(paths, (one, two), strict=True) if found.get("failed")]
    return "\n".join(lines)


def _load(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} is no result of a load test: {error}") from None
    if not isinstance(found, dict) or not {"completed", "total_input_tokens", "duration"} <= set(found):
        raise ConfigError(f"{path} is no result of a load test: it lacks completed or total_input_tokens")
    return found


def _differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> Iterator[str]:
    mine, other = one.get("ridgeline", {}), two.get("ridgeline", {})
    pairs = [(name, one.get(name), two.get(name)) for name in _LOAD]
    if mine and other:
        pairs += [(name, mine.get(name), other.get(name)) for name in (*_OURS, "goodput_ms")]
    yield from (f"{name} is {a} and {b}" for name, a, b in pairs if a != b)
    for kind in ("input", "output"):
        a, b = (found[f"total_{kind}_tokens"] / max(found["completed"], 1) for found in (one, two))
        if abs(a - b) > _SAME * max(a, b):
            yield f"answered requests have {a:.1f} and {b:.1f} {kind} tokens on average"
    a_keys, b_keys = ({key for key in found if key[0] == "p" and key.endswith("_ms")} for found in (one, two))
    if a_keys != b_keys:
        yield f"only one has {', '.join(sorted(a_keys ^ b_keys))}"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
