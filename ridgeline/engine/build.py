"""From EngineConfig to an assembled engine: checkpoint, numbers, weights, executor, scheduler, loop.

Owns the order of a start and says once what it chose. What each part does is its own room's business.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch

from ridgeline.adapters.stacked import AnySlots
from ridgeline.base.clock import Clock, WallClock
from ridgeline.base.config import EngineConfig, cache_dir
from ridgeline.base.trace import Trace
from ridgeline.engine.adapters import Adapters, count_slots, open_slots, start_adapters
from ridgeline.engine.capacity import decide_capacity, held_bytes
from ridgeline.engine.deterministic import deterministic_device, prove_products
from ridgeline.engine.drafting import build_drafter, check_speculation
from ridgeline.engine.floors import (
    describe,
    gpu_profile,
    machine_profile,
    price_of,
    prices_of,
    step_key,
    steps_of,
    worker_of,
)
from ridgeline.engine.host import pressure_of
from ridgeline.engine.machine import num_cores, own_version
from ridgeline.engine.numerics import Numerics, choose_device, choose_gpu, choose_numerics
from ridgeline.engine.recorded import for_replay, origin_of, records_to, trace_file
from ridgeline.engine.sizes import (
    check_weights,
    decide_threads,
    say_largest_request,
)
from ridgeline.engine.snapshots import decide_snapshots
from ridgeline.engine.startup import Startup
from ridgeline.engine.targets import build_overload
from ridgeline.frontend.files import load_text
from ridgeline.frontend.tokenizer import Tokenizer
from ridgeline.kernels.cpu.native import native
from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.prefill_attention import LIBRARY_TOKENS
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.account import Account, account
from ridgeline.ledger.price import Price
from ridgeline.ledger.profile import MachineProfile
from ridgeline.ledger.steps import Steps
from ridgeline.ledger.work import Worker
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.models.resolve import open_model
from ridgeline.nn.build import Model, build_model
from ridgeline.nn.linear import Weight
from ridgeline.nn.load import Weights, load_weights
from ridgeline.nn.progress import told_when_slow
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.grammar import Grammars
from ridgeline.runner.runner import LocalExecutor
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.schedule.executor import Capacity
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.policies.policy import Needs
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Speculation
from ridgeline.schedule.targets import Targets
from ridgeline.spec.block import ParamSpec
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Everything that runs one model in this process.

    name: how the model is served. numerics: the numeric path in a word. account: FLOPs and bytes of a step,
    weights as they are held. profile: of this machine, what the records' floors are made of. info: the answer
    to "info": the keys of `_info`, "profile" (`floors.describe`) and "max_request_tokens". adapters: None
    without room for any.
    """

    name: str
    checkpoint: Checkpoint
    spec: ModelSpec
    numerics: str
    capacity: Capacity
    account: Account
    profile: MachineProfile
    loop: Loop
    executor: LocalExecutor | GpuExecutor
    device: torch.device
    trace: Trace | None
    info: Mapping[str, Any]
    adapters: Adapters | None

    @property
    def default_params(self) -> SamplingParams:
        """SamplingParams with the model's own defaults, where its files state some."""
        stated: Mapping[str, Any] = self.checkpoint.sampling_defaults
        return SamplingParams(**stated)

    @property
    def grammars(self) -> Grammars | None:
        """What compiles grammars for the executor; None where it follows none."""
        return self.executor.grammars

    def price(self, profile: MachineProfile) -> Price:
        """The floors of this engine's steps at the rates of a profile."""
        return price_of(self.account, self.numerics, profile)

    def work(self, profile: MachineProfile) -> Worker:
        """The work of this engine's steps, for estimates by a calibrated profile."""
        return worker_of(self.spec, self.account, self.numerics, profile)

    def steps(self, profile: MachineProfile) -> Steps:
        """Expected seconds of this engine's steps, for simulations."""
        return steps_of(self.spec, self.account, self.numerics, profile)

    def close(self) -> None:
        """End the executor's worker and the trace; the loop must not be stepped any more."""
        if self.adapters is not None:
            self.adapters.close()
        self.executor.close()
        if self.trace is not None:
            self.trace.close()


