"""A plan as text and as JSON. Computes nothing but shares and units."""

from collections.abc import Iterator
from dataclasses import asdict, fields
from math import isfinite
from typing import Any

from ridgeline.base.units import GB, GIB
from ridgeline.ledger.memory import active_params, needed_cache_bytes
from ridgeline.planner.ask import KV_BYTES
from ridgeline.planner.plan import Plan, little, pool_ratio
from ridgeline.planner.reading import LIMITS, Reading
from ridgeline.planner.timing import tokens_per_step
from ridgeline.spec.cache import State


def both(num_bytes: float) -> str:
    """The size in GB (1e9) and in GiB (2^30)."""
    return f"{num_bytes / GB:.4g} GB ({num_bytes / GIB:.4g} GiB)"


def as_json(plan: Plan, remedy: str = "") -> dict[str, Any]:
    """The exact floor at the top, the same keys of the estimate and of the closed forms below it."""
    setup, layout, memory = plan.setup, plan.setup.layout, asdict(plan.memory)
    top = asdict(plan.exact)
    return _finite({
        **top, "feasible": plan.feasible, "why": plan.why, "remedy": remedy,
        "readings": {"top": "exact floor: what is really read and computed, at the device's full rates",
                     "estimate": "the floor over efficiencies, each with its source",
                     "nominal": "closed forms over all parameters, prompt at the assumed share of the peak"},
        "estimate": asdict(plan.estimate), "nominal": asdict(plan.nominal), "batch": plan.batch,
        "model": plan.ask.model, "parameters": parameters(plan), "device": setup.device.name,
        "num_devices": layout.num_devices,
        "layout": asdict(layout), "weights": setup.numerics.weights, "kv": plan.ask.kv,
        "native_arithmetic": setup.numerics.native, "memory_per_device_bytes": memory,
        "marketed_bytes": setup.device.marketed_bytes, "usable_bytes": setup.device.usable_bytes,
        "kv_reserved_bytes_per_sequence": plan.kv_reserved_bytes_per_sequence,
        "max_context_at_batch_tokens": plan.max_context_at_batch_tokens, "goodput_batch": plan.goodput_batch,
        "tpot_mixed_s": {"floor": plan.steps.floor.mixed_s, "estimate": plan.steps.estimate.mixed_s},
        "sustained_tok_s": dict(zip(("floor", "estimate"), plan.sustained_tok_s, strict=True)),
        "little": little(plan), "slow_side": {"prefill_share": plan.prefill_share,
                                              "decode_share": 1 - plan.prefill_share},
        "vision": vision(plan), "efficiency": efficiencies(plan), "choices": list(setup.choices),
        "notes": notes(plan)})


def parameters(plan: Plan) -> dict[str, int]:
    """All of them, which must fit, and those that a step of one token reads."""
    spec = plan.setup.spec
    return {"total": spec.num_params, "active_per_token": active_params(spec)}


def vision(plan: Plan) -> dict[str, Any] | None:
    """What the images of a request cost, None without them."""
    sight, floor, estimate = plan.setup.sight, plan.steps.floor, plan.steps.estimate
    if sight is None:
        return None
    return {"encoder": sight.encoder, "tiles": sight.tiles, "patch_tokens": sight.patches,
            "visual_tokens": sight.tokens, "visual_tokens_nominal": sight.nominal_tokens,
            "prompt_tokens": plan.setup.ask.prompt, "encoder_flops": sight.flops,
            "encoder_weights_bytes": sight.weights_bytes, "preprocess_s": estimate.preprocess_s,
            "encoder_s": {"floor": floor.encoder_s, "estimate": estimate.encoder_s},
            "share_of_ttft": (estimate.preprocess_s + estimate.encoder_s) / estimate.ttft_s,
            "ratio_to_text": sight.tokens / plan.ask.prompt}


def efficiencies(plan: Plan) -> dict[str, dict[str, Any]]:
    """Each factor between floor and estimate, with where it comes from."""
    eff = plan.setup.deployment.efficiency
    names = [f.name for f in fields(eff) if f.name not in ("sources", "band")]
    return {name: {"value": getattr(eff, name), "source": eff.source(name)} for name in names}


