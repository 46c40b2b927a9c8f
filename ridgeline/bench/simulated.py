"""`ridgeline bench simulated`: the same requests through a live engine, twice, and through the simulator on a
calibrated profile, at rates that load the engine little, well and nearly fully.

The engine runs in this thread, without a server. Arrivals are open-loop: a request counts from the moment at
which it should have come.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.stats import e2e_s, ttft_s
from ridgeline.base.trace import RequestRecord, RingTrace
from ridgeline.engine.build import Engine, build_engine
from ridgeline.ledger.profile import load_profile
from ridgeline.sim.node import Machine, Node, Serving
from ridgeline.sim.outcome import Meter
from ridgeline.sim.run import Clients, request_of
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.make import make_workload
from ridgeline.workload.offered import Workload

LOADS = (0.3, 0.6, 0.85)  # of the rate at which the simulated engine serves all requests at once
_E2E, _TTFT, _SPREAD = 0.07, 0.15, 1.5  # errors allowed, or so many times what two live runs differ


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedArgs:
    """profile: name or path of a calibrated one. lengths, length_scale: of the workload's requests."""

    engine: EngineConfig
    profile: str
    num_requests: int = 200
    lengths: str = "sharegpt"
    length_scale: float = 0.08
    seed: int = 0
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """At one rate, medians over requests of |simulated / live - 1| of the first live run, and of the second
    live run held against it in the same way; bias: of simulated / live - 1 with its sign, which scatter alone
    leaves near 0. e2e_s, ttft_s: the live medians, seconds."""

    rate: float
    e2e_s: float
    ttft_s: float
    e2e_error: float
    ttft_error: float
    e2e_live: float
    ttft_live: float
    e2e_bias: float
    ttft_bias: float

    @property
    def within(self) -> bool:
        """Whether the simulation is as near as it should be."""
        return (self.e2e_error <= max(_E2E, _SPREAD * self.e2e_live)
                and self.ttft_error <= max(_TTFT, _SPREAD * self.ttft_live))


def run(args: SimulatedArgs, write: Callable[[str], object] = print) -> int:
    """The exit code: 1 where the simulation is too far off at a rate."""
    profile = load_profile(args.profile)
    if profile.calibration is None:
        raise ConfigError(f"profile {profile.name} has no calibration: make one with `ridgeline calibrate "
                          f"--profile {args.profile}`")
    trace = RingTrace(num_requests=1 << 16)
    engine = build_engine(args.engine, trace=trace)
    try:
        machine = Machine(name=engine.name, capacity=engine.capacity, seconds=engine.steps(profile),
                          floor=engine.steps(profile), max_in_flight=engine.executor.max_in_flight,
                          waking=profile.calibration.waking)
        ask = WorkloadAsk(lengths=args.lengths, length_scale=args.length_scale, seed=args.seed,
                          num_requests=args.num_requests)
        most = _all_at_once(machine, ask)
        found = [_beside(engine, trace, machine, make_workload(replace(ask, rate=load * most)), load * most)
                 for load in LOADS]
    finally:
        engine.close()
    if args.json:
        rates = [asdict(one) for one in found]
        write(json.dumps({"model": engine.name, "profile": profile.name, "rates": rates}))
    else:
        write(report(engine.name, found))
    return 0 if all(one.within for one in found) else 1


def _all_at_once(machine: Machine, ask: WorkloadAsk) -> float:
    """Requests a second that the simulated engine serves of a crowd."""
    load = make_workload(replace(ask, rate=1e6))
    ended = simulated(machine, load)
    return len(ended) / max(one.finished_s for one in ended.values())


def simulated(machine: Machine, workload: Workload) -> dict[str, RequestRecord]:
    """The simulator's records, by request."""
    meter = Meter(machine.capacity.num_pages)
    Clients(Node(machine, Serving(prefix_caching=False), meter), workload, machine.capacity.vocab_size).run()
    return {one.record.id: one.record for one in meter.ended}


def lived(engine: Engine, trace: RingTrace, workload: Workload) -> dict[str, RequestRecord]:
    """The live engine's records, by request."""
    clock, loop = WallClock(), engine.loop
    trace.requests.clear()
    begin, place, requests = clock.now(), 0, workload.requests
    while place < len(requests) or loop.has_work():
        now = clock.now() - begin
        while place < len(requests) and requests[place].arrived_s <= now:
            due = replace(requests[place], arrived_s=begin + requests[place].arrived_s)
            loop.add(request_of(due, place, engine.spec.vocab_size))
            place += 1
        if loop.has_work():
            loop.step()
        else:
            time.sleep(min(requests[place].arrived_s - now, 0.001))
    return {one.id: one for one in trace.requests}


def _beside(engine: Engine, trace: RingTrace, machine: Machine, workload: Workload, rate: float) -> Beside:
    long_s = workload.requests[-1].arrived_s
    print(f"{rate:.3g} requests/s: two live runs of {long_s:.0f} s and more", file=sys.stderr, flush=True)
    first, second = (lived(engine, trace, workload) for _ in range(2))
    sim = simulated(machine, workload)
    return Beside(
        rate=rate, e2e_s=median(map(e2e_s, first.values())), ttft_s=median(map(_first_s, first.values())),
        e2e_error=_off(sim, first, e2e_s), ttft_error=_off(sim, first, _first_s),
        e2e_live=_off(second, first, e2e_s), ttft_live=_off(second, first, _first_s),
        e2e_bias=_bias(sim, first, e2e_s), ttft_bias=_bias(sim, first, _first_s))


def _first_s(record: RequestRecord) -> float:
    value = ttft_s(record)
    assert value is not None, f"request {record.id} ended before its first token"
    return value


Records = dict[str, RequestRecord]
Value = Callable[[RequestRecord], float]


def _off(one: Records, other: Records, value: Value) -> float:
    return median(map(abs, _differences(one, other, value)))


def _bias(one: Records, other: Records, value: Value) -> float:
    return median(_differences(one, other, value))


def _differences(one: Records, other: Records, value: Value) -> list[float]:
    return [value(one[name]) / value(other[name]) - 1 for name in other]


def report(name: str, found: Sequence[Beside]) -> str:
    """A row a rate."""
    lines = [f"{name}: simulated beside live; medians over requests of the relative difference, then with "
             "its sign",
             "   rate/s   E2E live    simulated       two live   TTFT live    simulated       two live"]
    for one in found:
        lines.append(f"{one.rate:9.3g}  {one.e2e_s:7.3f} s  {one.e2e_error:7.1%}, {one.e2e_bias:+7.1%}  "
                     f"{one.e2e_live:8.1%}  {one.ttft_s * 1e3:6.0f} ms  {one.ttft_error:7.1%}, "
                     f"{one.ttft_bias:+7.1%}  {one.ttft_live:8.1%}" + ("" if one.within else "   too far"))
    return "\n".join(lines)
