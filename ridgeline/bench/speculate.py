"""`ridgeline bench speculate`: tokens a second with and without drafts, one request at a time.

Two engines in this process take turns, pair by pair, on two workloads: texts that are to be repeated with a
small change, where looking up should pay, and chat, where it must not cost. Answers are greedy; both engines
must give the same, near ties apart.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.llm import LLM
from ridgeline.spec.sampling import SamplingParams

PAIRS, TOKENS = 10, 128  # unless told
PLACES = ("Lisbon", "Oslo", "Kyoto", "Quito", "Perth", "Cairo", "Riga", "Lima", "Turin", "Accra")
QUESTIONS = (
    "Write a short story about a lighthouse keeper.", "Why is the sky blue?", "How do I learn to cook rice?",
    "Explain photosynthesis to a child.", "Describe a walk through an old market.",
    "What makes a good friend?", "Give advice for a first job interview.", "Tell me about the moon.",
    "How does a bicycle stay upright?", "Write a letter to a future self.")
EDIT = """Copy this text exactly, but replace {place} by Paris:

Visitors who reach {place} by train arrive in the middle of the old town, a few minutes from the river. The
museum of {place} opens at nine on weekdays and at ten on Sundays; tickets cost twelve euros and can be bought
at the entrance or in advance. From the museum a narrow street leads up to the castle, from which the whole of
{place} can be seen on a clear day. The market hall of {place} closes at two in the afternoon, so it is best
to go there first, and to keep the castle and the museum for later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculateArgs:
    """engine: as it speculates. num_pairs of requests for each workload, of output_tokens each."""

    engine: EngineConfig
    num_pairs: int | None = None
    output_tokens: int | None = None
    json: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """One workload: tokens a second of each pair, off and on; tokens that came of a step with drafts on."""

    name: str
    off_tok_s: tuple[float, ...]
    on_tok_s: tuple[float, ...]
    tokens_per_step: float
    num_different: int

    def as_json(self) -> dict[str, object]:
        ratios = [on / off for on, off in zip(self.on_tok_s, self.off_tok_s, strict=True)]
        return {"workload": self.name, "num_pairs": len(ratios), "off_output_tok_s": median(self.off_tok_s),
                "on_output_tok_s": median(self.on_tok_s), "ratio": median(ratios), "least_ratio": min(ratios),
                "tokens_per_step": self.tokens_per_step, "num_different": self.num_different}

    def text(self) -> str:
        found = self.as_json()
        return (f"{self.name}: {found['off_output_tok_s']:.1f} tok/s off, {found['on_output_tok_s']:.1f} on, "
                f"median ratio {found['ratio']:.2f} of {found['num_pairs']} pairs (least "
                f"{found['least_ratio']:.2f}); {self.tokens_per_step:.2f} tokens a step, "
                f"{self.num_different} answers differ")


def run(args: SpeculateArgs, write: Callable[[str], object] = print) -> int:
    """Measure and write; the exit code."""
    if args.engine.speculate is None:
        raise ConfigError("bench speculate compares with no drafts: say which with --speculate")
    num_pairs = args.num_pairs or PAIRS
    params = SamplingParams(temperature=0.0, max_tokens=args.output_tokens or TOKENS)
    with LLM.from_config(replace(args.engine, speculate=None)) as off, LLM.from_config(args.engine) as on:
        for engine in (off, on):
            engine.chat([{"role": "user", "content": "Count to ten, twice."}], params, progress=False)
        edits = [EDIT.format(place=PLACES[i % len(PLACES)]) for i in range(num_pairs)]
        chats = [QUESTIONS[i % len(QUESTIONS)] for i in range(num_pairs)]
        done = [_measure("edit", edits, off, on, params), _measure("chat", chats, off, on, params)]
    write(json.dumps([one.as_json() for one in done]) if args.json else "\n".join(map(Pairs.text, done)))
    return 0


def _measure(name: str, prompts: Sequence[str], off: LLM, on: LLM, params: SamplingParams) -> Pairs:
    """Which of a pair goes first changes from pair to pair."""
    speeds: dict[int, list[float]] = {0: [], 1: []}
    clock, different, num_tokens = WallClock(), 0, 0
    steps = int(on.stats()["num_steps"])
    for number, prompt in enumerate(prompts):
        answers = {}
        for side in (number % 2, 1 - number % 2):
            begun_s = clock.now()
            [answer] = (off, on)[side].chat([{"role": "user", "content": prompt}], params, progress=False)
            answers[side] = list(answer.outputs[0].token_ids)
            speeds[side].append(len(answers[side]) / (clock.now() - begun_s))
        different += answers[0] != answers[1]
        num_tokens += len(answers[1])
    steps = int(on.stats()["num_steps"]) - steps
    return Pairs(name=name, off_tok_s=tuple(speeds[0]), on_tok_s=tuple(speeds[1]),
                 tokens_per_step=num_tokens / steps, num_different=different)
