"""What every reading of a plan says, under the names of its JSON keys."""

from dataclasses import dataclass

# The three limits of a batch, and what it means when one is the smallest.
LIMITS = {"b_star": "arithmetic: past it a step waits for FLOPs, not for weights",
          "b_cross": "cache: past it a step reads more cache than weights",
          "b_max": "capacity: memory holds no more sequences"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One reading. Batches count sequences of the whole deployment; b_max at prompt + output tokens, the
    step's figures at the mean context. ttft_s: of one prompt on idle devices. tpot_s: of a step of decodes
    alone. output_tok_s: batch / tpot_s. intensity: FLOP a byte of a decode step, at the batch and without
    limit. cost_per_million_usd: of output tokens with the prompts' time in it; None without a price.
    max_context_tokens: of one sequence that has the memory to itself."""

    fits: bool
    weights_bytes: float
    kv_bytes_per_token: float
    kv_bytes_per_sequence: float
    b_star: float
    b_cross: float
    b_max: int
    ttft_s: float
    tpot_s: float
    e2e_s: float
    output_tok_s: float
    per_user_tok_s: float
    kv_share_of_step: float
    intensity: float
    intensity_ceiling: float
    throughput_ceiling_tok_s: float
    binding_limit: str
    cost_per_million_usd: float | None
    max_context_tokens: int


def binding_limit(b_star: float, b_cross: float, b_max: float) -> str:
    """The name of the smallest."""
    limits = {"b_max": b_max, "b_cross": b_cross, "b_star": b_star}
    return min(limits, key=lambda name: limits[name])


def per_million(price_usd_per_hour: float | None, devices: float, tok_s: float) -> float | None:
    """USD for 1e6 output tokens."""
    if price_usd_per_hour is None or tok_s <= 0:
        return None
    return price_usd_per_hour * devices / 3600 / tok_s * 1e6
