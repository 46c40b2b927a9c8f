"""What a report shows: runs side by side with what happened in them, how they bear more load, and what each
knob is worth. Data alone; whoever knows models and flags makes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.schedule.targets import Targets
from ridgeline.sim.cluster import Topology, drive, outcome
from ridgeline.sim.fragments import MemoryUse
from ridgeline.sim.node import Machine, Serving
from ridgeline.sim.outcome import Ended, Outcome
from ridgeline.sim.watch import Segment, Watch
from ridgeline.workload.offered import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of a run. occupancy: share of its cache's pages that are held, from each of times_s on."""

    name: str
    segments: Sequence[Segment]
    times_s: Sequence[float]
    occupancy: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A workload served in one way."""

    name: str
    outcome: Outcome
    ended: Sequence[Ended]
    engines: Sequence[Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """One way to serve at several rates, requests/s."""

    name: str
    rates: Sequence[float]
    outcomes: Sequence[Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob turned, with everything else as in the run that it is compared with."""

    knob: str
    before: str
    after: str
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A report's content. about: what was run, a line each; example_about: what the examples run. base: what
    the changes are compared with."""

    title: str
    about: Sequence[str]
    targets: Targets
    runs: Sequence[Run]
    examples: Sequence[Run] = ()
    example_about: str = ""
    loads: Sequence[Loads] = ()
    base: Run | None = None
    changes: Sequence[Change] = ()
    memory: Sequence[MemoryUse] = ()


def watch(name: str, topology: Topology, serving: Serving, workload: Workload) -> Run:
    """A run with everything that happened."""
    watches = [Watch(one.capacity.num_pages, batch_holds=serving.batch_holds)
               for one in topology.machines]
    driven = drive(topology, serving, workload, watches)
    meters = [one.meter for one in watches]
    engines = []
    for place, one in enumerate(watches):
        times_s, occupancy = one.occupancy()
        side = "decode" if place >= len(topology.engines) else "prefill" if topology.decode else "engine"
        engines.append(Engine(name=f"{side} {place + 1}" if len(watches) > 1 else "", times_s=times_s,
                              segments=one.segments(), occupancy=occupancy))
    return Run(name=name, outcome=outcome(topology, serving, workload, meters, driven), engines=engines,
               ended=[one for meter in meters for one in meter.ended])


def four_schedulers(machine: Machine, serving: Serving, workload: Workload,
                    chunk: int) -> list[Run]:
    """Static, continuous, chunked and disaggregated batching of the same requests on engines alike; the last
    has two of them, for prompts and for answers."""
    one, split = Topology(engines=(machine,)), Topology(engines=(machine,), decode=(machine,))
    return [watch("static", one, replace(serving, policy="static"), workload),
            watch("continuous", one, replace(serving, policy="fcfs"), workload),
            watch("chunked", one, replace(serving, policy=f"chunked:{chunk}"), workload),
            watch("disaggregated", split, replace(serving, policy="fcfs"), workload)]
