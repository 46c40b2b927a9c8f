"""Figures 5 to 7: the cache against context and residents, head sharing, and the memory ledger beside
training's. Source: "The Mechanics of LLM Inference", The KV memory formula to The inference memory ledger."""

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.mla.spec import MlaSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.ledger import closed, training
from ridgeline.planner.ask import KV_BYTES
from ridgeline.planner.lab import Lab, Result
from ridgeline.planner.labs import parts
from ridgeline.planner.labs.forms import bars, both, chart, count, curve, gb, number, spread
from ridgeline.planner.labs.parts import Case, Values, text, whole
from ridgeline.spec.cache import Paged
from ridgeline.spec.cost import CONTEXT, FEW_PAIRS, PAIRS

_CONTEXTS = tuple(2**n for n in range(11, 18))
_SHAPES = ("llama-2-7b", "llama-3-8b", "mistral-7b", "llama-3-70b")
_RESIDENTS = (1, 2, 4, 8, 16, 32, 64, 128)


def _context(values: Values) -> Result:
    case, space = Case.of(values), parts.ASSUMED.workspace_bytes
    context = _CONTEXTS[whole(values, "step") - 1]
    sequence, resident = case.sequence_bytes(context), case.resident(context, space)
    cases = {name: Case.of({**values, "model": name}) for name in (case.model, *_SHAPES)}
    numbers = (
        number("context", "Context", context, "tokens"),
        *both("kv_per_sequence", "KV per sequence", (sequence, case.exact_sequence_bytes(context)), "bytes",
              ("N * KV per token", "sum over layers of what each keeps"),
              f"{context} * {case.sequence_bytes(1):g} B", "windows and states as they are"),
        number("against_weights", "Against the weights", sequence / case.weight_bytes, "", "KV / weights",
               f"{gb(sequence)} / {gb(case.weight_bytes)}", "nominal"),
        number("residents", f"Resident sequences beside {gb(space)} of workspace", resident, "sequences",
               "floor((memory - weights - workspace) / KV)", "", "nominal"))
    here = {"here": float(context)}
    charts = (
        chart("kv", "KV of one sequence", "context, tokens", "bytes",
              *(curve(name, _CONTEXTS, one.sequence_bytes) for name, one in cases.items()), log="xy",
              at_x=here),
        chart("residents", "Sequences that stay resident", "context, tokens", "sequences",
              *(line for name, one in cases.items() for line in one.residents(name, _CONTEXTS, space)),
              log="xy", at_x=here))
    return Result(numbers=numbers, charts=charts, num_steps=len(_CONTEXTS), notes=(
        f"At {context} tokens a sequence takes {gb(sequence)}, and {resident} stay resident.",
        "The cache is linear in every factor: no regime makes it harmless.",
        "Capacity usually caps the batch before bandwidth does.", *case.notes()))


