"""Is a published speed possible? The bandwidth that it implies against the device's, and what would explain
an excess.

"Divide the bandwidth by the bytes": source "The Mechanics of LLM Inference", Why decode is bandwidth-bound.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ridgeline.base.errors import ConfigError
from ridgeline.planner.ask import WEIGHTS, Ask, Speculate
from ridgeline.planner.plan import Plan, plan
from ridgeline.planner.setup import Workshop

_FORM = re.compile(r"(?P<model>.+?)[\s,:]+(?P<value>[0-9][0-9.,]*)\s*(?P<kilo>k?)\s*(?:output\s*)?"
                   r"(?:tok(?:en)?s?\s*/\s*s(?:ec(?:ond)?)?|tps|t/s)\s+(?:on|@)\s+(?P<rest>.+)",
                   re.IGNORECASE)
_BATCH = re.compile(r"[\s,]+(?:at\s+)?batch\s*(?:size\s*)?=?\s*(\d+)", re.IGNORECASE)
_COUNT = re.compile(r"(?:(\d+)\s*(?:x|×|\*)?\s+)?(.+?)(?:\s*[x×]\s*(\d+))?", re.IGNORECASE)
_USUAL = (0.5, 0.65)  # of the ceiling, where measured single streams land by the same source
_MOST_DEVICES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A stated speed, tokens a second of one sequence, or of all together where a batch is stated."""

    model: str
    gpu: str
    tok_s: float
    weights: str | None = None
    batch: int | None = None
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a claim implies. step_bytes: moved for a step with an almost empty cache, over all devices.
    ceiling_tok_s: what the floor allows; explanations: single changes under which the floor allows the
    claim."""

    claim: Claim
    device: str
    step_bytes: float
    implied_bytes_per_s: float
    device_bytes_per_s: float
    ceiling_tok_s: float
    nominal_ceiling_tok_s: float
    possible: bool
    share_of_ceiling: float
    explanations: tuple[str, ...]


def parse_claim(text: str) -> Claim:
    """"Llama-3-8B 300 tok/s on H100", "mixtral-8x7b int4 9k tok/s on 2x H100 batch 64". ConfigError shows the
    form."""
    batch = _BATCH.search(text)
    match = _FORM.fullmatch((text[:batch.start()] + text[batch.end():] if batch else text).strip())
    where = _COUNT.fullmatch(match["rest"].strip()) if match else None
    if match is None or where is None:
        raise ConfigError(f"cannot read the claim {text!r}: write it like \"Llama-3-8B 300 tok/s on H100\", "
                          "or \"Llama-3-8B int4 9k tok/s on 2x H100 batch 64\"")
    model, _, last = match["model"].rpartition(" ")
    weights = last.lower() if last.lower() in WEIGHTS else None
    return Claim(model=model if weights else match["model"], gpu=where[2], weights=weights,
                 tok_s=float(match["value"].replace(",", "")) * (1000 if match["kilo"] else 1),
                 batch=int(batch[1]) if batch else None, gpus=int(where[1] or where[3] or 1))


def check_claim(claim: Claim, shop: Workshop | None = None) -> Verdict:
    """The floor at an almost empty cache, which is the most that can be granted, against the claim."""
    shop = shop or Workshop()
    ask = Ask(model=claim.model, gpu=claim.gpu, weights=claim.weights, gpus=claim.gpus, prompt=1, output=1,
              batch=claim.batch or 1)
    found = plan(ask, shop)
    devices = found.setup.layout.num_devices
    moved = found.steps.decode.total("moved_bytes") * devices / found.setup.layout.pp
    ceiling = found.exact.output_tok_s
    possible = claim.tok_s <= ceiling and found.exact.fits
    return Verdict(
        claim=claim, device=found.setup.device.name, step_bytes=moved, ceiling_tok_s=ceiling,
        possible=possible, implied_bytes_per_s=moved * claim.tok_s / found.batch,
        share_of_ceiling=claim.tok_s / ceiling,
        device_bytes_per_s=found.setup.device.bytes_per_s * devices,
        nominal_ceiling_tok_s=found.nominal.output_tok_s,
        explanations=() if possible else tuple(_explanations(claim, ask, found, shop)))


def _explanations(claim: Claim, ask: Ask, found: Plan, shop: Workshop) -> Iterator[str]:
    def allows(changed: Ask) -> bool:
        try:
            other = plan(changed, shop)
        except ConfigError:  # a layout that the model does not divide into
            return False
        return other.exact.fits and other.exact.output_tok_s >= claim.tok_s

    if not found.exact.fits:
        yield f"it does not fit as stated: {found.why}"
    for weights in ("fp8", "int8", "int4"):
        if weights != ask.weights and allows(replace(ask, weights=weights)):
            yield f"heavier quantization: {weights} weights allow it"
            break
    if claim.batch is None:
        batch = next((b for b in (2**i for i in range(1, 13)) if allows(replace(ask, batch=b))), None)
        if batch:
            yield f"an aggregate over a batch: {batch} sequences together allow it, each at 1/{batch} of it"
    more = next((n for n in range(claim.gpus + 1, _MOST_DEVICES + 1)
                 if allows(replace(ask, gpus=n, tp=n))), None)
    if more:
        yield f"several devices: {more} of them together allow it"
    if allows(replace(ask, speculate=Speculate(gamma=4, alpha=0.8, draft=0.05))):
        yield "speculative decoding: 4 drafts of which 80 % are accepted allow it"


def claim_text(verdict: Verdict) -> str:
    """The verdict in a few lines."""
    v, low, high = verdict, *_USUAL
    lines = [f"{v.claim.model} at {v.claim.tok_s:g} tok/s on {v.claim.gpus} x {v.device}: "
             + ("possible" if v.possible else "NOT possible as stated"),
             f"a step moves {v.step_bytes / 1e9:.4g} GB, so that it implies "
             f"{v.implied_bytes_per_s / 1e12:.3g} TB/s of the {v.device_bytes_per_s / 1e12:.3g} TB/s there "
             f"are ({v.implied_bytes_per_s / v.device_bytes_per_s:.0%})",
             f"ceiling: {v.ceiling_tok_s:.4g} tok/s by what is really read, {v.nominal_ceiling_tok_s:.4g} "
             f"over all parameters; the claim is {v.share_of_ceiling:.0%} of it"]
    if v.possible:
        lines.append(f"measured single streams usually land at {low:.0%} to {high:.0%} of the ceiling")
    return "\n".join([*lines, *(f"would explain it: {one}" for one in v.explanations)])
