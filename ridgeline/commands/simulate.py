"""`ridgeline simulate MODEL`: traffic against the live scheduler in virtual time, priced by the ledger."""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.base.errors import ConfigError
from ridgeline.commands.flags import count, positive, seconds, share, size
from ridgeline.commands.progress import Progress
from ridgeline.commands.simulate_idle import refuse_idle
from ridgeline.planner.ask import CACHES, WEIGHTS, Ask, parse_link, parse_seconds, parse_target
from ridgeline.schedule.targets import Targets
from ridgeline.workload.ask import WorkloadAsk

if TYPE_CHECKING:
    from ridgeline.sim.capacity import Capacity
    from ridgeline.sim.cluster import Topology
    from ridgeline.sim.node import Machine, Serving
    from ridgeline.sim.outcome import Outcome
    from ridgeline.workload.offered import Workload

HELP = "run traffic through the live scheduler in virtual time: latencies, goodput and cost of a deployment"
_ROWS, _STEP_TOKENS = 256, 8192
_NUM_REQUESTS = 1000  # drawn, unless told
_EXAMPLE_MODEL = "llama-3-8b"


def _read(parse: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return read


_time, _target, _link = _read(parse_seconds), _read(parse_target), _read(parse_link)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="MODEL",
                        help="a model as people write it (llama-3-8b), a folder or a Hub id; or `capacity "
                        "MODEL`: the highest rate that meets the targets")
    where = parser.add_argument_group("deployment")
    where.add_argument("--gpu", metavar="NAME", help="a device (h100, a100-80gb, l40s)")
    for name, what in (("tp", "tensor"), ("pp", "pipeline"), ("ep", "expert")):
        where.add_argument(f"--{name}", type=count, metavar="N", help=f"degree of {what} parallelism")
    where.add_argument("--weights", choices=WEIGHTS, help="format of the blocks' matrices (as stored)")
    where.add_argument("--kv-cache-dtype", choices=CACHES, default="bf16", help="format of the KV cache")
    where.add_argument("--memory", type=size, metavar="BYTES", dest="memory_bytes",
                       help="of a device, 80GB or 74.5GiB; default: as marketed")
    where.add_argument("--price", type=positive(float), metavar="USD", dest="price_usd_per_hour",
                       help="of one device an hour; default: the device's own")
    where.add_argument("--profile", metavar="NAME",
                       help="a calibrated machine: its factors, and the machine itself without --gpu")
    where.add_argument("--reading", choices=("estimate", "floor", "nominal"),
                       help="how long steps take: as expected (the default), their floor, which no engine "
                       "can beat, or closed forms over all parameters (--example eight-requests)")
    _add_cluster(parser.add_argument_group("several engines"))
    _add_serving(parser.add_argument_group("serving"))
    _add_workload(parser.add_argument_group("workload"))
    parser.add_argument("--example", choices=("eight-requests", "uniform"),
                        help="eight requests under several schedulers, or what equal requests hide")
    parser.add_argument("--replay", type=Path, metavar="FILE",
                        help="a trace that `serve --trace-file` wrote: are its plans made again and, with a "
                        "MODEL, how far are the ledger's times from those measured")
    parser.add_argument("--attainment", type=share, default=0.9, metavar="SHARE",
                        help="capacity: of what is offered, the share that must meet its targets (0.9)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    parser.add_argument("--html", type=Path, metavar="FILE",
                        help="also write a report that needs no network: slots over time, loads, what-ifs")


def _add_cluster(group: argparse._ActionsContainer) -> None:
    group.add_argument("--replicas", type=count, default=1, metavar="N", help="equal engines (1)")
    group.add_argument("--prefill", metavar="N[@GPU][,tp=N]",
                       help="engines for prompts alone, such as 2, 2@h100,tp=1 or 2@h20,price=1.2 (USD "
                       "of one device an hour); with --decode")
    group.add_argument("--decode", metavar="N[@GPU][,tp=N]", help="engines that go on with their caches")
    group.add_argument("--router", metavar="NAME[:SETTING]", default="least-work",
                       help="which engine takes a request: round-robin, least-work, prefix or prefix:BOUND")
    group.add_argument("--link", type=_link, metavar="RATE", dest="link_bytes_per_s",
                       help="of a device to another host, such as 50GB/s (its network, else its PCIe)")


