"""The nominal reading of a plan: the closed forms over all parameters, as `ledger.closed` has them.

It knows tensor parallelism only: a replica's stages and expert groups are counted as more of it. TTFT is one
prompt's FLOPs at the assumed share of the peak, and the unpacking of weights that need it; TPOT is bytes over
bandwidth plus the collectives' latency.
"""

from math import inf

from ridgeline.ledger import closed
from ridgeline.ledger.deployment import UNPACK_TILE
from ridgeline.planner.ask import KV_BYTES
from ridgeline.planner.reading import Reading, binding_limit, per_million
from ridgeline.planner.setup import Setup


def nominal_reading(setup: Setup, batch: int, context: int) -> Reading:
    """The plan's keys by closed forms, at the same batch and context."""
    ask, shape, device, eff = setup.ask, setup.shape, setup.device, setup.deployment.efficiency
    s_w, s_c, n = setup.numerics.weight_bytes, KV_BYTES[ask.kv], setup.layout.replica_devices
    dp, each = setup.layout.dp, batch / setup.layout.dp
    weights, token = s_w * shape.num_params, closed.kv_bytes(shape, 1, s_c)
    shards, room = closed.kv_shards(shape, n), setup.rooms[0]

    length = ask.prompt + ask.output + (setup.sight.nominal_tokens - setup.sight.tokens if setup.sight else 0)
    sequence = closed.kv_bytes(shape, length, s_c)

    def resident(sequence_bytes: float) -> int:
        each = max(sequence_bytes, 1) / shards
        return closed.max_sequences(room.capacity, weights / n, each, room.workspace)

    prompt = length - ask.output - (ask.shared_prefix or int(ask.prefix_hit * ask.prompt))
    together_s = closed.num_collectives(shape, setup.layout.tp) * eff.collective_s
    ttft = (closed.prefill_flops(shape, prompt) / (n * setup.numerics.rates.packed * eff.prefill)
            + together_s)
    if setup.numerics.rates.unpack:
        unpacked = closed.unpack_flops(shape.num_params, prompt, UNPACK_TILE)
        ttft += unpacked / setup.numerics.rates.unpack / n
    if setup.sight:
        ttft += (setup.sight.nominal_flops / (setup.numerics.rates.plain * eff.encoder)
                 + setup.sight.tiles * eff.tile_s)
    step = closed.step_seconds(shape, each, context, s_w, s_c, device.bytes_per_s, n) + together_s
    if ask.speculate:
        step /= closed.speculation_gain(ask.speculate.alpha, ask.speculate.gamma, ask.speculate.draft)
    cache = each * closed.kv_bytes(shape, context, s_c) / shards
    b_star = dp * closed.ridge_batch(setup.numerics.rates.packed / device.bytes_per_s, s_w)
    b_cross = dp * closed.crossover_tokens(shape, s_w, s_c) / context * shards / n if token else inf
    b_max = dp * resident(sequence)
    mixed = step + each / ask.output * ttft
    price = device.price_usd_per_hour if ask.price_usd_per_hour is None else ask.price_usd_per_hour
    return Reading(
        fits=b_max >= batch, weights_bytes=weights, kv_bytes_per_token=token, kv_bytes_per_sequence=sequence,
        b_star=b_star, b_cross=b_cross, b_max=b_max, ttft_s=ttft, tpot_s=step,
        e2e_s=closed.end_to_end(ttft, step, ask.output), output_tok_s=batch / step, per_user_tok_s=1 / step,
        kv_share_of_step=cache / closed.device_bytes(shape, each, context, s_w, s_c, n),
        intensity=closed.intensity(shape, each, context, s_w, s_c),
        intensity_ceiling=closed.intensity_ceiling(shape, context, s_c) if token else inf,
        throughput_ceiling_tok_s=closed.throughput_ceiling(dp * shards * device.bytes_per_s, shape, context,
                                                           s_c) if token else inf,
        binding_limit=binding_limit(b_star, b_cross, b_max), max_context_tokens=resident(token),
        cost_per_million_usd=per_million(price, setup.layout.num_devices, batch / mixed))
