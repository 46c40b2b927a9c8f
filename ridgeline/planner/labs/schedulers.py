"""Four schedulers over one set of requests: a small deterministic model of what differs between them, fed
by closed forms. It is not the engine's scheduler: whatever makes `Life`s of requests can stand in its place.
Source: "The Mechanics of LLM Inference", The scheduling problem."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SCHEDULERS = ("static", "continuous", "chunked", "disaggregated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Tokens in and out, and when it arrives in seconds."""

    prompt: int
    output: int
    arrival_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One request's time, in seconds from its arrival on: waiting, in prefill (its cache's way to another
    device included), in decode (stalls included), and holding a slot after its last token. busy_s: in a slot
    until its last token. gap_s: its longest wait between two tokens."""

    arrival_s: float
    queued_s: float
    prefill_s: float
    decode_s: float
    held_s: float
    busy_s: float
    gap_s: float

    @property
    def ttft_s(self) -> float:
        return self.queued_s + self.prefill_s

    @property
    def end_s(self) -> float:
        return self.arrival_s + self.ttft_s + self.decode_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of a prompt of so many tokens, of a decode step (batch, mean context), and of a cache's way to
    another device."""

    prompt: Callable[[float], float]
    step: Callable[[float, float], float]
    transfer: Callable[[float], float]


@dataclass(slots=True, kw_only=True)
class _Slot:
    request: Request
    began_s: float
    entered_s: float = 0.0
    read: int = 0
    times: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.times) == self.request.output

    def life(self, left_s: float) -> Life:
        first, last = self.times[0], self.times[-1]
        gaps = [b - a for a, b in zip(self.times, self.times[1:])]
        return Life(arrival_s=self.request.arrival_s, queued_s=self.began_s - self.request.arrival_s,
                    prefill_s=first - self.began_s, decode_s=last - first, held_s=max(left_s - last, 0.0),
                    busy_s=last - self.entered_s, gap_s=max(gaps, default=0.0))


def schedule(name: str, requests: Sequence[Request], *, slots: int, chunk: int, costs: Costs) -> list[Life]:
    """The lives of the requests, in their order; they arrive in that order. chunk: prompt tokens a step, of
    the chunked scheduler. Disaggregated: prompts one after another on a device of their own."""
    waiting = [_Slot(request=one, began_s=one.arrival_s) for one in requests]
    ready = [one.arrival_s for one in requests]
    if name == "disaggregated":
        free = 0.0
        for i, one in enumerate(waiting):
            one.began_s = max(free, one.request.arrival_s)
            free = one.began_s + costs.prompt(one.request.prompt)
            one.read = one.request.prompt
            ready[i] = free + costs.transfer(one.request.prompt)
    left = _run(waiting, ready, slots, chunk if name == "chunked" else None, name == "static", costs)
    return [one.life(left[i]) for i, one in enumerate(waiting)]


def _run(all_of_them: list[_Slot], ready: list[float], slots: int, chunk: int | None, static: bool,
         costs: Costs) -> list[float]:
    """Steps until all are done; when each left its slot."""
    now, running, left = 0.0, list[int](), [math.inf] * len(all_of_them)
    queue = list(range(len(all_of_them)))
    while queue or running:
        begun = static and any(all_of_them[i].read for i in running)  # a static batch takes nobody in
        while queue and ready[queue[0]] <= now and len(running) < slots and not begun:
            one = all_of_them[queue[0]]
            one.entered_s = now
            if one.read:  # its first token comes with its cache
                one.times.append(now)
            else:
                one.began_s = now
            running.append(queue.pop(0))
        if not running:
            now = ready[queue[0]]
            continue
        now += _step([all_of_them[i] for i in running], chunk, now, costs)
        gone = [i for i in running if all_of_them[i].done]
        if not static or len(gone) == len(running):
            for i in gone:
                left[i] = now
            running = [i for i in running if i not in gone]
    return left


def _step(running: list[_Slot], chunk: int | None, now: float, costs: Costs) -> float:
    """One step: a decode of all that can, and one prompt or a chunk of it. Its seconds."""
    decodes = [one for one in running if one.read == one.request.prompt and not one.done]
    reading = next((one for one in running if one.read < one.request.prompt), None)
    seconds = 0.0
    if decodes:
        context = sum(one.request.prompt + len(one.times) for one in decodes) / len(decodes)
        seconds += costs.step(len(decodes), context)
    if reading:
        take = min(chunk or reading.request.prompt, reading.request.prompt - reading.read)
        seconds += costs.prompt(reading.read + take) - costs.prompt(reading.read)
        reading.read += take
        if reading.read == reading.request.prompt:
            decodes.append(reading)
    seconds = max(seconds, costs.step(1, 0))  # a chunk reads the weights too
    for one in decodes:
        one.times.append(now + seconds)
    return seconds