def _heads(values: Values) -> Result:
    step, heads, context = whole(values, "step"), int(text(values, "heads")), whole(values, "context")
    layers, width = whole(values, "layers"), int(text(values, "head_dim"))
    size = KV_BYTES[text(values, "cache")]
    rope = RopeSpec(kind="default", theta=1e4, rotary_dim=64, max_position=131072)

    def shared(kv_heads: int) -> AttentionSpec:
        return AttentionSpec(hidden_size=heads * width, num_heads=heads, num_kv_heads=kv_heads, rope=rope,
                             head_dim=width, norm_eps=1e-6, scale=1.0)

    latent = MlaSpec(hidden_size=heads * width, num_heads=heads, q_rank=None, latent_dim=512, nope_dim=width,
                     value_dim=width, norm_eps=1e-6, latent_eps=1e-6, rope=rope, scale=1.0)
    kinds: dict[str, AttentionSpec | MlaSpec] = {_kind(group, heads): shared(heads // group)
                                               for group in (1, 2, 4, 8, 16, heads)}
    kinds["MLA, 512 + 64"] = latent
    names, at = tuple(kinds), step - 1
    entries = tuple(_entry(block, size) for block in kinds.values())
    rates = tuple(_intensity(block, size) for block in kinds.values())
    per_token = layers * entries[at]
    numbers = (
        number("kind", "Attention", names[at]),
        number("per_token", "KV per token", per_token, "bytes", "L * what a layer keeps",
               f"{layers} * {entries[at]} B"),
        number("sequence", "KV per sequence", per_token * context, "bytes", "N * KV per token",
               f"{context} * {per_token} B"),
        number("against_mha", "MHA over this", entries[0] / entries[at], "", "bytes / bytes"),
        number("intensity", "Intensity of a decode's attention", rates[at], "FLOP/B",
               "2g / s_c; of latents 2 n_q (2 d_c + d_R) / (s_c (d_c + d_R))"))
    charts = (
        chart("bytes", "KV per token", "", "bytes",
              *bars(names, {"all layers": [layers * entry for entry in entries[:at + 1]]})),
        chart("intensity", "Intensity of a decode's attention", "", "FLOP/B",
              *bars(names, {"FLOP a byte": rates[:at + 1]})))
    return Result(numbers=numbers, charts=charts, num_steps=7, notes=(
        f"{names[at]}: {entries[0] / entries[at]:.3g} times less to keep and to read than MHA." if at else
        "MHA: each query head has keys and values of its own, the most to keep and to read.",
        "Batching does nothing here: no two requests share a cache, so this intensity holds at every batch.",
        "Fewer heads are less capacity of the model, not a serving flag: at the extreme its quality and its "
        "training suffer (Shazeer 2019; Ainslie et al. 2023).",
        "Full MHA costs nothing in training and becomes the bill on the day the model ships.",
        "Latents spend idle arithmetic to move fewer bytes; here absorbed, as decodes do it."))


def _kind(group: int, heads: int) -> str:
    return "MHA" if group == 1 else "MQA" if group == heads else f"GQA, groups of {group}"


def _entry(block: AttentionSpec | MlaSpec, size: int) -> int:
    """Bytes that a layer keeps of a token, as its room says."""
    (kept,) = block.cache(size)
    assert isinstance(kept, Paged)
    return kept.bytes_per_entry


def _intensity(block: AttentionSpec | MlaSpec, size: int) -> float:
    """FLOPs of a decode's (query, key) pair over the bytes that it reads, as its room prices them."""
    line = next(line for line in block.cost() if line.op == "attention")
    flops = sum(value for (name, _), value in line.flops if name in (PAIRS, FEW_PAIRS))
    return flops / (size * sum(value for (name, _), value in line.cache_read if name == CONTEXT))


def _ledger(values: Values) -> Result:
    case, step, context = Case.of(values), whole(values, "step"), whole(values, "context")
    batch, sequence, space = _RESIDENTS[step - 1], case.sequence_bytes(context), parts.ASSUMED.workspace_bytes
    trained, served_a_day = parts.real(values, "trained") * 1e12, parts.real(values, "served") * 1e12
    terms = training.training_ledger(case.shape.num_params)
    whole_run = training.training_bytes(case.shape.num_params)
    cross = closed.crossover_tokens(case.shape, case.s_w, case.s_c)
    vocab, total = case.shape.vocab_size, case.weight_bytes + space + batch * sequence
    numbers = (
        number("training_low", "Training, least", whole_run.low, "bytes", "sum of its terms"),
        number("training_high", "Training, most", whole_run.high, "bytes", "more activations"),
        number("inference", "Inference", total, "bytes", "weights + workspace + B * KV",
               f"{gb(case.weight_bytes)} + {gb(space)} + {batch} * {gb(sequence)}", "nominal"),
        number("crossover_tokens", "Cached tokens that weigh as much as the weights", cross, "tokens",
               "P s_w / KV per token", f"{gb(case.weight_bytes)} / {case.sequence_bytes(1):g} B", "nominal"),
        number("crossover", "Conversations of this context until then", cross / context, "conversations",
               "crossover tokens / N", f"{cross:.0f} / {context}", "nominal"),
        number("kv_share", "KV share of weights and cache", batch * sequence / (total - space), "share",
               "B KV / (weights + B KV)", "", "nominal"),
        number("parity", "Days until as many tokens are served as trained on",
               training.parity_days(trained, served_a_day), "days", "trained / served a day",
               f"{trained:g} / {served_a_day:g}"),
        number("parity_flops", "Days until as many FLOPs are spent",
               training.parity_days(trained, served_a_day, by_flops=True), "days", "6 / 2 * the same"),
        number("logits", "Logits of a decode step, fp32", closed.logits_bytes(batch, vocab), "bytes", "B V 4",
               f"{batch} * {vocab} * 4"),
        number("prompt_logits", "Logits of a prompt at every position, fp32",
               closed.logits_bytes(context, vocab), "bytes", "N V 4", f"{context} * {vocab} * 4"))
    served = {"weights": case.weight_bytes, "workspace": float(space), "KV cache": batch * sequence}
    both = {name: (terms[name].low if name in terms else 0.0, served.get(name, 0.0))
            for name in dict.fromkeys((*terms, *served))}
    charts = (
        chart("ledgers", "Two ledgers of one model", "", "bytes", *bars(("training", "inference"), both),
              stacked=True),
        chart("crossover", "Cache against weights", "conversations", "bytes",
              curve("weights", spread(1, 128), lambda b: case.weight_bytes),
              curve("KV cache", spread(1, 128), lambda b: b * sequence), log="x",
              at_x={"crossover": cross / context, "here": batch}))
    memory = case.memory(case.device.name, batch, context)
    return Result(numbers=numbers, charts=charts, bars=(memory,), num_steps=len(_RESIDENTS), notes=(
        f"{count(batch, 'conversation')}: the cache is {batch * sequence / case.weight_bytes:.3g} times the "
        "weights.",
        "Training's ledger never moves. Three terms of inference are constants too; the fourth is traffic.",
        "A prompt needs logits at its last position alone: the whole tensor exists only where every "
        "position's logprobs were asked for.", *case.notes()))


MEMORY: tuple[Lab, ...] = (
    Lab(key="kv-context", title="The cache against context", compute=_context,
        lead="What a longer context takes, and how many sequences that leaves room for.",
        controls=(parts.stepper(len(_CONTEXTS)), parts.MODEL, parts.CACHE, parts.WEIGHT, parts.DEVICE)),
    Lab(key="heads", title="Head sharing", compute=_heads,
        lead="MHA, GQA, MQA and latents: one term of the cache, and the intensity that goes with it.",
        controls=(parts.stepper(7), parts.choice("heads", "Query heads", "32", ("32", "64", "128")),
                  parts.choice("head_dim", "Head dimension", "128", ("64", "128", "256")),
                  parts.slider("layers", "Layers", 32, 1, 128), parts.CONTEXT, parts.CACHE)),
    Lab(key="ledger", title="The memory ledger beside that of training", compute=_ledger,
        lead="What one model takes to train and to serve, and when the cache outweighs the weights.",
        controls=(parts.stepper(len(_RESIDENTS)), parts.MODEL, parts.CONTEXT, parts.WEIGHT, parts.CACHE,
                  parts.DEVICE,
                  parts.slider("trained", "Trained on", 32.0, 0.1, 100, 0.1, unit="1e12 tokens", log=True),
                  parts.slider("served", "Served a day", 8.6, 0.001, 100, 0.001, unit="1e12 tokens",
                               log=True))))
