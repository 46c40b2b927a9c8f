"""What a machine reaches of its floors: assumed until a calibration says better. A floor is never scaled by
these; an estimate always is, and says where each factor comes from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from math import exp, log
from types import MappingProxyType
from typing import Any

ASSUMED, FITTED, MEASURED = "assumed", "fitted", "measured"
_ALL_ASSUMED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Factors between floors and estimates.

    bandwidth: share of the memory's bytes/s that a decode step reaches; experts, cache: the same of routed
    experts and of attention's cache. prefill, encoder: shares of the dense peak that a prompt and a vision
    encoder reach; experts_prefill, attention: the same of routed experts and of attention's pairs.
    narrow: what each halving of a product's numbers keeps of these shares; unpack: what each halving of
    weights that are unpacked first keeps of the bandwidth's. step_s: a step's time beside its kernels;
    row_s: what each of its rows adds to that. launch_s: of a kernel beside its bytes and FLOPs; packed_s,
    blocked_s: on top, of one whose activations are quantized, and of one that quantizes them by block;
    expert_s: of a layer that routes to experts; each_s: of each expert that it reads, beside its bytes;
    eager_s: a host's time to launch a kernel of a step with a prompt, which is not a recorded graph.
    stream: times a block's small operations move its input. collective_s: latency of one collective;
    hop_s: of each further hop around a ring; link: share of a link's bytes/s that collectives reach.
    skew: of the routers' choices (`spec.cost.expected_distinct`). mix: share of the other prompts of a
    wave that a decode waits for. first_s: what a first token takes beside its prompt's work and its
    queue. tile_s: a processor's time to cut and resize one image tile. workspace_bytes: memory beside
    weights and cache. sources: "assumed", "fitted" or "measured" by field (absent: assumed). band: an
    estimate's relative error, (low, high); 0 where nobody measured it.
    """

    bandwidth: float = 0.70
    experts: float = 0.70
    cache: float = 0.70
    prefill: float = 0.45
    experts_prefill: float = 0.45
    attention: float = 0.45
    encoder: float = 0.40
    narrow: float = 1.0
    unpack: float = 1.0
    step_s: float = 0.0
    row_s: float = 0.0
    launch_s: float = 0.0
    packed_s: float = 0.0
    blocked_s: float = 0.0
    expert_s: float = 0.0
    each_s: float = 0.0
    eager_s: float = 0.0
    stream: float = 0.0
    collective_s: float = 6e-6
    hop_s: float = 2e-6
    link: float = 1.0
    skew: float = 0.0
    mix: float = 1.0
    first_s: float = 0.0
    tile_s: float = 1.2e-3
    workspace_bytes: int = 2_000_000_000
    sources: Mapping[str, str] = field(default_factory=lambda: _ALL_ASSUMED)
    band: tuple[float, float] = (0.0, 0.0)

    def source(self, name: str) -> str:
        """Where the factor comes from."""
        return self.sources.get(name, ASSUMED)

    def having(self, factors: Mapping[str, float]) -> "Efficiency":
        """The same with other numbers for these factors."""
        changes: dict[str, Any] = dict(factors)
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Levels:
    """Factors by the tokens of a step, since kernels reach other shares with other numbers of rows. tokens:
    ascending; factors: of each."""

    tokens: tuple[int, ...]
    factors: tuple[Efficiency, ...]

    def at(self, tokens: float) -> Efficiency:
        """The factors of a step of so many tokens: between two levels each factor is drawn between theirs, in
        logarithms of both; beyond the ends the end's."""
        after = next((i for i, level in enumerate(self.tokens) if level >= tokens), len(self.tokens) - 1)
        before = max(after - 1, 0)
        low, high = self.factors[before], self.factors[after]
        if after == before or tokens >= self.tokens[after]:
            return high
        part = log(tokens / self.tokens[before]) / log(self.tokens[after] / self.tokens[before])
        drawn = {name: exp((1 - part) * log(value) + part * log(getattr(high, name)))
                 for name, value in ((f.name, getattr(low, f.name)) for f in fields(Efficiency))
                 if high.source(name) != ASSUMED and value > 0 and getattr(high, name) > 0}
        return high.having(drawn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waking:
    """What a step takes longer that finds its device idle, as processors and their caches run down: a share
    of its seconds, but no more than most_s."""

    share: float = 0.0
    most_s: float = 0.0

    def __call__(self, seconds: float) -> float:
        return min(self.share * seconds, self.most_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A machine's factors: of steps all of whose tokens are projected (decodes, drafts among them), and of
    steps with prompts, which run other kernels and are launched in another way.

    waking: of the first step after a pause. error: median |estimate / measured - 1| of the num_points steps
    that were fitted. measured: what else was measured on the way, in units that the names end in.
    """

    decodes: Levels
    prompts: Levels
    error: float
    num_points: int
    waking: Waking = Waking()
    measured: Mapping[str, float] = field(default_factory=dict)

    def of_plan(self, rows: float, prompt: float) -> Efficiency:
        """One set of factors for decode steps of so many rows beside prompts of so many tokens: the shares of
        the products' rate are the prompt's, all else the decodes'."""
        chunk = self.prompts.at(prompt)
        return self.decodes.at(rows).having({name: getattr(chunk, name) for name in ("prefill", "attention")})
