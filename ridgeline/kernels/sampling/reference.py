"""Sampling of one row in plain torch, by sorting: the kernels' twin.

Legend: V vocabulary.
"""

import torch
from torch import Tensor

from ridgeline.kernels.sampling import IN_PROMPT, IS_STOP, Ask


def adjusted_reference(logits_V: Tensor, ask: Ask, position: int, marks_V: Tensor | None = None,
                       bias_V: Tensor | None = None) -> Tensor:
    """Logits after bias, penalties and stop tokens kept out, float32. marks, bias: the request's, if any."""
    x_V = logits_V.float() if bias_V is None else logits_V.float() + bias_V
    if marks_V is None:
        return x_V
    repetition, presence, frequency = ask.reals[3:].tolist()
    count_V, in_prompt_V = marks_V & (IN_PROMPT - 1), (marks_V & IN_PROMPT) != 0
    seen_V = (count_V > 0) | in_prompt_V
    x_V = torch.where(seen_V, torch.where(x_V > 0, x_V / repetition, x_V * repetition), x_V)
    x_V = x_V - frequency * count_V - presence * (count_V > 0)
    return x_V.masked_fill((marks_V & IS_STOP != 0) & (position < int(ask.wholes[3])), -torch.inf)


def sample_reference(x_V: Tensor, ask: Ask, gumbel_V: Tensor) -> int:
    """The token. x: adjusted. gumbel: float64, of the request's seed at the position."""
    values, order = x_V.sort(descending=True, stable=True)
    temperature, top_p, log_min_p = ask.reals[:3].tolist()
    if temperature == 0.0:
        return int(order[0])
    scaled = (values.double() - values[0].double()) / temperature
    kept = (scaled >= log_min_p) & (torch.arange(len(order)) < int(ask.wholes[0]))
    mass = scaled.exp().masked_fill(~kept, 0.0)
    if top_p < 1.0:
        kept &= (mass.cumsum(0) - mass < top_p * mass.sum()) | (torch.arange(len(order)) == 0)
    return int(order[(scaled + gumbel_V[order]).masked_fill(~kept, -torch.inf).argmax()])
