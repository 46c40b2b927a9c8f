"""What a plan is asked: a workload on a deployment, checked by the flags' names. Knows no arithmetic of
plans."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from types import MappingProxyType

from ridgeline.base.errors import ConfigError
from ridgeline.base.units import parse_bytes

WEIGHTS = ("bf16", "fp8", "int8", "int4")
KV_BYTES = {"bf16": 2, "fp8": 1, "int8": 1}  # of a number in each format of the cache
CACHES = tuple(KV_BYTES)
ARRIVALS = ("steady", "waves", "bursts")
_NONE: Mapping[str, object] = MappingProxyType({})
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6}


def parse_seconds(text: str) -> float:
    """'500ms', '0.5s' or '0.5' as seconds."""
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)\s*([a-zµ]*)\s*", text)
    if match is None or match.group(2) not in _SECONDS:
        raise ConfigError(f"cannot read {text!r} as a time: write it like 500ms or 0.5s")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def parse_target(text: str) -> float:
    """A latency target as seconds; a bare number from ten on is refused: it was meant in milliseconds."""
    seconds = parse_seconds(text)
    if text.strip()[-1] in "0123456789." and seconds >= 10:
        raise ConfigError(f"{text} without a unit is in seconds: write {text}ms, or {text}s if that is meant")
    return seconds


def parse_link(text: str) -> float:
    """'50GB/s' or '400Gb/s' (a small b is bits) as bytes a second."""
    match = re.fullmatch(r"\s*([0-9.]+\s*[kKMGT]?i?)([bB]?)(/s|ps)?\s*", text)
    if match is None:
        raise ConfigError(f"cannot read {text!r} as a link: write it like 50GB/s or 400Gb/s")
    return parse_bytes(match.group(1) + match.group(2).upper()) / (8 if match.group(2) == "b" else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculate:
    """gamma drafts a step, each accepted with chance alpha and costing `draft` of a step of the target."""

    gamma: int
    alpha: float
    draft: float

    @property
    def steps(self) -> float:
        """What the drafts of a step cost, in steps of the target."""
        return self.gamma * self.draft

    def __post_init__(self) -> None:
        _need(1 <= self.gamma <= 64, f"--speculate gamma is {self.gamma}: it takes 1 to 64 drafts")
        _need(0 <= self.alpha <= 1, f"--speculate alpha is {self.alpha:g}: a chance is from 0 to 1")
        _need(0 <= self.draft <= 1, f"--speculate draft is {self.draft:g}: a draft costs from 0 to 1 step")


def parse_speculate(text: str) -> Speculate:
    """'gamma=4,alpha=.8,draft=.05'; what is left out is that."""
    given = {"gamma": 4.0, "alpha": 0.8, "draft": 0.05}
    for name, _, value in (part.strip().partition("=") for part in text.split(",")):
        try:
            _need(name in given, f"--speculate has no {name!r}: it takes {', '.join(given)}")
            given[name] = float(value)
        except ValueError as error:
            raise ConfigError(f"--speculate {text}: {error}") from None
    _need(given["gamma"].is_integer(), f"--speculate gamma is {given['gamma']:g}: drafts are whole")
    return Speculate(gamma=int(given["gamma"]), alpha=given["alpha"], draft=given["draft"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """images a request, each cut into `tiles`. encoder: its name, None for the model's own. pooling: patches
    that become one visual token, None for the model's own."""

    images: int
    tiles: int | None = None
    encoder: str | None = None
    pooling: int | None = None

    def __post_init__(self) -> None:
        for name, flag in (("images", "--images"), ("tiles", "--tiles"), ("pooling", "--pooling")):
            value = getattr(self, name)
            _need(value is None or value > 0, f"{flag} is {value}: it must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """All that shapes a plan. None: decided by the plan, which says how.

    gpus: devices in all. prompt, output: tokens a request (of the prompt, those that are text). batch:
    sequences decoded together over the whole deployment; rate: requests a second; concurrency: users who each
    have one request in flight. weight_only: packed weights are unpacked before 16-bit products although the
    device could multiply them. memory_bytes: of a device, instead of the marketed size. shared_prefix: tokens
    that begin every prompt, stored and computed once; read_prefix_once: read once a step too, as only a
    kernel for it does. prefix_hit: share of a prompt found in the cache. link_bytes_per_s: between prefill
    and decode devices. overrides: fields of the model's config. skew: of expert routing. price_usd_per_hour:
    of one device. max_loras: adapters beside the model, of max_lora_rank at the most; each sequence
    wears one. arrivals: how the prompts of a closed batch come in: "steady", each when an answer ends;
    "waves", together, as answers of equal lengths end; "bursts", together and before any second token.
    """

    model: str
    gpu: str
    gpus: int | None = None
    prompt: int = 2048
    output: int = 256
    batch: int | None = None
    rate: float | None = None
    concurrency: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    dp: int | None = None
    weights: str | None = None
    weight_only: bool = False
    kv: str = "bf16"
    arrivals: str = "steady"
    memory_bytes: int | None = None
    workspace_bytes: int | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    pictures: Pictures | None = None
    shared_prefix: int = 0
    read_prefix_once: bool = False
    prefix_hit: float = 0.0
    prompt_logprobs: bool = False
    speculate: Speculate | None = None
    disaggregate: bool = False
    link_bytes_per_s: float | None = None
    skew: float = 0.0
    price_usd_per_hour: float | None = None
    max_loras: int = 0
    max_lora_rank: int | None = None
    overrides: Mapping[str, object] = field(default_factory=lambda: _NONE)

    def __post_init__(self) -> None:
        for name in ("gpus", "prompt", "output", "batch", "rate", "concurrency", "tp", "pp", "ep", "dp",
                     "memory_bytes", "ttft_s", "tpot_s", "link_bytes_per_s", "max_lora_rank"):
            value = getattr(self, name)
            _need(value is None or 0 < value < inf, f"{flag_of(name)} is {value}: it must be above 0")
        for name in ("shared_prefix", "workspace_bytes", "skew", "price_usd_per_hour", "max_loras"):
            value = getattr(self, name)
            _need(value is None or 0 <= value < inf, f"{flag_of(name)} is {value}: it cannot be negative")
        _need(self.memory_bytes is None or self.memory_bytes >= 2**20,
              f"--memory {self.memory_bytes} is in bytes, and less than any device has: write it like 80GB "
              "(1e9 bytes each) or 74.5GiB (2^30 each)")
        self._check_choices()
        self._check_together()

    def _check_choices(self) -> None:
        _need(self.weights in (None, *WEIGHTS),
              f"--weights {self.weights} is not known: use {', '.join(WEIGHTS)}")
        _need(self.kv in CACHES, f"--kv {self.kv} is not known: use {', '.join(CACHES)}")
        _need(self.arrivals in ARRIVALS,
              f"--arrivals {self.arrivals} is not known: use {', '.join(ARRIVALS)}")
        _need(0 <= self.prefix_hit < 1, f"--prefix-hit is {self.prefix_hit:g}: a share is from 0 to below 1")
        given = [flag for flag, value in (("--batch", self.batch), ("--rate", self.rate),
                                          ("--concurrency", self.concurrency)) if value is not None]
        _need(len(given) < 2,
              f"{' and '.join(given)} contradict one another: each decides the batch; give one")

    def _check_together(self) -> None:
        _need(self.max_loras > 0 or self.max_lora_rank is None, "--max-lora-rank needs --max-loras")
        _need(self.shared_prefix < self.prompt or not self.shared_prefix,
              f"--shared-prefix {self.shared_prefix} is not below --prompt {self.prompt}: a prompt needs a "
              "token of its own")
        _need(not (self.shared_prefix and self.prefix_hit), "--shared-prefix and --prefix-hit contradict one "
              "another: both say what the cache holds of a prompt; give one")
        _need(self.shared_prefix > 0 or not self.read_prefix_once, "--read-prefix-once needs --shared-prefix")
        _need(self.arrivals == "steady" or not (self.disaggregate or self.rate),
              f"--arrivals {self.arrivals} is of a closed batch: leave --rate and --disaggregate out")
        _need(self.disaggregate or self.link_bytes_per_s is None, "--link is of --disaggregate: give both")
        _need(not self.weight_only or self.weights not in (None, "bf16"),
              "--weight-only needs --weights fp8, int8 or int4: bf16 is multiplied as it is")


def flag_of(name: str) -> str:
    """The flag behind a field: without the unit that the field's name ends in."""
    for unit in ("_bytes_per_s", "_usd_per_hour", "_bytes", "_s"):
        name = name.removesuffix(unit)
    return "--" + name.replace("_", "-")


def _need(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigError(message)