def _add_serving(group: argparse._ActionsContainer) -> None:
    group.add_argument("--policy", metavar="NAME[:SETTING]", help="who is served next (fcfs)")
    group.add_argument("--compare", metavar="A,B,...", help="several policies under the same load")
    group.add_argument("--ttft", type=_target, metavar="TIME", dest="ttft_s",
                       help="target from arrival to the first token, such as 500ms")
    group.add_argument("--tpot", type=_target, metavar="TIME", dest="tpot_s",
                       help="target of each further token, on average over a request")
    group.add_argument("--max-num-seqs", type=count, default=_ROWS, metavar="N", help=f"in a step ({_ROWS})")
    group.add_argument("--max-num-batched-tokens", type=count, default=_STEP_TOKENS, metavar="TOKENS",
                       help=f"most tokens in a step ({_STEP_TOKENS})")
    group.add_argument("--kv", choices=("paged", "contiguous"), default="paged",
                       help="contiguous: a run of memory for the longest request of the load in each slot")
    group.add_argument("--host-kv-bytes", type=size, default=0, metavar="BYTES",
                       help="of host memory behind each engine's cache: evicted prefixes, and victims where "
                       "copying is cheaper than computing again (0)")
    group.add_argument("--no-prefix-caching", dest="prefix_caching", action="store_false",
                       help="compute every prompt from its first token")


def _add_workload(group: argparse._ActionsContainer) -> None:
    group.add_argument("--trace", metavar="FILE", help="recorded requests, or NAME:FILE where NAME says how "
                       "the file is written")
    group.add_argument("--lengths", metavar="NAME", help="sharegpt, azure-conv, azure-code, "
                       "lognormal:..., uniform:..., fixed:... instead of a trace")
    group.add_argument("--rate", type=seconds, metavar="N", help="requests a second")
    group.add_argument("--arrival", metavar="NAME", default="poisson",
                       help="poisson, gamma:SHAPE, or closed:N for N at a time (poisson)")
    group.add_argument("--rate-scale", type=positive(float), default=1.0, metavar="X",
                       help="press a trace's own arrivals together")
    group.add_argument("--num-requests", type=count, metavar="N",
                       help=f"end after so many ({_NUM_REQUESTS} where they are drawn)")
    group.add_argument("--duration", type=_time, metavar="TIME", dest="duration_s",
                       help="end after so long, such as 600s")
    group.add_argument("--patience", type=_time, metavar="TIME", dest="patience_s",
                       help="each client goes away so long after it came (never)")
    group.add_argument("--length-scale", type=positive(float), default=1.0, metavar="X",
                       help="times each prompt and each answer")
    group.add_argument("--seed", type=int, default=0, help="of drawn lengths and arrivals (0)")


def _topology(args: argparse.Namespace, model: str) -> "Topology":
    from ridgeline.ledger.profile import load_profile
    from ridgeline.planner.fleet import parse_pool, topology_of
    from ridgeline.planner.setup import Workshop
    from ridgeline.planner.site import machine_of

    profile = None if args.profile is None else load_profile(args.profile)
    if profile is not None and profile.calibration is None:
        raise ConfigError(f"profile {profile.name} has no calibration: make one with `ridgeline calibrate "
                          f"--profile {args.profile}`")
    prefill, decode = (None if one is None else parse_pool(one) for one in (args.prefill, args.decode))
    gpu = args.gpu or args.profile or (prefill.gpu if prefill and decode and decode.gpu else None)
    if not gpu:
        raise ConfigError("--gpu is missing: name a device, such as h100, or a machine's --profile")
    shop = Workshop(device=profile.hardware() if profile is not None and not args.gpu else None)
    ask = Ask(model=model, gpu=gpu, prompt=args.max_num_batched_tokens, output=1,
              tp=args.tp, pp=args.pp, ep=args.ep, weights=args.weights, kv=args.kv_cache_dtype,
              memory_bytes=args.memory_bytes, price_usd_per_hour=args.price_usd_per_hour,
              disaggregate=args.prefill is not None, link_bytes_per_s=args.link_bytes_per_s)
    reading = args.reading or "estimate"
    calibration = None if profile is None or reading != "estimate" else profile.calibration
    return topology_of(
        ask, lambda one: machine_of(shop.setup(one), num_rows=args.max_num_seqs, reading=reading,
                                    max_step_tokens=args.max_num_batched_tokens, calibration=calibration,
                                    host_bytes=args.host_kv_bytes),
        replicas=args.replicas, router=args.router, prefill=prefill, decode=decode)


def _servings(args: argparse.Namespace, workload: "Workload") -> "list[Serving]":
    from ridgeline.sim.node import Serving

    targets = Targets(ttft_s=args.ttft_s, tpot_s=args.tpot_s)
    longest = max(one.num_prompt + one.num_output for one in workload.requests)
    return [Serving(policy=name, targets=targets, prefix_caching=args.prefix_caching, kv=args.kv,
                    reserve_tokens=longest) for name in _policies(args)]


