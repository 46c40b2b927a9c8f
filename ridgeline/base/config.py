"""EngineConfig: what a user may set, frozen; `resolve()` elsewhere turns it into numbers once at start.

The only file that reads environment variables.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Flags in physical units. None means: choose from the model and the machine, and say what was chosen.

    model: a local folder, a GGUF file, a Hub id, or a published shape name with load_format "dummy".
    device: "auto" (a GPU where there is one), "cpu" or "cuda". dtype: "auto" (the fast path of the device),
    "float32" (exact, the reference numerics) or "bfloat16". kv_cache_dtype: "auto", "float32" or "bfloat16".
    kv_cache_bytes: the arena. host_kv_bytes: of host memory for what the arena has no room for, 0 for none.
    kv_watermark_bytes: of the arena, left free when a request starts beside others. threads: compute threads.
    load_format: "auto" or "dummy". block_tokens: tokens of a block of the largest cache group, None for what
    the device's kernels read best. hf_overrides: fields that replace those of the checkpoint's config; None
    drops one. speculate: "ngram" (what followed these tokens before) or "draft:MODEL" (a smaller model of the
    same vocabulary) drafts tokens that a step then verifies; speculate_max: of a sequence in a step. cache:
    False runs the naive quadratic path that recomputes everything at each step (the slow twin). ttft_s,
    tpot_s: targets, what a request is promised; overload: "queue", "shed" or "degrade" requests that are
    certain to miss the first. jump_ahead: False takes a step for each token even where a grammar leaves no
    choice (the slow twin). lora: adapters to load at the start, (name, folder) each; max_loras: how many may
    be loaded at once, also later by an admin call, None for those of `lora` alone; max_lora_rank: of the
    largest. deterministic: a request's numbers are the same to the bit, whatever runs beside it, however it
    is cut and whatever is found in the cache.
    """

    model: str | None = None
    tokenizer: str | None = None
    load_format: str = "auto"
    revision: str | None = None
    hf_overrides: Mapping[str, object] | None = None
    device: str = "auto"
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"
    quantization: str | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    kv_cache_bytes: int | None = None
    host_kv_bytes: int = 0
    kv_watermark_bytes: int = 0
    block_tokens: int | None = None
    prefix_caching: bool = True
    cache: bool = True
    policy: str = "fcfs"
    ttft_s: float | None = None
    tpot_s: float | None = None
    overload: str = "queue"
    speculate: str | None = None
    speculate_max: int = 4
    jump_ahead: bool = True
    lora: Sequence[tuple[str, str]] = ()
    max_loras: int | None = None
    max_lora_rank: int | None = None
    threads: int | None = None
    seed: int = 0
    deterministic: bool = False
    trace_file: str | None = None
    trace_texts: bool = False
    chat_template: str | None = None
    progress: bool = True


def cache_dir() -> Path:
    """Where downloads, repacked weights and built kernels live.

    $RIDGELINE_CACHE, else $XDG_CACHE_HOME/ridgeline, else ~/.cache/ridgeline.
    """
    own = os.environ.get("RIDGELINE_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"


def api_keys() -> tuple[str, ...]:
    """The server's key: $RIDGELINE_API_KEY, which stays out of the process list."""
    key = os.environ.get("RIDGELINE_API_KEY")
    return (key,) if key else ()


def hub_endpoint() -> str:
    """The Hub's address: $HF_ENDPOINT or the public one."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def hub_token() -> str | None:
    """The Hub token: $HF_TOKEN, or the file that the Hub's own client writes."""
    token = os.environ.get("HF_TOKEN")
    if token:
        return token
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    path = home / "token"
    return path.read_text().strip() or None if path.is_file() else None


def hub_offline() -> bool:
    """True when $HF_HUB_OFFLINE asks never to touch the network."""
    return os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0")


def compiler() -> list[str]:
    """The C compiler's command that $CC holds, split into words as a shell does; empty when there is none.

    Raises ConfigError when the words cannot be told apart.
    """
    given = os.environ.get("CC", "")
    try:
        return shlex.split(given)
    except ValueError as error:
        raise ConfigError(f"CC={given!r} is no command ({error}): mend its quotes, or unset it") from None