def notes(plan: Plan) -> list[str]:
    """What a reader should know about this plan, a sentence each."""
    ask, setup, found = plan.ask, plan.setup, []
    heads = min((getattr(b, "num_kv_heads", setup.layout.tp) for layer in setup.spec.layers
                 for _, b in layer.blocks), default=1)
    if setup.layout.tp > heads:
        found.append(f"TP {setup.layout.tp} is more than the {heads} KV heads: each is held "
                     f"{setup.layout.tp // heads} times, and a device's cache stops shrinking at TP {heads}")
    if setup.length > setup.spec.max_position:
        found.append(f"{setup.length} tokens are more than the {setup.spec.max_position} that the model was "
                     "made for")
    if ask.overrides:
        changed = ", ".join(f"{name}={value}" for name, value in ask.overrides.items())
        found.append(f"prices an untrained shape ({changed}): measure quality")
    if setup.device.assumed:
        found.append(f"of {setup.device.name} these figures are assumed, as none was found that states them: "
                     f"{', '.join(setup.device.assumed)}")
    found += _workload_notes(plan)
    if ask.speculate and plan.batch * (ask.speculate.gamma + 1) > plan.exact.b_star:
        found.append(f"{plan.batch} x {ask.speculate.gamma + 1} verified positions are past B* = "
                     f"{plan.exact.b_star:.0f}: rejected drafts cost time")
    if setup.deployment.stages[0].num_routed:
        found.append("the nominal reading counts all parameters, also those of experts that a token does not "
                     "choose; floors and estimates count what a batch reads and a token computes")
    if any(isinstance(kept, State) for layer in setup.spec.cache(1) for kept in layer):
        found.append("the nominal reading knows keys and values alone: recurrent states, which floors and "
                     "estimates read and memory holds, are nothing there")
    if setup.layout.pp > 1:
        found.append(f"{plan.steps.decode.bubble:.0%} of the stages' time is empty in decode, "
                     f"{plan.steps.prefill.bubble:.0%} while one prompt passes")
    unpack_s = plan.steps.prefill.total("unpack_s")
    if unpack_s:
        found.append(f"unpacking weights adds up to {unpack_s * 1e3:.3g} ms to a prompt: weight-only formats "
                     "do not help prefill")
    if setup.deployment.efficiency.band == (0.0, 0.0):
        found.append("nobody measured the estimate's error here: calibrate, or expect real engines 20 to "
                     "50 % above the bandwidth floor")
    return found


def _workload_notes(plan: Plan) -> Iterator[str]:
    """What drafts, a shared prefix and prefill devices of their own do."""
    ask, setup, rows = plan.ask, plan.setup, plan.steps.rows
    if ask.speculate:
        verified, ridge = rows * (ask.speculate.gamma + 1), plan.exact.b_star / setup.lanes
        yield (f"{ask.speculate.gamma} drafts yield {tokens_per_step(ask):.3g} tokens a step; {rows} "
               f"sequences verify {verified} rows, which are free up to B* = {ridge:.0f}")
    if ask.arrivals != "steady":
        before = "those of earlier steps" if ask.arrivals == "bursts" else "its share of the others"
        yield f"prompts come in {ask.arrivals}: TTFT is of one that waits for {before}, tokens for the rest"
    if ask.shared_prefix:
        saved = (rows - 1) * needed_cache_bytes(setup.spec, ask.shared_prefix, KV_BYTES[ask.kv])
        how = "once" if ask.read_prefix_once else "by each sequence"
        yield (f"the shared prefix is read {how}; once instead of by each is {both(saved)} less a step, "
               "where a kernel can")
    if ask.disaggregate:
        speed = plan.steps.estimate
        pool = pool_ratio(setup, rows, speed.tpot_s, speed.prefill_s)
        yield (f"{pool:.3g} prefill devices keep one decode device busy, and are in the price; a prompt's "
               f"cache takes {speed.transfer_s * 1e3:.3g} ms to send")