def _policies(args: argparse.Namespace) -> list[str]:
    if args.policy and args.compare:
        raise ConfigError("--policy and --compare contradict one another: --compare takes them all")
    names = args.compare.split(",") if args.compare else [args.policy or "fcfs"]
    if len(set(names)) < len(names):
        raise ConfigError(f"--compare {args.compare} names a policy twice")
    return names


def _workload_ask(args: argparse.Namespace) -> WorkloadAsk:
    drawn = args.trace is None and args.duration_s is None
    return WorkloadAsk(trace=args.trace, lengths=args.lengths, arrival=args.arrival, rate=args.rate,
                       rate_scale=args.rate_scale, duration_s=args.duration_s, seed=args.seed,
                       num_requests=args.num_requests or (_NUM_REQUESTS if drawn else None),
                       length_scale=args.length_scale, patience_s=args.patience_s)


def _run(topology: "Topology", serving: "Serving", workload: "Workload") -> "Outcome":
    from ridgeline.sim.cluster import simulate_cluster

    progress = Progress(serving.policy, len(workload.requests))
    try:
        return simulate_cluster(topology, serving, workload, progress)
    finally:
        progress.close()


def _simulate(args: argparse.Namespace, model: str) -> None:
    from ridgeline.sim.report import outcomes_text, targets_text
    from ridgeline.sim.run import check_targets
    from ridgeline.workload.make import make_workload

    topology, workload = _topology(args, model), make_workload(_workload_ask(args))
    servings = _servings(args, workload)
    check_targets(topology.engines[0], servings[0].targets, workload)
    if args.html is not None and not args.html.absolute().parent.is_dir():
        raise ConfigError(f"--html {args.html}: there is no folder {args.html.parent}")
    outcomes = [_run(topology, serving, workload) for serving in servings]
    tiles = sum(one.num_tiles for one in workload.requests)
    about = {"machine": topology.name, "workload": workload.about, "num_requests": len(workload.requests),
             "num_tiles": tiles}
    if args.html is not None:
        about |= _write_html(args, model, servings, workload)
    if args.json:
        found = {one.policy: one.as_json() for one in outcomes}
        _print_json({**about, **(outcomes[0].as_json() if not args.compare else {"policies": found})})
        return
    print(f"{topology.name}; {workload.about}; {targets_text(servings[0].targets)}")
    print(outcomes_text(outcomes))
    if tiles:
        print(f"{tiles} image tiles: their tokens are served and cached, their encoder's time is not in")
    if topology.usd_per_hour is None:
        print("nothing per dollar: the price of a device is not known; give --price, or price=USD of a "
              "--prefill or --decode")


def _write_html(args: argparse.Namespace, model: str, servings: "list[Serving]",
                workload: "Workload") -> dict[str, Any]:
    """The report's file; what it adds to the JSON."""
    from ridgeline.commands.study import make_study, study_json
    from ridgeline.web.report import write_report
    from ridgeline.workload.make import make_workload

    closed = workload.num_at_a_time is not None
    at_rate = None if closed else _rates(replace(_workload_ask(args), rate=None), make_workload)
    study = make_study(args, lambda flags: _topology(flags, model), servings, workload, at_rate,
                       say=lambda what: print(f"report: {what}", file=sys.stderr))
    write_report(study, args.html)
    return study_json(study)


def _capacity(args: argparse.Namespace, model: str) -> None:
    from ridgeline.sim.capacity import find_capacity
    from ridgeline.sim.report import capacity_text, targets_text
    from ridgeline.sim.run import check_targets
    from ridgeline.workload.make import make_workload

    if args.ttft_s is None and args.tpot_s is None:
        raise ConfigError("capacity needs targets: give --ttft, --tpot, or both")
    topology, at_rate = _topology(args, model), _rates(_workload_ask(args), make_workload)
    servings = _servings(args, at_rate(1.0))
    check_targets(topology.engines[0], servings[0].targets, at_rate(1.0))
    found = [find_capacity(lambda rate, serving=serving: _run(topology, serving, at_rate(rate)),  # type: ignore[misc]
                           args.attainment) for serving in servings]
    splits = [] if not topology.decode else [
        _against_replicas(args, topology, serving, at_rate, one) for serving, one in zip(servings, found)]
    if args.json:
        each = {one.outcome.policy: {"rate": one.rate, "attainment": one.attainment,
                                     "tried": one.tried, "at_rate": one.outcome.as_json()} for one in found}
        for of, split in zip(each.values(), splits):
            of |= split
        _print_json({"machine": topology.name, **(next(iter(each.values())) if not args.compare
                                                 else {"policies": each})})
        return
    print(f"{topology.name}; {targets_text(servings[0].targets)} for {args.attainment:.0%} of what is "
          "offered")
    print(capacity_text(found))
    for one, split in zip(found, splits):
        border = split["pays_from"]
        print(f"{one.outcome.policy}: as replicas, the same devices reach {split['replicas_rate']:.3g}/s; "
              + ("the split does not pay" if border is None else
                 f"the split pays from {border:.3g}/s on, by its goodput"))


