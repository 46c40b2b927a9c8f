"""`ridgeline bench kernels SHAPE`: each kernel of a step beside its floor, and a decode step as one graph.

The floor is made of rates measured in the same run. Random weights; nothing is loaded and no engine is built.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, product
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.base.errors import ConfigError
from ridgeline.bench.around import chunk_kernels, sampling_kernels
from ridgeline.bench.chain import KV_BYTES, Cache, Chain, linear_shapes, parts
from ridgeline.bench.split import Split, split_step
from ridgeline.bench.timed import Timed
from ridgeline.bench.tune import operands, time_calls, tune
from ridgeline.engine.ceilings import Ceilings, measure_ceilings
from ridgeline.engine.timing import captured, median_s
from ridgeline.kernels.decode_attention import DecodeAttention
from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.decode_linear.tuning import Entry, Tuning, own_file
from ridgeline.kernels.gpu import Gpu, open_gpu
from ridgeline.models.checkpoint import open_shape
from ridgeline.spec.model import ModelSpec

ROWS = (1, 16, 32, 64, 128)
STEPS = (1, 32, 128)  # rows of whole steps
DEFAULT_SHAPE = "llama-3.1-8b"
DEFAULT_CONTEXT = 128
_COLD_BYTES = 400 << 20
_MAX_LAYERS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArgs:
    """shape: a published shape's name, None for llama-3.1-8b. context: tokens before the new one (128).

    json: one JSON object instead of text. tune: first measure every candidate tile of the shape's linears and
    keep the best for this GPU.
    """

    shape: str | None = None
    context: int | None = None
    json: bool = False
    tune: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A whole step of so many rows as a graph. launch: how its kernels follow one another. split: where its
    time goes, for the one whose kernels do not overlap."""

    rows: int
    launch: str
    seconds: float
    floor_s: float
    split: Split | None = None

    def text(self) -> str:
        line = (f"    {self.launch:32}{self.seconds * 1e3:8.3f} ms, floor {self.floor_s * 1e3:.3f} ms "
                f"({self.floor_s / self.seconds:.0%} of it)")
        return line if self.split is None else f"{line}\n{self.split.text()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    """Everything measured in one run. context: tokens of each row, the new one included."""

    shape: str
    gpu: str
    context: int
    ceilings: Ceilings
    kernels: tuple[Timed, ...]
    steps: tuple[Step, ...]

    def as_json(self) -> dict[str, object]:
        return {"bench": "kernels", "torch": torch.__version__, **asdict(self)}

    def text(self) -> str:
        c = self.ceilings
        lines = [f"kernels: {self.shape} in bfloat16 on {self.gpu}, torch {torch.__version__}",
                 f"  measured in this run: read {c.read_bytes_s / 1e9:.0f} GB/s, copy "
                 f"{c.copy_bytes_s / 1e9:.0f} GB/s, matrix product {c.flops_s / 1e12:.0f} TFLOP/s", ""]
        lines += [kernel.text(c) for kernel in self.kernels]
        for rows, steps in groupby(self.steps, lambda step: step.rows):
            lines += ["", f"  a step of {rows} rows, {self.context} tokens of context, as a graph"]
            lines += [step.text() for step in steps]
        return "\n".join(lines)


def run(args: KernelArgs, write: Callable[[str], object] = print) -> int:
    """Measure and write the report; the exit code. ConfigError without a GPU that runs the kernels."""
    shape = args.shape or DEFAULT_SHAPE
    spec = open_shape(shape).spec
    parts(spec)
    gpu = open_gpu(torch.device("cuda"))
    if args.tune:
        path = own_file(gpu.name)
        entries = tune(gpu, linear_shapes(spec).values(), report=partial(_aside, args.json, write))
        _kept(path, gpu, entries).save(path)
        _aside(args.json, write, f"saved as {path}")
    context = (args.context or DEFAULT_CONTEXT) + 1
    if context > spec.max_position:
        raise ConfigError(f"{shape} has a context of {spec.max_position} tokens: lower --prompt-tokens")
    ceilings = measure_ceilings(gpu.device)
    report = KernelReport(shape=shape, gpu=gpu.name, context=context, ceilings=ceilings,
                          kernels=tuple(_kernels(gpu, spec, context, ceilings)),
                          steps=tuple(_steps(gpu, spec, context, ceilings)))
    write(json.dumps(report.as_json(), allow_nan=False) if args.json else report.text())
    return 0


def _aside(quiet: bool, write: Callable[[str], object], line: str) -> None:
    if not quiet:
        write(line)


def _kept(path: Path, gpu: Gpu, entries: Sequence[Entry]) -> Tuning:
    """What the file holds of other shapes, and the new entries over it."""
    old = Tuning.load(path.read_text(encoding="utf-8"), str(path)).entries if path.is_file() else {}
    return Tuning(gpu.name, {**old, **Tuning.of(gpu.name, entries).entries})


def _kernels(gpu: Gpu, spec: ModelSpec, context: int, ceilings: Ceilings) -> Iterator[Timed]:
    linears = DecodeLinears(gpu)
    for name, shape in linear_shapes(spec).items():
        for rows in ROWS:
            calls = operands(gpu, shape, rows)
            moved = shape.weight_elements * 2 + rows * (shape.n + shape.k) * 2
            flops = 2 * rows * shape.weight_elements
            yield Timed(name=name, rows=rows, seconds=time_calls(calls, linears), num_bytes=moved,
                        flops=flops,
                        floor_s=ceilings.floor_s(moved, flops), cublas_s=time_calls(calls, _product))
    for rows in ROWS:
        yield _attention(gpu, spec, rows, context, ceilings)
    yield from sampling_kernels(gpu, spec, ceilings)
    yield from chunk_kernels(gpu, spec, ceilings)


def _product(call: Call) -> Tensor:
    return torch.nn.functional.linear(call.x_MK, call.weight)


def _attention(gpu: Gpu, spec: ModelSpec, rows: int, context: int, ceilings: Ceilings) -> Timed:
    """The first layer's attention, on as many layers' caches as keep it out of every cache of the GPU."""
    attention = parts(spec)[0][0]
    seen = min(context, attention.window_tokens or context)
    moved = rows * seen * 2 * attention.kv_size * KV_BYTES
    flops = 4 * rows * seen * attention.q_size
    layers = max(2, min(_MAX_LAYERS, -(-_COLD_BYTES // moved)))
    cache = Cache.random(gpu, attention, layers=layers, rows=rows, context=context)
    attend = DecodeAttention(gpu, max_rows=rows, max_kv_heads=attention.num_kv_heads)
    plan = attend.plan(cache.rows, *cache.layer(0), num_heads=attention.num_heads,
                       window=attention.window_tokens)
    qkv = torch.randn(rows, attention.q_size + 2 * attention.kv_size, device=gpu.device, dtype=torch.bfloat16)
    graph = captured(lambda: [attend(qkv, *cache.layer(i), plan,
                                     scale=attention.scale) for i in range(layers)])
    return Timed(name="attention", rows=rows, seconds=median_s(graph.replay) / layers, num_bytes=moved,
                 flops=flops, floor_s=ceilings.floor_s(moved, flops))


def _steps(gpu: Gpu, spec: ModelSpec, context: int, ceilings: Ceilings) -> Iterator[Step]:
    """The same chain, launched in three ways."""
    plain = replace(gpu, programmatic=False)
    ways = [("one after another", plain, False)]
    if gpu.programmatic:
        ways += [("overlapped (PDL)", gpu, True), ("overlapped, attention late", gpu, False)]
    for rows, (launch, how, early) in product(STEPS, ways):
        chain = Chain(how, spec, context=context, rows=rows, attention_early=early)
        graph = captured(chain.step)
        seconds = median_s(graph.replay, repeats=15)
        split = None if how.programmatic else split_step(chain.step, graph, seconds)
        yield Step(rows=rows, launch=launch, seconds=seconds, floor_s=ceilings.floor_s(chain.read_bytes, 0),
                   split=split)
        del chain, graph
