"""Makes the workload that was asked for: a source of lengths, and arrivals of its own or drawn.

Lengths, arrivals and a trace's own chances draw from separate streams of the seed, so that the same requests
come at every rate, and sooner or later by the factor between two rates.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice, takewhile

from numpy.random import default_rng

from ridgeline.base.errors import ConfigError
from ridgeline.workload.arrivals import arrival_times, check_arrival, num_at_a_time
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.lengths import draw_lengths
from ridgeline.workload.offered import Offered, Workload
from ridgeline.workload.source import Source
from ridgeline.workload.traces.table import open_trace

_LENGTHS, _ARRIVALS = 0, 1  # streams of the seed


def make_workload(ask: WorkloadAsk) -> Workload:
    """ConfigError for what cannot be read or does not go together; bad rows of a trace are named."""
    _check(ask)
    source = _source(ask)
    at_a_time = num_at_a_time(ask.arrival)
    requests: Iterable[Offered] = map(_scaled(ask.length_scale), source.requests)
    if at_a_time is not None:
        if ask.rate is not None:
            raise ConfigError(f"arrival {ask.arrival} has no rate: the next request waits for an answer")
        if ask.rate_scale != 1:
            raise ConfigError(f"arrival {ask.arrival} has no times that a rate scale would press together")
        requests = (replace(request, arrived_s=0.0) for request in requests)
        about = f"{at_a_time} at a time"
    elif source.timed and ask.rate is None:
        check_arrival(ask.arrival)
        if ask.arrival not in ("poisson", "trace"):
            raise ConfigError(f"arrival {ask.arrival} needs a rate: without one a trace keeps its own times")
        requests = (replace(request, arrived_s=request.arrived_s / ask.rate_scale) for request in requests)
        about = "its own arrivals" + (f", {ask.rate_scale:g} times as fast" if ask.rate_scale != 1 else "")
    else:
        times_s = _drawn_times(ask, source)
        requests = (replace(request, arrived_s=now) for request, now in zip(requests, times_s, strict=False))
        about = f"{ask.arrival} arrivals at {ask.rate:g}/s"
    if ask.patience_s is not None:
        requests = (replace(request, patience_s=ask.patience_s) for request in requests)
    found = tuple(_until(requests, ask))
    if not found:
        raise ConfigError(f"the workload is empty: {source.about}, {about}")
    return Workload(requests=found, about=f"{source.about}; {about}", num_at_a_time=at_a_time)


def _check(ask: WorkloadAsk) -> None:
    for name in ("rate", "rate_scale", "length_scale", "num_requests", "duration_s",
                 "patience_s"):
        value = getattr(ask, name)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{name} is {value:g}: it must be a number above 0")
    if (ask.trace is None) == (ask.lengths is None):
        raise ConfigError("a workload takes either a trace or the name of a length distribution: give "
                          "--trace FILE or --lengths NAME (of bench serve: --dataset)")


def _source(ask: WorkloadAsk) -> Source:
    random = default_rng([ask.seed, _LENGTHS])
    if ask.trace is not None:
        return open_trace(ask.trace, random)
    assert ask.lengths is not None
    closed = num_at_a_time(ask.arrival) is not None
    if ask.num_requests is None and (ask.duration_s is None or closed):
        raise ConfigError("drawn requests never end: say how many" + ("" if closed else ", or for how long"))
    return draw_lengths(ask.lengths, random)


def _drawn_times(ask: WorkloadAsk, source: Source) -> Iterator[float]:
    if ask.arrival == "trace":
        raise ConfigError("a trace's own arrivals are sped up by a rate scale, not by a rate" if source.timed
                          else f"{source.about} brings no arrivals: take poisson or gamma:SHAPE, and a rate")
    if ask.rate_scale != 1:
        raise ConfigError("a rate scale is of a trace's own arrivals: change the rate instead")
    if ask.rate is None:
        raise ConfigError(f"{source.about} brings no arrivals: give a rate, or closed:N arrivals")
    return arrival_times(ask.arrival, ask.rate, default_rng([ask.seed, _ARRIVALS]))


def _scaled(scale: float) -> Callable[[Offered], Offered]:
    """Prompts, outputs and blocks of prefixes; images keep their size and are refused."""
    if scale == 1:
        return lambda request: request

    def scaled(request: Offered) -> Offered:
        if request.num_tiles:
            raise ConfigError("a length scale would resize images: leave it out for a trace with images")
        num_prompt, block = (max(round(tokens * scale), 1) for tokens in
                             (request.num_prompt, request.block_tokens))
        return replace(request, num_prompt=num_prompt, num_output=max(round(request.num_output * scale), 1),
                       block_tokens=block, prefix=request.prefix[: num_prompt // block])

    return scaled


def _until(requests: Iterable[Offered], ask: WorkloadAsk) -> Iterable[Offered]:
    duration_s = ask.duration_s
    if duration_s is not None:
        requests = takewhile(lambda request: request.arrived_s < duration_s, requests)
    return islice(requests, ask.num_requests)