def build_engine(
    config: EngineConfig, *, serving: bool = False, trace: Trace | None = None, clock: Clock | None = None
) -> Engine:
    """Load a model and put an engine around it.

    serving: another process of this machine needs a core (HTTP, text). trace: takes records too, beside the
    config's trace_file. Raises ConfigError and CheckpointError, each with the change that helps.
    """
    clock = clock or WallClock()
    startup = Startup(clock)
    targets = Targets(ttft_s=config.ttft_s, tpot_s=config.tpot_s)
    make_policy(config.policy, Needs(targets=targets, price=lambda step: 0.0))  # mistakes are told at once
    device = choose_device(config, startup)
    check_speculation(config, on_gpu=device.type == "cuda")
    count_slots(config)  # mistakes are told at once
    threads = decide_threads(config, num_cores(), serving=serving, startup=startup)
    torch.set_num_threads(threads)
    with startup.phase("open"):
        checkpoint = open_model(
            config.model, revision=config.revision, load_format=config.load_format,
            overrides=config.hf_overrides,
        )  # fmt: skip
    gpu = choose_gpu(config, device, startup)
    if device.type == "cpu":
        with startup.phase("kernels"), told_when_slow("compiling the CPU kernels", shown=config.progress):
            native()  # built here when they are not there yet, so that no other phase takes the blame
    numerics = choose_numerics(config, checkpoint, startup, device)
    gpu = deterministic_device(config, checkpoint.spec, numerics, device, gpu)
    slots = open_slots(config, checkpoint.spec, numerics.activations, device, gpu)
    with startup.phase("profile"):
        profile = machine_profile(threads, startup) if device.type == "cpu" else gpu_profile(device, startup)
    file = trace_file(config, checkpoint.name, numerics.name, profile)
    with startup.phase("weights"):
        weights = _weights(config, checkpoint, numerics, device, startup)
    with startup.phase("executor"):
        model = _model(config, checkpoint.spec, weights, numerics, gpu, slots)
        capacity = decide_capacity(config, checkpoint.spec, numerics, weights, device, startup, slots)
        drafter = build_drafter(config, capacity, clock, startup, on_gpu=device.type == "cuda")
        grammars = _grammars(config, checkpoint, threads, device)
        executor = _executor(model, capacity, numerics, device, clock, threads, drafter, grammars)
    adapters = _adapters(config, checkpoint.spec, slots, executor, startup)
    _prepare(executor, model, config, startup)
    bill = _account(checkpoint.spec, weights, numerics)
    price = price_of(bill, numerics.name, profile)
    policy = make_policy(config.policy, Needs(targets=targets, price=price))
    stride, kept_bytes = decide_snapshots(capacity, price, profile.read_bytes_per_s, startup)
    manager = KVManager(
        capacity.layout, capacity.num_pages, prefix_caching=config.prefix_caching and config.cache,
        snapshot_stride=stride, snapshot_bytes=kept_bytes, num_host_pages=capacity.num_host_pages,
    )  # fmt: skip
    speculation = Speculation(capacity.num_rows, config.speculate_max, price) if drafter is not None else None
    scheduler = Scheduler(
        capacity, manager, policy, max_num_batched_tokens=capacity.max_step_tokens,
        max_num_seqs=capacity.num_rows, eos_token_ids=checkpoint.spec.eos_token_ids, seed=config.seed,
        cache=config.cache, speculation=speculation, overload=build_overload(config, price, capacity, policy),
        pressure=pressure_of(config, capacity, price, device, startup),
    )  # fmt: skip
    say_largest_request(scheduler.max_request_tokens, capacity, startup)
    whole_trace = records_to(trace, file, origin_of(config, capacity, targets, executor, stride, kept_bytes))
    prices = prices_of(price, profile, step_key(checkpoint.spec, numerics.name, price), adapters)
    return Engine(
        name=checkpoint.name, checkpoint=checkpoint, spec=checkpoint.spec,
        numerics=numerics.name, capacity=capacity, account=bill, profile=profile,
        loop=Loop(scheduler, executor, clock, whole_trace, prices, for_replay(config, capacity)),
        executor=executor, device=device, trace=whole_trace, adapters=adapters,
        info=_info(config, checkpoint, capacity, weights, startup)
        | {"max_request_tokens": scheduler.max_request_tokens, "profile": describe(profile, price)},
    )


def _weights(
    config: EngineConfig, checkpoint: Checkpoint, numerics: Numerics, device: torch.device, startup: Startup
) -> Weights:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        size = numerics.activations.itemsize
        check_weights(checkpoint.spec, element_bytes=size, free_bytes=free, total_bytes=total)
    weights = load_weights(
        checkpoint, numerics.policy, device=device, progress=config.progress,
        cache_dir=cache_dir() / "repacked", seed=config.seed,
    )  # fmt: skip
    if config.deterministic:
        prove_products(weights, startup)
    return weights


def _model(
    config: EngineConfig, spec: ModelSpec, weights: Weights, numerics: Numerics, gpu: Gpu | None,
    slots: AnySlots | None,
) -> Model:
    held = cast(Mapping[str, Weight], weights)
    return build_model(spec, held, numerics.activations, gpu, slots, apart=config.deterministic)