def _finite(value: Any) -> Any:
    """JSON has no infinity: None instead."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    return None if isinstance(value, float) and not isfinite(value) else value


def as_text(plan: Plan, remedy: str = "") -> str:
    """A page for the terminal. remedy: the one change that makes an infeasible plan feasible."""
    fix = f"the one change that makes it feasible: {remedy}" if remedy else "no one change makes it feasible"
    head = [*_head(plan), *([] if plan.feasible else [fix])]
    parts = (_memory, _table, _limits, _flow, _factors)
    return "\n\n".join("\n".join(lines) for lines in (head, *(part(plan) for part in parts)))


def _head(plan: Plan) -> Iterator[str]:
    ask, setup = plan.ask, plan.setup
    native = "" if setup.numerics.native else ", unpacked for 16-bit products"
    yield (f"{ask.model} on {setup.layout.num_devices} x {setup.device.name}, {setup.layout.text()}; weights "
           f"{setup.numerics.weights}{native}, cache {ask.kv}")
    yield (f"{setup.ask.prompt} prompt and {ask.output} output tokens, {plan.batch} sequences together; "
           f"TPOT at a context of {plan.steps.decode_rows.start + 1}, TTFT of one prompt alone")
    num = parameters(plan)
    yield (f"{num['total']:,} parameters, of which a token alone reads {num['active_per_token']:,}; all must "
           "fit, and a large batch reads all")
    if seen := vision(plan):
        yield (f"of the prompt {seen['visual_tokens']} tokens are images ({seen['tiles']} tiles, "
               f"{seen['patch_tokens']} patches, {seen['ratio_to_text']:.3g} times the text; by the area "
               f"alone {seen['visual_tokens_nominal']:.4g})")
        yield (f"of TTFT {seen['share_of_ttft']:.0%} is vision: {seen['preprocess_s'] * 1e3:.3g} ms to cut "
               f"tiles on a processor, {seen['encoder_s']['estimate'] * 1e3:.3g} ms in the encoder")
    yield from setup.choices
    room = abs(plan.memory.spare)
    verdict = "fits" if plan.exact.fits else "does NOT fit"
    yield f"{verdict}: {both(room)} {'to spare' if plan.memory.spare >= 0 else 'too much'} on a device"
    if plan.why:
        yield f"infeasible: {plan.why}"


def _memory(plan: Plan) -> Iterator[str]:
    memory, device = plan.memory, plan.setup.device
    usable = both(device.usable_bytes) if device.usable_bytes else "not known"
    yield (f"memory of a device: {both(memory.capacity)}; marketed {both(device.marketed_bytes)}, by its "
           f"driver {usable}")
    for name, label in (("weights", "weights"), ("kv_needed", "KV cache, needed"),
                        ("kv_rounding", "KV pages' rounding"), ("activations", "activations"),
                        ("workspace", "workspace"), ("draft", "draft"), ("adapters", "adapters"),
                        ("spare", "spare")):
        value = getattr(memory, name)
        if value or name not in ("draft", "adapters"):
            yield f"  {label:<20} {both(value):>26}  {value / memory.capacity:6.1%}"
    yield (f"  a sequence needs {both(plan.exact.kv_bytes_per_sequence)} of cache in all; a device sets "
           f"{both(plan.kv_reserved_bytes_per_sequence)} aside for it, in whole blocks of "
           f"{plan.setup.rooms[0].layout.block_tokens} tokens")


_ROWS = (("ttft_s", "TTFT", 1e3, "ms"), ("tpot_s", "TPOT, decodes alone", 1e3, "ms"),
         ("e2e_s", "E2E", 1, "s"), ("output_tok_s", "output tok/s", 1, ""),
         ("per_user_tok_s", "tok/s a user", 1, ""),
         ("kv_share_of_step", "KV share of step bytes", 100, "%"), ("intensity", "intensity, FLOP/B", 1, ""),
         ("intensity_ceiling", "its ceiling", 1, ""),
         ("throughput_ceiling_tok_s", "throughput ceiling, tok/s", 1, ""),
         ("cost_per_million_usd", "USD per 1e6 output tokens", 1, ""))


def _table(plan: Plan) -> Iterator[str]:
    readings = (plan.exact, plan.estimate, plan.nominal)
    yield f"{'':<28}{'floor':>12}{'estimate':>12}{'nominal':>12}"
    for name, label, scale, unit in _ROWS:
        yield f"{label:<28}" + "".join(f"{_cell(one, name, scale):>12}" for one in readings) + f" {unit}"
        mixed = {"tpot_s": (plan.steps.floor.mixed_s * 1e3, plan.steps.estimate.mixed_s * 1e3),
                 "output_tok_s": plan.sustained_tok_s}.get(name)
        if mixed:
            yield f"{'  with prompts in between':<28}{mixed[0]:>12.4g}{mixed[1]:>12.4g}{'':>12} {unit}"


def _cell(one: Reading, name: str, scale: float) -> str:
    value = getattr(one, name)
    return "-" if value is None else f"{value * scale:.4g}"


def _limits(plan: Plan) -> Iterator[str]:
    one, nominal = plan.exact, plan.nominal
    yield f"B* {one.b_star:.4g}, B_cross {one.b_cross:.4g}, B_max {one.b_max} (nominal: " \
          f"{nominal.b_star:.4g}, {nominal.b_cross:.4g}, " \
          f"{nominal.b_max if nominal.kv_bytes_per_token else 'without end'})"
    yield f"{one.binding_limit} binds first: {LIMITS[one.binding_limit]}"
    yield (f"largest context: {one.max_context_tokens} tokens for one sequence, "
           f"{plan.max_context_at_batch_tokens} at this batch")
    if plan.goodput_batch is not None:
        yield f"goodput is best at {plan.goodput_batch} sequences, the most whose estimate meets the targets"


def _flow(plan: Plan) -> Iterator[str]:
    law = little(plan)
    yield (f"Little's law: {law['rate_per_s']:.4g} requests/s x {law['stay_s']:.4g} s keep "
           f"{law['in_flight']:.4g} in flight; {plan.batch} decoding together complete "
           f"{law['completed_per_s_at_batch']:.4g} requests/s")
    yield (f"at that rate, coming at random, a prompt waits {law['wait_s'] * 1e3:.3g} ms for others on "
           f"average: TTFT {law['ttft_loaded_s'] * 1e3:.4g} ms")
    slow = "prefill" if plan.prefill_share > 0.5 else "decode"
    yield (f"the slow side is {slow}: of a request's device time {plan.prefill_share:.0%} is prefill, "
           f"{1 - plan.prefill_share:.0%} decode")


def _factors(plan: Plan) -> Iterator[str]:
    low, high = plan.setup.deployment.efficiency.band
    known = (f"{name} {one['value']:g} ({one['source']})" for name, one in efficiencies(plan).items()
             if one["value"])
    yield f"between floor and estimate: {', '.join(known)}"
    if (low, high) != (0.0, 0.0):
        yield f"error of an estimate: {low:+.0%} to {high:+.0%}, as measured"
    yield from (f"note: {note}" for note in notes(plan))
