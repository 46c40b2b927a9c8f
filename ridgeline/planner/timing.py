"""The two phases of an ask on a set-up: floors and estimates of a prompt, a step of decodes, and both
together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.ledger.closed import expected_tokens
from ridgeline.ledger.comm import link_rate, transfer_s
from ridgeline.ledger.deployment import Timing
from ridgeline.ledger.memory import needed_cache_bytes
from ridgeline.ledger.served import late_in_burst_s
from ridgeline.ledger.sums import Rows
from ridgeline.planner.ask import KV_BYTES, Ask
from ridgeline.planner.room import STEP_TOKENS
from ridgeline.planner.setup import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """One reading's seconds. tpot_s: of a step of decodes alone; mixed_s: with the prompts that replace
    finished sequences, in the same steps or between them (a floor takes the better, an estimate the latter);
    step_s: of one step, which yields more than one token under speculation."""

    ttft_s: float
    tpot_s: float
    mixed_s: float
    step_s: float
    prefill_s: float
    transfer_s: float
    encoder_s: float
    preprocess_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The two phases of an ask at `rows` sequences a lane, in both readings."""

    rows: int
    decode_rows: Rows
    prefill_rows: Rows
    decode: Timing
    prefill: Timing
    floor: Speed
    estimate: Speed


def cached_tokens(ask: Ask) -> int:
    """Tokens of a prompt that the cache holds already."""
    return ask.shared_prefix or int(ask.prefix_hit * ask.prompt)


def tokens_per_step(ask: Ask) -> float:
    """Of a sequence: one, or what a verification yields on average."""
    return expected_tokens(ask.speculate.alpha, ask.speculate.gamma) if ask.speculate else 1.0


def mean_context(ask: Ask) -> int:
    """Tokens behind a decode, its own included: the middle of the output."""
    return ask.prompt + ask.output // 2


def phases(ask: Ask, rows: int) -> tuple[Rows, Rows]:
    """(decodes of a step, one prompt) of a lane."""
    drafts, hit = (ask.speculate.gamma if ask.speculate else 0), cached_tokens(ask)
    decode = Rows(rows=rows, start=mean_context(ask) - 1, count=1 + drafts, projected=1.0 + drafts,
                  shared=ask.shared_prefix if ask.read_prefix_once else 0)
    prompt = ask.prompt - hit
    return decode, Rows(rows=1, start=hit, count=prompt, projected=prompt if ask.prompt_logprobs else 1)


