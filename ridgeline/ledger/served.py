"""What users see of a deployment that decodes and takes in prompts at the same time: a closed loop, in which
each of so many users sends the next prompt when the last answer ends."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ridgeline.ledger.efficiency import Efficiency
from ridgeline.ledger.work import COUNTED, Work, added_s, step_s

_BURST = 0.1  # of a run's requests arrive together at its start, in runs of ten a user
_FULLEST = 0.95  # share of the time that prompts can take
_ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """users: of one group of devices, each with one request in flight; output: tokens of an answer; waves:
    all lengths are equal, so that answers end, and prompts come in, together; burst_steps: so much so that no
    second token is made until all prompts are in, which takes so many steps (0: no bursts). Arrays where
    steps are stacked."""

    users: Any
    output: Any
    waves: Any = False
    burst_steps: Any = 0.0


def served(decode: Work, prompt: Work, load: Load, eff: Efficiency) -> tuple[Any, Any]:
    """(TPOT, TTFT) in seconds. decode: a step with every user decoding; prompt: one whole prompt alone.

    While an answer of O tokens grows, each other user's prompt comes in once in a user's cycle TTFT + O TPOT,
    and a user decodes for the share u = O TPOT / (TTFT + O TPOT) of it: so TPOT = step(u users) + (users
    - 1) u prompt / O, iterated from u. A step with a prompt is not a recorded graph: it takes no less
    than the host needs to launch its kernels one by one. A prompt waits for half a step, for the rest of
    prompts before it (M/D/1) and, at a run's start, for everyone's. In waves nothing overlaps but the
    wave's own prompts: the share eff.mix of them delays tokens, the rest first tokens; in bursts what
    `late_in_burst_s` says.
    """
    full_s, others = step_s(decode, eff), np.maximum(np.asarray(load.users) - 1.0, 0.0)
    prompt_s = np.maximum(added_s(prompt, eff), prompt.counted("launch_s") * eff.eager_s - full_s)
    alone_s = eff.first_s + full_s * 0.5 + prompt_s + prompt.count_C @ _overheads(eff)
    tpot_s, ttft_s = full_s, alone_s + 0.5 * others * prompt_s
    for _ in range(_ROUNDS):
        busy = load.output * tpot_s / (load.output * tpot_s + ttft_s)
        tpot_s = step_s(decode.at(busy), eff) + others * busy * prompt_s / load.output
        taken = np.minimum(load.users * prompt_s / (load.output * tpot_s + prompt_s), _FULLEST)
        ttft_s = alone_s + prompt_s * (taken / (2 * (1 - taken)) + _BURST / 2 * others)
    queue_s = others * prompt_s
    waves, bursts = np.asarray(load.waves), np.asarray(load.burst_steps)
    late_s = np.where(bursts > 0, late_in_burst_s(prompt_s, load.users, bursts), eff.mix * queue_s)
    return (np.where(waves, full_s + late_s / load.output, tpot_s),
            np.where(waves, alone_s + queue_s - late_s, ttft_s))


def late_in_burst_s(prompt_s: Any, users: Any, num_steps: Any) -> Any:
    """What a user's later tokens wait, of all prompts of a burst, when these go in k equal steps before any
    second token: the first step's users wait for all other steps, the last step's for none, so that it is
    users * prompt (k - 1) / 2k on average. k is at least 1, and at most a step a prompt; what is left of the
    others' prompts delays the first token."""
    steps = np.clip(num_steps, 1.0, np.maximum(users, 1.0))
    return 0.5 * (1 - 1 / steps) * users * prompt_s


def _overheads(eff: Efficiency) -> list[float]:
    """What a prompt alone pays beside bytes and FLOPs, by COUNTED; its stream is in `added_s`."""
    return [0.0 if name == "stream" else getattr(eff, name) for name in COUNTED]
