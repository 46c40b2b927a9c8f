"""Drives a loop with a fixed number of requests at a time, in this thread, and returns what it recorded.

Prompts are random token ids, new in every round, so that no round finds its prompts in the prefix cache, but
for those that are asked for again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

import numpy as np
from numpy.typing import NDArray

from ridgeline.base.clock import Clock
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RequestRecord, RingTrace, StepRecord
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.request import NewRequest, Output
from ridgeline.spec.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """num_requests of prompt_tokens in and output_tokens out, `concurrency` at a time; all end by length.
    grammar: that answers follow, which must be longer than they may be. again: the prompts of every such
    round, cut to this length: a prefix cache has them from the second round on."""

    num_requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    grammar: str | None = None
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round recorded. wall_s: from the first request to the end of the last."""

    wall_s: float
    steps: tuple[StepRecord, ...]
    requests: tuple[RequestRecord, ...]


class Prompts:
    """Random prompts, none given twice unless it is asked for again. Ids below 3 are left out: checkpoints
    keep special tokens there."""

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._vocab_size = vocab_size
        self._seed = seed
        self._random = np.random.default_rng(seed)

    def take(self, shape: Shape) -> Iterator[NDArray[np.int32]]:
        """A round's. The numbers of a generator's prompt do not hang on its length: a cut is a prefix."""
        for row in range(shape.num_requests):
            random = np.random.default_rng((self._seed, row)) if shape.again else self._random
            yield random.integers(3, self._vocab_size, shape.prompt_tokens).astype(np.int32)


class Driver:
    """Runs rounds on one idle loop. trace: the one that the loop writes to; clock: the loop's own."""

    def __init__(self, loop: Loop, trace: RingTrace, clock: Clock, prompts: Prompts) -> None:
        self._loop = loop
        self._trace = trace
        self._clock = clock
        self._prompts = prompts
        self._numbers = count()

    def run(self, shape: Shape, beside: Shape | None = None) -> Round:
        """One round, begun when all requests of `beside` have their first tokens. ConfigError when a request
        fails, with the engine's reason."""
        self._trace.steps.clear()
        self._trace.requests.clear()
        waiting = self._prompts.take(shape)
        started_s = self._clock.now()
        if beside is not None:
            for prompt in self._prompts.take(beside):
                self._add(prompt, beside)
            begun: set[str] = set()
            while len(begun) < beside.num_requests:
                begun |= {output.id for output in self._step()}
        for prompt in islice(waiting, shape.concurrency):
            self._add(prompt, shape)
        while self._loop.has_work():
            for output in self._step():
                if output.finish is not None:
                    for prompt in islice(waiting, 1):
                        self._add(prompt, shape)
        return Round(wall_s=self._clock.now() - started_s, steps=tuple(self._trace.steps),
                     requests=tuple(self._trace.requests))

    def _step(self) -> list[Output]:
        outputs = self._loop.step()
        for output in outputs:
            if output.error is not None:
                raise ConfigError(f"a benchmark request failed: {output.error}")
        return outputs

    def _add(self, prompt: NDArray[np.int32], shape: Shape) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=shape.output_tokens, grammar=shape.grammar,
                                ignore_eos=shape.grammar is None, detokenize=False)
        self._loop.add(NewRequest(id=f"bench-{next(self._numbers)}", prompt=prompt, params=params,
                                  arrived_s=self._clock.now()))
