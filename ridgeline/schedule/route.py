"""Which node takes a request, and when its cache gets there: routing for a live cluster and a simulated one.

It knows no model, no clock and no node: seconds, bytes and block sizes are given. What a router believes of a
node is what it sent there and what it heard of it since, so that it needs no word from the nodes' schedulers.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.kv.prefix import HashChain, Tokens

DEFAULT_BOUND = 1.25  # times the mean work, that a node may have and still be chosen for its cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A node that could take a request, in seconds: work_s of what it was sent and has not done, added_s that
    this request adds with nothing cached, travel_s until the request's cache is there, where one travels."""

    node: int
    work_s: float = 0.0
    added_s: float = 0.0
    travel_s: float = 0.0

    @property
    def done_s(self) -> float:
        """Until the request is done there; its cache travels while the node works."""
        return max(self.work_s, self.travel_s) + self.added_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What a router may be made with: how many nodes, and how many blocks of how many tokens each caches."""

    num_nodes: int
    cached_blocks: int
    block_tokens: int


class Router(Protocol):
    """Chooses one of the candidates, of which there is at least one, and takes it that the request goes
    there."""

    def choose(self, prompt: Tokens, salt: str, candidates: Sequence[Candidate]) -> int: ...


class RoundRobin:
    """Every node in turn, past those that are no candidates."""

    def __init__(self, fleet: Fleet) -> None:
        self._num_nodes, self._next = fleet.num_nodes, 0

    def choose(self, prompt: Tokens, salt: str, candidates: Sequence[Candidate]) -> int:
        node = min((one.node for one in candidates), key=lambda node: (node - self._next) % self._num_nodes)
        self._next = (node + 1) % self._num_nodes
        return node


class LeastWork:
    """Where the request is done first, by the work outstanding."""

    def choose(self, prompt: Tokens, salt: str, candidates: Sequence[Candidate]) -> int:
        return min(candidates, key=lambda one: (one.done_s, one.node)).node


class PrefixAffine:
    """Where most of the prompt was sent before, among nodes whose work stays within `bound` times the mean
    (bounded loads: Mirrokni et al. 2016); where the request is done first among equals.

    A node is believed to cache the last `cached_blocks` blocks that were sent there.
    """

    def __init__(self, fleet: Fleet, bound: float) -> None:
        self._fleet, self._bound = fleet, bound
        self._sent: list[OrderedDict[bytes, None]] = [OrderedDict() for _ in range(fleet.num_nodes)]

    def choose(self, prompt: Tokens, salt: str, candidates: Sequence[Candidate]) -> int:
        chain = HashChain(salt, self._fleet.block_tokens)
        chain.extend(prompt, len(prompt) // self._fleet.block_tokens)
        names = chain.digests[1:]
        allowed = within_bound(candidates, self._bound)
        chosen = min(allowed, key=lambda one: (-self._matched(one.node, names), one.done_s, one.node)).node
        self._remember(chosen, names)
        return chosen

    def _matched(self, node: int, names: Sequence[bytes]) -> int:
        """Leading blocks that the node is believed to hold."""
        sent = self._sent[node]
        return next((i for i, name in enumerate(names) if name not in sent), len(names))

    def _remember(self, node: int, names: Sequence[bytes]) -> None:
        sent = self._sent[node]
        for name in reversed(names):  # a block is of use behind those before it only: they go last
            sent[name] = None
            sent.move_to_end(name)
        while len(sent) > self._fleet.cached_blocks:
            sent.popitem(last=False)


def within_bound(candidates: Sequence[Candidate], bound: float) -> list[Candidate]:
    """Those with at most `bound` times the mean work, this request's counted in; never none."""
    total_s, num = sum(one.work_s for one in candidates), len(candidates)
    return [one for one in candidates if one.work_s * num <= bound * (total_s + one.added_s)] or \
        [min(candidates, key=lambda one: one.work_s)]  # the least is at most the mean, but for rounding


def _prefix(setting: str, fleet: Fleet) -> Router:
    try:
        bound = float(setting or DEFAULT_BOUND)
    except ValueError:
        bound = 0.0
    if not 1 <= bound < float("inf"):
        raise ConfigError(f"the router prefix:{setting} needs a bound of at least 1: write it like "
                          f"prefix:{DEFAULT_BOUND}, times the mean work that a node may have")
    return PrefixAffine(fleet, bound)


ROUTERS: Table[Callable[[str, Fleet], Router]] = Table("router", {
    "round-robin": lambda setting, fleet: RoundRobin(fleet),
    "least-work": lambda setting, fleet: LeastWork(),
    "prefix": _prefix,
})


def make_router(text: str, fleet: Fleet) -> Router:
    """The router that `name` or `name:setting` names. ConfigError lists the names that exist."""
    name, colon, setting = text.partition(":")
    make = ROUTERS[name]
    if colon and name != "prefix":
        raise ConfigError(f"the router {name!r} takes no setting: leave out {colon + setting!r}")
    return make(setting, fleet)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    node: int
    prompt_s: float
    answer_s: float


class Outstanding:
    """Seconds of work by node, of requests that were sent there: their prompts until the first token is
    heard, their answers until the end."""

    def __init__(self, num_nodes: int) -> None:
        self._work_s = [0.0] * num_nodes
        self._sent: dict[str, _Sent] = {}
        self._prompts: set[str] = set()
        self._alive = [0] * num_nodes

    def work_s(self, node: int) -> float:
        return self._work_s[node]

    def sent(self, request_id: str, node: int, *, prompt_s: float, answer_s: float) -> None:
        self._sent[request_id] = _Sent(node=node, prompt_s=prompt_s, answer_s=answer_s)
        self._prompts.add(request_id)
        self._alive[node] += 1
        self._work_s[node] += prompt_s + answer_s

    def first_token(self, request_id: str) -> None:
        """Its prompt is done; news of one that ended, or of a second token, changes nothing."""
        if request_id in self._prompts:
            self._prompts.remove(request_id)
            sent = self._sent[request_id]
            self._work_s[sent.node] -= sent.prompt_s

    def ended(self, request_id: str) -> None:
        self.first_token(request_id)
        sent = self._sent.pop(request_id)
        self._alive[sent.node] -= 1
        # nothing is left of the rounding of sums once a node has nothing to do
        self._work_s[sent.node] = self._work_s[sent.node] - sent.answer_s if self._alive[sent.node] else 0.0


class Ports:
    """When caches arrive that travel between nodes: each node sends one at a time and takes in one at a time,
    in the order asked. bytes_per_s: of each node's port, in either direction; a cache goes at the slower of
    two."""

    def __init__(self, bytes_per_s: Sequence[float]) -> None:
        self._rate = tuple(bytes_per_s)
        self._sends_at = [0.0] * len(self._rate)
        self._takes_at = [0.0] * len(self._rate)

    def arrival_s(self, source: int, target: int, num_bytes: float, now: float) -> float:
        """When a cache that is asked for now would be there whole."""
        begin = max(now, self._sends_at[source], self._takes_at[target])
        return begin + num_bytes / min(self._rate[source], self._rate[target])

    def send(self, source: int, target: int, num_bytes: float, now: float) -> float:
        """Send it: when it is there whole."""
        arrival = self.arrival_s(source, target, num_bytes, now)
        self._sends_at[source] = self._takes_at[target] = arrival
        return arrival
