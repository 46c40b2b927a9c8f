"""The sampler's slow twin: one row at a time, plain Python lists, every rule written out. The noise is
gumbel()."""

from math import exp, log

import torch

from ridgeline.runner.sampler import gumbel
from ridgeline.spec.sampling import SamplingParams


def adjust(logits: list[float], params: SamplingParams, prompt: list[int], output: list[int],
           stop_ids: tuple[int, ...] = ()) -> list[float]:
    """Bias, penalties, min_tokens."""
    logits = list(logits)
    for token, bias in params.logit_bias.items():
        logits[token] += max(-100.0, min(100.0, bias))
    for token in set(prompt) | set(output):
        repetition = params.repetition_penalty
        logits[token] = logits[token] / repetition if logits[token] > 0 else logits[token] * repetition
    for token in set(output):
        logits[token] -= params.frequency_penalty * output.count(token) + params.presence_penalty
    if len(output) < params.min_tokens:
        for token in stop_ids:
            logits[token] = -float("inf")
    return logits


def admitted(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Probability of each token that temperature, min_p, top_k and top_p leave, renormalized."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    best = logits[order[0]]
    if params.greedy:
        return {order[0]: 1.0}
    scaled = {token: (logits[token] - best) / params.temperature for token in order}
    if params.min_p:
        order = [token for token in order if scaled[token] >= log(params.min_p)]
    if params.top_k > 0:
        order = order[: params.top_k]
    mass = {token: exp(scaled[token]) for token in order}
    total, ahead, kept = sum(mass.values()), 0.0, []
    for token in order:
        if kept and ahead >= params.top_p * total:
            break
        kept.append(token)
        ahead += mass[token]
    left = sum(mass[token] for token in kept)
    return {token: mass[token] / left for token in kept}


def sample(logits: list[float], params: SamplingParams, seed: int, position: int) -> int:
    """The token: the highest log-probability plus noise."""
    chances = admitted(logits, params)
    noise = gumbel(seed, position, torch.arange(len(logits))).tolist()
    best = max(logits)
    temperature = params.temperature or 1.0
    return max(chances, key=lambda token: ((logits[token] - best) / temperature + noise[token], -token))
