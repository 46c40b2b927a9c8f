"""What `simulate --html` looks at beside the runs that were asked for: the four schedulers on a few requests,
less and more load, and each knob turned alone."""

import argparse
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from ridgeline.base.errors import ConfigError
from ridgeline.sim.cluster import Topology, simulate_cluster
from ridgeline.sim.fragments import compare_memory
from ridgeline.sim.node import Serving
from ridgeline.sim.outcome import Outcome
from ridgeline.sim.report import targets_text
from ridgeline.sim.study import Change, Loads, Run, Study, four_schedulers, watch
from ridgeline.workload.offered import Workload

Build = Callable[[argparse.Namespace], Topology]
AtRate = Callable[[float], Workload]
_Knob = tuple[str, str, str, argparse.Namespace, Serving]
_EXAMPLE, _SLOTS, _CHUNK = 16, 8, 512  # requests, slots and tokens a chunk of the four schedulers
_MOST = 400  # requests of a run that is one of many
_LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
_POLICIES = ("fcfs", f"chunked:{_CHUNK}", "slo")


def make_study(args: argparse.Namespace, build: Build, servings: Sequence[Serving], workload: Workload,
               at_rate: AtRate | None, say: Callable[[str], None]) -> Study:
    """All of it. build: the topology of some flags; at_rate: None where arrivals have no rate; say: told what
    is being looked at. Knobs are turned on the run with the best goodput."""
    topology, few = build(args), _first(workload, _MOST)
    runs = []
    for one in servings:
        say(one.policy)
        runs.append(watch(one.policy, topology, one, few))
    best = max(range(len(runs)), key=lambda place: runs[place].outcome.goodput)
    say("loads")
    loads = () if at_rate is None else _loads(topology, servings, few, at_rate)
    say("memory")
    memory = compare_memory(topology.engines[0], servings[best], few)
    say("knobs")
    return Study(
        title=topology.name, targets=servings[0].targets, runs=runs,
        about=(workload.about, targets_text(servings[0].targets),
               f"{len(few.requests)} of {len(workload.requests)} requests"),
        examples=_example(args, build, servings[0], workload),
        example_about=f"The first {min(_EXAMPLE, len(workload.requests))} requests, there at once, on "
        f"{_SLOTS} slots of one engine; the last on one for prompts and one for answers.",
        loads=loads, memory=memory, base=runs[best], changes=list(_changes(args, build, servings[best], few)))


def study_json(study: Study) -> dict[str, Any]:
    """What a study adds to the numbers of its runs."""
    return {"memory": [asdict(one) for one in study.memory],
            "what_if": [{"knob": one.knob, "from": one.before, "to": one.after,
                         "goodput": one.outcome.goodput,
                         "goodput_per_device": one.outcome.goodput_per_device,
                         "good_per_usd": one.outcome.good_per_usd} for one in study.changes]}


def _first(workload: Workload, num: int) -> Workload:
    return replace(workload, requests=workload.requests[:num])


def _example(args: argparse.Namespace, build: Build, serving: Serving, workload: Workload) -> list[Run]:
    """The first requests, all there at once, on one engine with a few slots."""
    flags = _turned(args, max_num_seqs=_SLOTS, replicas=1, prefill=None, decode=None)
    requests = [replace(one, arrived_s=0.0, patience_s=None) for one in workload.requests[:_EXAMPLE]]
    return four_schedulers(build(flags).engines[0], serving,
                           Workload(requests=requests, about="the first at once"), _CHUNK)


def _loads(topology: Topology, servings: Sequence[Serving], workload: Workload,
           at_rate: AtRate) -> list[Loads]:
    arrived_s = [one.arrived_s for one in workload.requests]
    span_s = arrived_s[-1] - arrived_s[0]
    rates = [times * len(arrived_s) / span_s for times in _LOADS] if span_s else []
    offered = [_first(at_rate(rate), _MOST) for rate in rates]
    return [Loads(name=one.policy, rates=rates,
                  outcomes=[simulate_cluster(topology, one, load) for load in offered]) for one in servings]


def _changes(args: argparse.Namespace, build: Build, serving: Serving,
             workload: Workload) -> Iterator[Change]:
    """Each knob alone; those that this model or device does not have are left out."""
    for knob, before, after, flags, changed in _knobs(args, serving):
        try:
            outcome: Outcome = simulate_cluster(build(flags), changed, workload)
        except ConfigError:
            continue
        yield Change(knob=knob, before=before, after=after, outcome=outcome)


def _knobs(args: argparse.Namespace, serving: Serving) -> Iterator[_Knob]:
    """(what is turned, from, to, the flags then, the serving then)."""
    for policy in _POLICIES:
        if policy != serving.policy:
            yield "policy", serving.policy, policy, args, replace(serving, policy=policy)
    for name in ("max_num_batched_tokens", "max_num_seqs"):
        value = getattr(args, name)
        for other in (value // 2, value * 2):
            yield _flag(name), str(value), str(other), _turned(args, **{name: other}), serving
    yield ("--kv-cache-dtype", args.kv_cache_dtype, "fp8", _turned(args, kv_cache_dtype="fp8"), serving)
    yield "--weights", args.weights or "as stored", "fp8", _turned(args, weights="fp8"), serving
    if args.prefill is None:
        yield ("--replicas", str(args.replicas), str(args.replicas + 1),
               _turned(args, replicas=args.replicas + 1), serving)
        tp = args.tp or 1
        yield "--tp", str(tp), str(2 * tp), _turned(args, tp=2 * tp), serving
    words = ("on", "off") if serving.prefix_caching else ("off", "on")
    yield "prefix caching", *words, args, replace(serving, prefix_caching=not serving.prefix_caching)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _turned(args: argparse.Namespace, **values: object) -> argparse.Namespace:
    turned = copy.copy(args)
    for name, value in values.items():
        setattr(turned, name, value)
    return turned