def _executor(
    model: Model, capacity: Capacity, numerics: Numerics, device: torch.device, clock: Clock, threads: int,
    drafter: Drafter | None, grammars: Grammars,
) -> LocalExecutor | GpuExecutor:
    if model.gpu is None:
        return LocalExecutor(
            model, capacity, cache_dtype=numerics.cache, device=device, clock=clock, threads=threads,
            drafter=drafter, grammars=grammars,
        )  # fmt: skip
    return GpuExecutor(
        model, capacity, cache_dtype=numerics.cache, device=device, clock=clock, drafter=drafter,
        grammars=grammars,
    )  # fmt: skip


def _grammars(config: EngineConfig, checkpoint: Checkpoint, threads: int, device: torch.device) -> Grammars:
    """The tokenizer is read when the first request with a grammar comes."""

    def vocabulary() -> Tokenizer:
        return load_text(checkpoint.path, tokenizer=config.tokenizer).need_tokenizer("grammar")

    spec = checkpoint.spec
    return Grammars(
        vocabulary, vocab_size=spec.vocab_size, eos_token_ids=spec.eos_token_ids, threads=threads,
        jump_ahead=config.jump_ahead, pinned=device.type == "cuda",
    )


def _adapters(
    config: EngineConfig, spec: ModelSpec, slots: AnySlots | None, executor: LocalExecutor | GpuExecutor,
    startup: Startup,
) -> Adapters | None:  # fmt: skip
    if slots is None:
        return None
    return start_adapters(config, spec, slots, executor.put_adapter, startup)


def _prepare(
    executor: LocalExecutor | GpuExecutor, model: Model, config: EngineConfig, startup: Startup
) -> None:
    """A GPU's kernels and graphs; what steps run by is said."""
    if not isinstance(executor, GpuExecutor):
        if model.ways:
            names, reasons = (dict.fromkeys(words) for words in zip(*model.ways, strict=True))
            startup.choose("attention", " and ".join(names), "; ".join(reasons))
        return
    with startup.phase("kernels"), told_when_slow("compiling the GPU kernels", shown=config.progress):
        executor.prepare()
    if model.capturable:
        startup.choose("decode", "graphs", "the kernels take every block; recorded at the start")
        startup.choose(
            "prefill", "cuBLAS and paged attention", f"cuDNN's from {LIBRARY_TOKENS} tokens without prefix on"
        )
    else:
        kinds = ", ".join(model.not_capturable)
        why = f"graphs cannot hold these blocks: {kinds}" if kinds else (
            "deterministic: a token of a decode goes as a prompt's do, and nothing is recorded")
        startup.choose("decode", "kernel by kernel", why)


def _account(spec: ModelSpec, weights: Weights, numerics: Numerics) -> Account:
    held = held_bytes(weights)

    def weight_bytes(name: str, param: ParamSpec) -> float:
        return held[name] if name in held else held["embed.weight"]  # a tied head is the embedding

    return account(spec, weight_bytes=weight_bytes, cache_element_bytes=numerics.cache.itemsize,
                   ends_early=True)


def _info(
    config: EngineConfig, checkpoint: Checkpoint, capacity: Capacity, weights: Weights, startup: Startup
) -> dict[str, Any]:
    """What the engine is, JSON-able. startup: seconds by phase, and each choice with its reason."""
    spec = checkpoint.spec
    return {
        "version": own_version(),
        "name": checkpoint.name,
        "path": None if checkpoint.path is None else str(checkpoint.path),
        "family": spec.family,
        "num_params": spec.num_params,
        "vocab_size": spec.vocab_size,
        "eos_token_ids": list(spec.eos_token_ids),
        "sampling_defaults": checkpoint.sampling_defaults,
        "max_model_len": capacity.max_model_len,
        "max_num_seqs": capacity.num_rows,
        "max_num_batched_tokens": capacity.max_step_tokens,
        "weights_bytes": sum(held_bytes(weights).values()),
        "kv_cache_bytes": capacity.num_pages * capacity.layout.page_bytes,
        "host_kv_bytes": capacity.num_host_pages * capacity.layout.page_bytes,
        "num_pages": capacity.num_pages,
        "page_bytes": capacity.layout.page_bytes,
        "block_tokens": min(
            (group.tokens_per_page for group in capacity.layout.groups if group.tokens_per_page), default=0
        ),
        "prefix_caching": config.prefix_caching and config.cache,
        "cache": config.cache,
        "deterministic": config.deterministic,
        "policy": config.policy,
        "speculate": config.speculate,
        "startup": startup.as_dict(),
    }
