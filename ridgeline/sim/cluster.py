"""Many engines in one virtual time: replicas, or prefill engines that hand their caches on to decode ones.

Routes with `schedule/route`, as a live cluster does. Engines meet in requests and caches alone, so each runs
by itself between two of those: the heap holds what prefill engines do next, and caches on their way. A first
token reaches its client with the cache, at the decode engine; there the cache waits outside the arena until
the scheduler has pages for it. At the prefill engine its pages are leased until it has arrived.
"""

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ridgeline.base.errors import RequestError
from ridgeline.base.stats import LittleLaw
from ridgeline.base.trace import Record, RequestRecord, StepRecord, Trace
from ridgeline.schedule.request import Finish, NewRequest, Output
from ridgeline.schedule.route import Candidate, Fleet, LeastWork, Outstanding, Ports, Router, make_router
from ridgeline.schedule.speculate import Shape
from ridgeline.sim.node import Leaps, Machine, Node, Plans, Serving, host_traffic
from ridgeline.sim.outcome import Meter, Outcome, outcome_of
from ridgeline.sim.run import Clients, Progress, simulate
from ridgeline.workload.offered import Workload

_ANSWER = 256.0  # tokens that an answer is believed to have before one has ended
_GRAIN = 64  # tokens: prices of work are kept by lengths in such steps
_ROUTED = 128  # tokens of a block by which a router knows prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """engines take requests; where `decode` names some, they compute prompts and hand them on to these.
    router: "name" or "name:setting"."""

    engines: tuple[Machine, ...]
    decode: tuple[Machine, ...] = ()
    router: str = "least-work"

    @property
    def machines(self) -> tuple[Machine, ...]:
        return self.engines + self.decode

    @property
    def name(self) -> str:
        """Such as "2 prefill (m on H100 SXM, TP 1) + 4 decode (m on H20, TP 2)"."""
        sides = [("prefill" if self.decode else "x", self.engines), ("decode", self.decode)]
        parts = [f"{n} {side} ({name})" for side, of in sides
                 for name, n in Counter(one.name for one in of).items()]
        return " + ".join(parts) if len(self.machines) > 1 else self.engines[0].name

    @property
    def num_devices(self) -> int:
        return sum(one.num_devices for one in self.machines)

    @property
    def usd_per_hour(self) -> float | None:
        """Of all devices; None where the price of one is not known."""
        known = [one.num_devices * one.price_usd_per_hour for one in self.machines
                 if one.price_usd_per_hour is not None]
        return sum(known) if len(known) == len(self.machines) else None

    def as_replicas(self) -> "Topology":
        """The same devices, of which none hands anything on."""
        return replace(self, engines=self.machines, decode=())

    def make_router(self) -> Router:
        blocks = min(one.capacity.num_pages // one.capacity.layout.pages_for(_ROUTED) for one in self.engines)
        return make_router(self.router, Fleet(num_nodes=len(self.engines), cached_blocks=max(blocks, 1),
                                              block_tokens=_ROUTED))


class _Work:
    """What a request adds to what a machine has to do, in seconds, for routing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._prompts: dict[int, float] = {}
        self._tokens: dict[int, float] = {}

    def prompt_s(self, num_tokens: int) -> float:
        """A prompt with nothing cached, alone."""
        size = -(-num_tokens // _GRAIN) * _GRAIN
        if size not in self._prompts:
            shape = Shape(start=np.zeros(1, np.int64), count=np.array([size]), num_sampled=1)
            self._prompts[size] = self._machine.seconds(shape)
        return self._prompts[size]

    def token_s(self, context: int) -> float:
        """A token's share of a step with as many such sequences as the machine holds."""
        size, capacity = -(-context // _GRAIN) * _GRAIN, self._machine.capacity
        if size not in self._tokens:
            rows = max(min(capacity.num_pages // capacity.layout.pages_for(size), capacity.num_rows), 1)
            self._tokens[size] = float(self._machine.seconds.decodes(np.full(rows, size), 1)[0]) / rows
        return self._tokens[size]


@dataclass(slots=True, kw_only=True)
class _Life:
    """A request on its way. node: where it is, or is going. first: its record of the prefill engine, once it
    has left that, `source`; then new is what the decode engine gets, when its cache is there; gone_s: when
    its client went away on the way."""

    new: NewRequest
    node: int
    first: RequestRecord | None = None
    source: int = -1
    there_s: float = 0.0
    gone_s: float | None = None

    def joined(self, record: RequestRecord) -> RequestRecord:
        """The whole request's record, from that of its last engine."""
        first = self.first
        if first is None:
            return record
        assert first.first_token_s is not None, "who goes on has had a token"
        waits_s = Counter(first.waits_s)
        waits_s.update(record.waits_s)
        return replace(
            first, num_output=record.num_output, finish=record.finish, finished_s=record.finished_s,
            num_preemptions=first.num_preemptions + record.num_preemptions, first_token_s=self.there_s,
            wasted_tokens=first.wasted_tokens + record.wasted_tokens, waits_s=dict(waits_s),
            transfer_s=self.there_s - first.first_token_s,
            token_times_s=record.token_times_s)


class _Books:
    """A trace between: an engine's steps pass, its requests go to the cluster, which joins their parts."""

    def __init__(self, cluster: "Cluster", node: int, trace: Trace) -> None:
        self._cluster, self._node = cluster, node
        if isinstance(trace, Leaps):
            self.leapt = trace.leapt
        if isinstance(trace, Plans):
            self.planned = trace.planned

    def add(self, record: Record) -> None:
        if isinstance(record, StepRecord):
            self._cluster.traces[self._node].add(record)
        else:
            self._cluster.take(self._node, record)

    def close(self) -> None:
        """Nothing is held."""


class Cluster:
    """A `sim.run.Front`. traces: one an engine, in the topology's order; a request's record, of all its way,
    goes to that of the engine where it ended."""

    def __init__(self, topology: Topology, serving: Serving, traces: Sequence[Trace]) -> None:
        machines = topology.machines
        self.traces = traces
        self.nodes = [Node(one, serving, _Books(self, i, trace))
                       for i, (one, trace) in enumerate(zip(machines, traces, strict=True))]
        work = {id(one): _Work(one) for one in machines}
        self._work = [work[id(one)] for one in machines]
        self._cache_bytes = [one.cache_bytes for one in machines]
        self._doors = range(len(topology.engines))
        self._decode = range(len(topology.engines), len(machines))
        self._last = self._decode or self._doors  # where requests end
        self._router, self._pairing = topology.make_router(), LeastWork()
        self._outstanding = Outstanding(len(machines))
        self._ports = Ports([one.link_bytes_per_s for one in machines])
        self._lives: dict[str, _Life] = {}
        self._events: list[tuple[float, int, int, str]] = []  # when, serial, engine, whose cache or ""
        self._serial = 0
        self._due: dict[int, float] = {}  # of prefill engines: their event that is in the heap
        self._news: list[Output] = []
        self._now_s = 0.0
        self._law, self._travel_s = LittleLaw(0.0), 0.0
        self._num_answers, self._answer_tokens = 0, 0

    # ---- what drives it

    def add(self, new: NewRequest) -> None:
        """RequestError when no engine can ever run it."""
        num_prompt, splits = len(new.prompt), bool(self._decode) and new.params.max_tokens != 1
        able = self._able(self._doors, num_prompt)
        if not able or (splits and not self._able(self._decode, num_prompt + 1)):
            raise RequestError(f"no engine holds a prompt of {num_prompt} tokens and an answer to it",
                               param="prompt", code="kv_cache_exceeded")
        answer = 0.0 if splits else self._expected_answer()
        parts = {node: (self._work[node].prompt_s(num_prompt), answer * self._work[node].token_s(num_prompt))
                 for node in able}
        node = self._router.choose(new.prompt, new.cache_salt, [
            Candidate(node=node, work_s=self._outstanding.work_s(node), added_s=sum(parts[node]))
            for node in able])
        self.nodes[node].add(new if not splits else replace(
            new, params=replace(new.params, max_tokens=1), leases=True))
        self._lives[new.id] = _Life(new=new, node=node)
        self._law.arrive(new.id, self._now_s)
        self._outstanding.sent(new.id, node, prompt_s=parts[node][0], answer_s=parts[node][1])
        self._watch(node)

    def abort(self, request_id: str) -> None:
        """A client went away, at the moment to which all has advanced."""
        life = self._lives.get(request_id)
        if life is None:
            return
        if life.first is not None and life.there_s > self._now_s:
            life.gone_s = self._now_s
            self._travel_s -= life.there_s - life.gone_s
        else:
            self.nodes[life.node].abort(request_id)
            self._watch(life.node)

    def next_event_at(self) -> float | None:
        engines = [at for node in self.nodes if (at := node.next_event_at()) is not None]
        return min([*engines, *(at for at, _, _, arriving in self._events if arriving)], default=None)

    def advance(self, until_s: float, quiet_s: float = 0.0) -> list[Output]:
        """Everything up to this moment and no further, since who is sent where hangs on it; what clients hear
        of it."""
        while self._events and self._events[0][0] <= until_s:
            at, _, node, arriving = heapq.heappop(self._events)
            if arriving:
                self._arrive(arriving, at)
            elif self._due.get(node) == at:
                self._run(node, at)
                self._watch(node)
        for node in range(len(self.nodes)):
            self._run(node, until_s)
        self._now_s = until_s
        news, self._news = self._news, []
        return news

    # ---- an engine's news

    def _run(self, node: int, until_s: float) -> None:
        for output in self.nodes[node].advance(until_s):
            life = self._lives[output.id]
            if output.num_output:
                self._outstanding.first_token(output.id)
            if output.finish is None:
                self._news.append(output)
                continue
            self._outstanding.ended(output.id)
            if life.first is not None and node not in self._last:
                self._hand_over(life, output.new_tokens[-1], until_s)
                continue
            self._num_answers += 1
            self._answer_tokens += output.num_output
            del self._lives[output.id]
            self._news.append(output)

    def take(self, node: int, record: RequestRecord) -> None:
        """A request ended at an engine: for good, or its prompt is done and it goes on elsewhere."""
        life = self._lives[record.id]
        if node not in self._last and record.finish == Finish.LENGTH and life.new.params.max_tokens != 1:
            life.first = record
        else:
            self._law.leave(record.id, record.finished_s)
            self.traces[node].add(life.joined(record))

    # ---- caches on their way

    def _hand_over(self, life: _Life, token: int, now: float) -> None:
        """Its prompt is computed: choose where it goes on, and send its cache there."""
        for node in self._last:
            self._run(node, now)
        new, source, num_bytes = life.new, life.node, self._cache_bytes[life.node](len(life.new.prompt))
        life.source = source
        answer = max(self._expected_answer() - 1, 0.0)
        candidates = [
            Candidate(node=node, work_s=self._outstanding.work_s(node),
                      added_s=answer * self._work[node].token_s(len(new.prompt)),
                      travel_s=self._ports.arrival_s(source, node, num_bytes, now) - now)
            for node in self._able(self._decode, len(new.prompt) + 1)]
        life.node = self._pairing.choose(new.prompt, new.cache_salt, candidates)
        life.there_s = self._ports.send(source, life.node, num_bytes, now)
        self._travel_s += life.there_s - now
        life.new = replace(new, prompt=np.append(new.prompt, np.int32(token)), imported=len(new.prompt),
                           first_token_s=life.there_s)
        added_s = next(one.added_s for one in candidates if one.node == life.node)
        self._outstanding.sent(new.id, life.node, prompt_s=0.0, answer_s=added_s)
        self._push(life.there_s, life.node, new.id)

    def _arrive(self, request_id: str, now: float) -> None:
        """A cache is where it was sent: its request joins that engine's queue, unless its client has gone."""
        life = self._lives[request_id]
        self._run(life.source, now)
        self.nodes[life.source].acknowledge(request_id)
        self._watch(life.source)
        if life.gone_s is None:
            self._run(life.node, now)
            self.nodes[life.node].add(life.new)
            return
        assert life.first is not None
        self._outstanding.ended(request_id)
        self._law.leave(request_id, life.gone_s)
        self.traces[life.node].add(replace(
            life.first, num_output=0, first_token_s=None, token_times_s=(), finish=str(Finish.ABORT),
            finished_s=life.gone_s))
        del self._lives[request_id]

    # ---- small things

    def _able(self, nodes: Sequence[int], num_prompt: int) -> list[int]:
        """Engines that hold such a prompt and a token more."""
        return [node for node in nodes if num_prompt < self.nodes[node].max_request_tokens]

    def _expected_answer(self) -> float:
        """Tokens: the mean of the answers so far."""
        return self._answer_tokens / self._num_answers if self._num_answers else _ANSWER

    def little_law(self) -> Mapping[str, float]:
        """When all have ended: of requests from their arrival to their end wherever that is. How many are
        inside is what each engine's scheduler counts, and those whose caches travel."""
        laws = [node.loop.little_law() for node in self.nodes]
        inside_s = sum(law["num_in_system"] * law["window_s"] for law in laws)
        return self._law.report(max(law["window_s"] for law in laws), inside_s + self._travel_s)

    def host_traffic(self) -> Mapping[str, float]:
        """Of all engines."""
        return host_traffic(self.nodes)

    def _watch(self, node: int) -> None:
        """The next event of a prefill engine goes into the heap."""
        if node in self._last:
            return
        at = self.nodes[node].next_event_at()
        if at is None:
            self._due.pop(node, None)
        elif self._due.get(node) != at:
            self._due[node] = at
            self._push(at, node, "")

    def _push(self, at: float, node: int, arriving: str) -> None:
        heapq.heappush(self._events, (at, self._serial, node, arriving))
        self._serial += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Driven:
    """What the engines' traces do not tell: requests that could never run, Little's law, and what went to
    host memory."""

    num_refused: int
    little_law: Mapping[str, float]
    host: Mapping[str, float]


def drive(topology: Topology, serving: Serving, workload: Workload, traces: Sequence[Trace],
          progress: Progress = lambda begun, now: None) -> Driven:
    """A topology under a workload, one trace an engine."""
    cluster = Cluster(topology, serving, traces)
    clients = Clients(cluster, workload, topology.engines[0].capacity.vocab_size, progress)
    if workload.num_at_a_time is None:
        clients.run()
    else:
        clients.run_closed(workload.num_at_a_time)
    return Driven(num_refused=clients.num_refused, little_law=cluster.little_law(),
                  host=cluster.host_traffic())


def outcome(topology: Topology, serving: Serving, workload: Workload, meters: Sequence[Meter],
            driven: Driven) -> Outcome:
    """The numbers of what was driven."""
    return outcome_of(serving.policy, meters, num_offered=len(workload.requests),
                      num_refused=driven.num_refused, targets=serving.targets,
                      num_devices=topology.num_devices, usd_per_hour=topology.usd_per_hour,
                      little_law=driven.little_law, host=driven.host)


def simulate_cluster(topology: Topology, serving: Serving, workload: Workload,
                     progress: Progress = lambda begun, now: None) -> Outcome:
    """A topology under a workload."""
    if len(topology.machines) == 1:
        return simulate(topology.machines[0], serving, workload, progress)
    meters = [Meter(one.capacity.num_pages, batch_holds=serving.batch_holds)
              for one in topology.machines]
    return outcome(topology, serving, workload, meters,
                   drive(topology, serving, workload, meters, progress))