def _against_replicas(args: argparse.Namespace, topology: "Topology", serving: "Serving",
                      at_rate: "Callable[[float], Workload]", found: "Capacity") -> dict[str, Any]:
    """What the same devices reach as replicas and, where the split reaches more, the rate from which on it
    gives more goodput."""
    from ridgeline.sim.capacity import find_capacity
    from ridgeline.sim.pays import pays_from

    whole = topology.as_replicas()
    reached = find_capacity(lambda rate: _run(whole, serving, at_rate(rate)), args.attainment).rate
    border = None
    if found.rate > reached:
        border = pays_from(lambda rate: _run(topology, serving, at_rate(rate)),
                           lambda rate: _run(whole, serving, at_rate(rate)), found.rate / 16, found.rate)
    return {"replicas_rate": reached, "pays_from": border}


def _rates(ask: WorkloadAsk, make: "Callable[[WorkloadAsk], Workload]") -> "Callable[[float], Workload]":
    """The workload at a rate: drawn arrivals, or a trace's own pressed together."""
    if ask.rate is not None:
        raise ConfigError("capacity finds the rate: leave --rate out")
    if ask.trace is None:
        return lambda rate: make(replace(ask, rate=rate))
    own = make(ask)
    span_s = own.requests[-1].arrived_s - own.requests[0].arrived_s
    if not span_s:
        return lambda rate: make(replace(ask, rate=rate))
    own_rate = len(own.requests) / span_s
    return lambda rate: make(replace(ask, rate_scale=ask.rate_scale * rate / own_rate))


def _run_alone(machine: "Machine", serving: "Serving", workload: "Workload") -> "Outcome":
    """On one engine."""
    from ridgeline.sim.cluster import Topology

    return _run(Topology(engines=(machine,)), serving, workload)


def _replay(args: argparse.Namespace, model: str | None) -> int:
    from ridgeline.commands.simulate_replay import tell_replay

    seconds = None if model is None else _topology(args, model).engines[0].seconds
    text, values, same = tell_replay(args.replay, seconds)
    if args.json:
        _print_json(values)
    else:
        print(text())
    return 0 if same else 1


def _example(args: argparse.Namespace, model: str) -> None:
    from ridgeline.commands.simulate_example import tell_eight, tell_uniform
    from ridgeline.sim.examples import (
        EIGHT_POLICIES,
        EIGHT_ROWS,
        EIGHT_STEP_TOKENS,
        UNIFORM_REQUESTS,
        UNIFORM_ROWS,
    )
    from ridgeline.workload.make import make_workload

    args.gpu = args.gpu or (None if args.profile else "h100")
    if args.example == "eight-requests":
        args.max_num_seqs, args.max_num_batched_tokens = EIGHT_ROWS, EIGHT_STEP_TOKENS
        args.reading = args.reading or "nominal"
        targets = Targets(ttft_s=args.ttft_s, tpot_s=args.tpot_s)
        policies = _policies(args) if args.policy or args.compare else EIGHT_POLICIES
        text, values = tell_eight(_topology(args, model).engines[0], policies, targets, _run_alone)
    else:
        args.max_num_seqs = UNIFORM_ROWS
        ask = WorkloadAsk(lengths=args.lengths or "azure-conv", arrival=f"closed:{UNIFORM_ROWS}",
                          num_requests=args.num_requests or UNIFORM_REQUESTS, seed=args.seed)
        text, values = tell_uniform(_topology(args, model).engines[0], make_workload(ask), _run_alone)
    if args.json:
        _print_json(values)
    else:
        print(text())


def _print_json(values: Any) -> None:
    print(json.dumps(values, indent=1, allow_nan=False))


DOORS = {"capacity": _capacity}  # words that open another door; each takes a model


def run(args: argparse.Namespace) -> int:
    words = list(args.words)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    refuse_idle(args, parser)
    if args.replay is not None:
        if args.example is not None or len(words) > 1:
            raise ConfigError("--replay takes one model, or none for plans alone, and no --example")
        return _replay(args, words[0] if words else None)
    if args.example is not None:
        words, door = words or [_EXAMPLE_MODEL], _example
    elif not words:
        raise ConfigError("name a model, such as llama-3-8b, or give an --example")
    else:
        door = DOORS[words.pop(0)] if words[0] in DOORS and len(words) > 1 else _simulate
    if len(words) > 1:
        raise ConfigError(f"one model at a time, not {len(words)}: {' '.join(words)}; a name with blanks "
                          "needs quotes")
    door(args, words[0])
    return 0
