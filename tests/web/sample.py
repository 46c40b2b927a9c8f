"""Two small labs with every kind of control, number, chart and bar, to test the pages with."""

from collections.abc import Mapping

from ridgeline.base.errors import ConfigError
from ridgeline.planner.lab import Bar, Chart, Control, Lab, Mark, Number, Result, Series, Value

GPUS = {"h100": 80e9, "h200": 141e9, "a100-40gb": 40e9, "l40s": 48e9, "mi300x": 192e9}


def _cache(state: Mapping[str, Value]) -> Result:
    context, users = int(state["context"]), int(state["users"])
    kv_bytes = 131072 * (1 if state["fp8"] else 2) / 2 * context
    weights = {"bf16": 16.06e9, "fp8": 8.03e9, "int4": 4.0e9}[str(state["weights"])]
    total = GPUS[str(state["gpu"])]
    if users % 7 == 0:
        raise ConfigError(f"users is {users}: this sample takes no multiple of 7")
    xs = tuple(float(2**i) for i in range(9, 18))
    curve = Chart(
        key="residents",
        title="Sequences that fit against context",
        x_label="context, tokens",
        y_label="sequences",
        series=(
            Series(name="fits", x=xs, y=tuple((total - weights) / (kv_bytes / context * x) for x in xs)),
            Series(
                name="with 2 GB of workspace", x=xs, y=tuple((total - weights - 2e9) / 131072 / x for x in xs)
            ),
            Series(
                name="reserve",
                x=xs,
                y=tuple(0.5 * (total - weights) / 131072 / x for x in xs),
                kind="band",
                upper=tuple((total - weights) / 131072 / x for x in xs),
            ),
        ),
        log_x=True,
        log_y=True,
        marks=(Mark(label="here", x=float(context)), Mark(label="one", y=1.0)),
    )
    names = ("weights", "cache", "spare")
    stack = Chart(
        key="terms",
        title="Step bytes by term",
        x_label="",
        y_label="GB",
        stacked=True,
        series=tuple(
            Series(name=n, x=("now", "twice the users"), y=(i + 1.0, i + 2.0), kind="bar")
            for i, n in enumerate(names)
        ),
    )
    return Result(
        numbers=(
            Number(
                key="kv_bytes_per_sequence",
                label="KV per sequence",
                value=kv_bytes,
                unit="bytes",
                formula="2 · L · n_kv · d_head · s · N",
                inputs=f"2 · 32 · 8 · 128 · 2 · {context:,}",
            ),
            Number(
                key="kv_total_bytes",
                label="KV total",
                value=kv_bytes * users,
                unit="bytes",
                formula="B · KV",
                inputs=f"{users} · {kv_bytes:,.0f}",
            ),
            Number(key="read_s", label="KV read a step", value=kv_bytes * users / 3.35e12, unit="s"),
            Number(key="fits", label="Fits", value=weights + kv_bytes * users <= total),
            Number(
                key="max_users",
                label="Most sequences",
                value=int((total - weights) / kv_bytes),
                formula="(M − W) / KV",
                reading="nominal",
            ),
        ),
        charts=(curve, stack),
        bars=(
            Bar(
                key="device",
                title="Device memory",
                total=total,
                parts=(("weights", weights), ("KV cache", kv_bytes * users), ("workspace", 2e9)),
            ),
        ),
        notes=(
            "The cache grows with every token; the weights do not.",
            f"At {context:,} tokens, mind the tail.",
        ),
    )


def _chain(state: Mapping[str, Value]) -> Result:
    step = int(state["step"])
    xs = tuple(float(x) for x in range(1, step + 2))
    lines = (
        Series(name="tokens out", x=xs, y=xs, kind="step"),
        Series(name="measured", x=xs, y=xs, kind="points"),
    )
    return Result(
        numbers=(Number(key="num_passes", label="Passes so far", value=step, formula="t"),),
        charts=(
            Chart(key="chain", title="One pass a token", x_label="pass", y_label="tokens", series=lines),
        ),
        notes=(f"Pass {step + 1} needs the token of pass {step}.",),
        num_steps=8,
    )


CACHE = Lab(
    key="sample-cache",
    title="Sample cache",
    lead="How many conversations fit beside the weights.",
    controls=(
        Control(key="gpu", label="Accelerator", kind="choice", default="h100", choices=tuple(GPUS)),
        Control(
            key="context",
            label="Context length",
            kind="number",
            default=8192,
            unit="tokens",
            low=128,
            high=131072,
            step=1,
            log=True,
            help="Prompt and output together.",
        ),
        Control(key="users", label="Concurrent sequences", kind="number", default=8, low=1, high=64, step=1),
        Control(
            key="weights", label="Weights", kind="choice", default="bf16", choices=("bf16", "fp8", "int4")
        ),
        Control(
            key="fp8",
            label="fp8 cache",
            kind="toggle",
            default=False,
            help="Halves what a token leaves behind.",
        ),
    ),
    compute=_cache,
)
CHAIN = Lab(
    key="sample-chain",
    title="Sample chain",
    lead="Each pass waits for the one before it.",
    controls=(Control(key="step", label="Step", kind="number", default=1, low=1, high=8, step=1),),
    compute=_chain,
)
GROUPS = {"Labs": (CACHE,), "Figures": (CHAIN,)}
