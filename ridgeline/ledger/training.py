"""The training ledger, for comparison: what one device holds of a model it trains, unsharded, mixed precision
with Adam. Source: "The Mechanics of LLM Inference", The inference memory ledger, Table 3.
"""

from dataclasses import dataclass

TRAINING_FLOPS, INFERENCE_FLOPS = 6, 2
"""FLOPs a parameter and token: the backward pass costs twice the forward one. Two machines, Table 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bytes from low to high, since gradients are held in 2 or 4 bytes and activations depend on what is
    recomputed."""

    low: float
    high: float


def training_ledger(num_params: float) -> dict[str, Range]:
    """Term -> bytes. Activations are the source's 10 to 60 GB of a 7B model, scaled by its parameters."""
    scale = num_params / 7e9
    per_param = {"weights": (2, 2), "master weights (fp32)": (4, 4), "gradients": (2, 4),
                 "Adam moments (fp32)": (8, 8)}
    terms = {name: Range(low=low * num_params, high=high * num_params)
             for name, (low, high) in per_param.items()}
    return {**terms, "activations": Range(low=10e9 * scale, high=60e9 * scale),
            "workspace": Range(low=1e9, high=3e9)}


def training_bytes(num_params: float) -> Range:
    """The whole ledger; it does not grow with traffic."""
    terms = training_ledger(num_params).values()
    return Range(low=sum(x.low for x in terms), high=sum(x.high for x in terms))


def parity_days(trained_tokens: float, tokens_a_day: float, *, by_flops: bool = False) -> float:
    """Days of serving after which as many tokens were served as trained on ("Why inference matters more than
    ever", first section); by_flops: as many FLOPs spent, at 2 to 6 a parameter and token."""
    ratio = TRAINING_FLOPS / INFERENCE_FLOPS if by_flops else 1.0
    return ratio * trained_tokens / tokens_a_day