def timed(setup: Setup, rows: int) -> Steps:
    """Both phases at so many sequences a lane."""
    ask, deployment = setup.ask, setup.deployment
    decoding, prompt = phases(ask, rows)
    decode = deployment.decode([decoding])
    prefill = deployment.prefill(prompt, -(-prompt.count // STEP_TOKENS))
    tokens, draft_floor, draft_estimate = tokens_per_step(ask), 0.0, 0.0
    if ask.speculate:
        one = deployment.decode([replace(decoding, count=1, projected=1)])
        draft_floor, draft_estimate = (ask.speculate.steps * s for s in (one.floor_s, one.estimate_s))
    moved_s = transfer_s(transferred_bytes(setup), transfer_rate(setup)) if ask.disaggregate else 0.0
    saw_floor, saw, cut_s = seeing_s(setup)
    worn_floor, worn = wearing_s(setup, rows, decoding.count)
    put_on_floor, put_on = wearing_s(setup, 1, prompt.count)
    floor_s = decode.floor_s + draft_floor + worn_floor
    estimate_s = decode.estimate_s + draft_estimate + worn
    prompt_floor, prompt_s = prefill.floor_s + put_on_floor, prefill.estimate_s + put_on
    mixed_floor, mixed_estimate = floor_s / tokens, estimate_s / tokens
    if not ask.disaggregate:
        arriving = replace(prompt, rows=rows * tokens / ask.output)
        together = (deployment.decode([decoding, arriving]).floor_s + draft_floor + worn_floor) / tokens
        apart = prefill.busiest("floor_s") + put_on_floor + saw_floor
        mixed_floor = min(together + rows / ask.output * saw_floor, mixed_floor + rows / ask.output * apart)
        late, waits = arriving_s(setup, rows, prefill.busiest("estimate_s") + put_on + saw)
        mixed_estimate += late
    else:
        waits = 0.0
    return Steps(
        rows=rows, decode_rows=decoding, prefill_rows=prompt, decode=decode, prefill=prefill,
        floor=Speed(ttft_s=max(prompt_floor + saw_floor, moved_s), encoder_s=saw_floor, preprocess_s=0.0,
                    tpot_s=floor_s / tokens, mixed_s=mixed_floor,
                    step_s=floor_s, prefill_s=prompt_floor, transfer_s=moved_s),
        estimate=Speed(ttft_s=cut_s + saw + prompt_s + moved_s + waits, encoder_s=saw,
                       preprocess_s=cut_s, tpot_s=estimate_s / tokens,
                       mixed_s=mixed_estimate, step_s=estimate_s, prefill_s=prompt_s,
                       transfer_s=moved_s))


def estimates(setup: Setup, rows: Sequence[int]) -> tuple[float, NDArray[np.float64], NDArray[np.float64]]:
    """(TTFT, TPOT alone and with prompts in between at each number of rows [N]): `timed`'s estimates at
    once."""
    ask, deployment = setup.ask, setup.deployment
    decoding, prompt = phases(ask, 1)
    prompt_s, busiest_s = deployment.prefill_estimate(prompt, -(-prompt.count // STEP_TOKENS))
    step_N = deployment.decode_estimates(decoding, rows)
    if ask.speculate:
        one_N = deployment.decode_estimates(replace(decoding, count=1, projected=1), rows)
        step_N = step_N + ask.speculate.steps * one_N
    tpot_N = (step_N + wearing_s(setup, np.asarray(rows), decoding.count)[1]) / tokens_per_step(ask)
    _, saw, cut_s = seeing_s(setup)
    put_on = float(wearing_s(setup, 1, prompt.count)[1])
    ttft_s = cut_s + saw + prompt_s + put_on
    if ask.disaggregate:
        return ttft_s + transfer_s(transferred_bytes(setup), transfer_rate(setup)), tpot_N, tpot_N
    late_N, _ = arriving_s(setup, np.asarray(rows), busiest_s + put_on + saw)
    return ttft_s, tpot_N, tpot_N + late_N


def arriving_s(setup: Setup, rows: Any, prompt_s: float) -> tuple[Any, Any]:
    """What prompts of so many seconds add to (a token, a first token) of `rows` sequences. Steady: each
    sequence's prompt delays the tokens of one answer. In waves the other prompts come together, and the share
    `Efficiency.mix` of them delays tokens, the rest first tokens; bursts: see `late_in_burst_s`."""
    ask, eff = setup.ask, setup.deployment.efficiency
    if ask.arrivals == "steady":
        return rows / ask.output * prompt_s, 0.0
    others_s = (rows - 1) * prompt_s
    late_s = eff.mix * others_s if ask.arrivals == "waves" else late_in_burst_s(
        prompt_s, rows, rows * (ask.prompt - cached_tokens(ask)) / STEP_TOKENS)
    return late_s / ask.output, others_s - late_s


def seeing_s(setup: Setup) -> tuple[float, float, float]:
    """(encoder's floor, its estimate, a processor's time to cut the tiles) of a request's images, each image
    on one device; the processor's is an estimate alone."""
    sight, eff, rate = setup.sight, setup.deployment.efficiency, setup.numerics.rates.plain
    if sight is None:
        return 0.0, 0.0, 0.0
    read_s, busy_s = sight.weights_bytes / setup.device.bytes_per_s, sight.flops / rate
    return max(read_s, busy_s), max(read_s / eff.bandwidth, busy_s / eff.encoder), sight.tiles * eff.tile_s


def wearing_s(setup: Setup, rows: Any, count: int) -> tuple[Any, Any]:
    """(floor, estimate) of what adapters add to a step of `rows` sequences with so many tokens each, of which
    each wears one of those held, any as likely: each that is worn is read once, and every token is multiplied
    by its own. 0 without adapters."""
    held = setup.ask.max_loras
    if not held:
        return 0.0, 0.0
    each, eff = sum(room.adapters for room in setup.rooms) / held, setup.deployment.efficiency
    worn = held * (1.0 - (1.0 - 1.0 / held) ** rows)
    read_s = worn * each / setup.device.bytes_per_s
    busy_s = each * rows * count / setup.numerics.rates.plain  # two FLOP a number of two bytes
    return np.maximum(read_s, busy_s), np.maximum(read_s / eff.bandwidth, busy_s / eff.prefill)


def transferred_bytes(setup: Setup) -> float:
    """Of a prompt's cache, what one device sends to the decode side."""
    devices = setup.layout.tp * setup.layout.pp
    return needed_cache_bytes(setup.spec, setup.ask.prompt, KV_BYTES[setup.ask.kv]) / devices


def transfer_rate(setup: Setup) -> float:
    """Bytes/s of a device's link to the decode side: as given, else its network."""
    return setup.ask.link_bytes_per_s or link_rate(setup.device, 1 << 30)
