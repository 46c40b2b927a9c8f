"""The self-test of a user's model: what must say the same is said both ways and compared.

Every way is a scheduler and a cache of its own over the one executor, so that the weights are loaded once;
their twin in float32 is a second engine. Knows no HTTP and prints nothing.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.engine.alike import (
    EXACT,
    ROUNDED,
    SAME_NUMBERS,
    Bounds,
    Finding,
    Floats,
    Said,
    compare_distributions,
    compare_texts,
    distributions,
    not_run,
)
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.snapshots import decide_snapshots
from ridgeline.engine.startup import Startup
from ridgeline.frontend.files import load_text
from ridgeline.kv.manager import KVManager
from ridgeline.models.checkpoint import Checkpoint
from ridgeline.schedule.executor import Executor
from ridgeline.schedule.loop import Loop
from ridgeline.schedule.policies.table import make_policy
from ridgeline.schedule.request import NewRequest
from ridgeline.schedule.scheduler import Scheduler
from ridgeline.schedule.speculate import Speculation
from ridgeline.spec.sampling import SamplingParams

TEXTS = (
    "The capital of France is", "def fibonacci(n):\n    ", "Once upon a time there was a",
    "Copy this line: one two three four five six. Copied: one two three four",
    "The planets in order are " + "Mercury, Venus, Earth, Mars, Jupiter, Saturn, Uranus, Neptune; " * 6,
    "Q: What is 17 + 25?\nA:",
)  # fmt: skip
ANSWER, TOP, SCORED = 24, 8, 256  # tokens of an answer; of a report; whose whole distributions are compared
SLICE = 16  # tokens of a step that cuts prompts
Around = Callable[[Executor], Executor]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a loop runs. drafts: in every step that can, as if they cost nothing."""

    prefix_caching: bool = False
    step_tokens: int | None = None
    rows: int = len(TEXTS)
    drafts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """scores: log-probabilities wanted at each place of the prompt. at: the step it comes in. The lowest
    priority goes first."""

    prompt: tuple[int, ...]
    tokens: int = ANSWER
    scores: int | None = None
    at: int = 0
    priority: int = 0


class Ways:
    """Runs requests over one engine's executor, each time with an empty cache."""

    def __init__(self, engine: Engine, executor: Executor) -> None:
        self._engine = engine
        self._executor = executor
        profile = engine.profile
        self._stride = decide_snapshots(
            engine.capacity, engine.price(profile), profile.read_bytes_per_s, Startup(WallClock()))
        self.can_draft = engine.info["speculate"] is not None

    def run(self, requests: Sequence[Request], way: Way, *, warm: Sequence[Request] = ()
            ) -> tuple[list[Said], dict[str, Any]]:
        """The answers, and the loop's numbers. warm: before, in the same cache."""
        loop = self._loop(way)
        _drain(loop, "warm", warm)
        return _drain(loop, "", requests), dict(loop.stats())

    def _loop(self, way: Way) -> Loop:
        capacity, (stride, kept_bytes) = self._executor.capacity(), self._stride
        rows = min(way.rows, capacity.num_rows)
        manager = KVManager(capacity.layout, capacity.num_pages, prefix_caching=way.prefix_caching,
                            snapshot_stride=stride, snapshot_bytes=kept_bytes,
                            num_host_pages=capacity.num_host_pages)
        return Loop(Scheduler(
            capacity, manager, make_policy("priority"),
            max_num_batched_tokens=way.step_tokens or capacity.max_step_tokens,
            max_num_seqs=rows, eos_token_ids=self._engine.spec.eos_token_ids,
            speculation=Speculation(rows, 4, lambda step: 1.0) if way.drafts else None,
        ), self._executor, WallClock())  # fmt: skip


def _drain(loop: Loop, prefix: str, requests: Sequence[Request]) -> list[Said]:
    said = [Said(prompt=request.prompt) for request in requests]
    waiting = sorted(range(len(requests)), key=lambda i: requests[i].at)
    step = 0
    while waiting or loop.has_work():
        while waiting and requests[waiting[0]].at <= step:
            number = waiting.pop(0)
            request = requests[number]
            params = SamplingParams(temperature=0.0, seed=0, max_tokens=request.tokens, ignore_eos=True,
                                    logprobs=TOP, prompt_logprobs=request.scores)
            loop.add(NewRequest(id=f"{prefix}{number}", prompt=np.array(request.prompt, np.int32),
                                params=params, priority=request.priority, arrived_s=float(step)))
        for output in loop.step():
            if output.error is not None:
                raise ConfigError(f"the engine gave a request up: {output.error}")
            one = said[int(output.id.removeprefix(prefix))]
            one.tokens += output.new_tokens
            one.logprobs += output.logprobs
            one.scores += [score for _, score in output.prompt_logprobs]
        step += 1
    return said


def verify(config: EngineConfig, *, around: Around = lambda executor: executor,
           tell: Tell = lambda line: None) -> list[Finding]:
    """The findings, one a line of the table. around: what the executor is wrapped in, so that a test can
    break it. tell: hears what is being done. Raises RidgelineError when the model cannot be run at all."""
    tell("loading the model")
    can_draft = config.cache and config.device != "cuda"
    engine = _engine(replace(config, speculate="ngram") if can_draft and config.speculate is None else config)
    try:
        ways = Ways(engine, around(engine.executor))
        prompts = _prompts(engine)
        alone = [answer for prompt in prompts for answer in ways.run([Request(prompt=prompt)], Way())[0]]
        found = []
        for finding in _invariance(ways, prompts, alone, _bounds(engine)):
            tell(f"{finding.what}: {finding.verdict}")
            found.append(finding)
        return found + _against(config, engine, ways, alone, tell)
    finally:
        engine.close()


def _engine(config: EngineConfig) -> Engine:
    try:
        return build_engine(config)
    except ConfigError:
        if config.speculate != "ngram":
            raise
        return build_engine(replace(config, speculate=None))  # a device that cannot verify drafts


def _bounds(engine: Engine) -> Bounds:
    if engine.info["deterministic"]:
        return EXACT
    choices = engine.info["startup"]["choices"]
    two_paths = "bfloat16" in (engine.numerics, choices.get("prefill", {}).get("value"))
    return ROUNDED if two_paths else SAME_NUMBERS


def _prompts(engine: Engine) -> list[tuple[int, ...]]:
    """The texts in the model's tokens; without a tokenizer, random ones of their lengths."""
    tokenizer = load_text(engine.checkpoint.path).tokenizer
    most = min(engine.info["max_request_tokens"], engine.capacity.max_model_len) - ANSWER - 2
    if most < 2:
        raise ConfigError(f"verify needs room for {ANSWER + 4} tokens of a request: set a larger "
                          "max_model_len or kv_cache_bytes")
    drawn = np.random.default_rng(0)
    ids = [tokenizer.encode(text) if tokenizer is not None
           else drawn.integers(0, engine.spec.vocab_size, 2 + len(text) // 4).tolist() for text in TEXTS]
    return [tuple(some[:most]) for some in ids]


def _invariance(ways: Ways, prompts: Sequence[tuple[int, ...]], alone: list[Said], bounds: Bounds
                ) -> Iterator[Finding]:
    every = [Request(prompt=prompt) for prompt in prompts]
    yield compare_texts("batched = alone", alone, ways.run(every, Way())[0], bounds)
    said, _ = ways.run(every, Way(rows=SLICE // 2, step_tokens=SLICE))
    yield compare_texts("chunked = whole", alone, said, bounds)
    said, stats = ways.run(every, Way(prefix_caching=True), warm=every)
    yield _if(stats["num_cached_tokens"], "nothing was found in the cache",
              compare_texts("cached = computed", alone, said, bounds))
    whole = [Request(prompt=(*one.prompt, *one.tokens), scores=TOP, tokens=1) for one in alone]
    said, _ = ways.run(whole, Way())
    scored = [replace(one, tokens=before.tokens, logprobs=one.scores[-len(before.tokens):])
              for one, before in zip(said, alone, strict=True)]
    yield compare_texts("token by token = whole", alone, [_greedy(one) for one in scored], bounds)
    if ways.can_draft:
        said, stats = ways.run(every, Way(drafts=True))
        yield _if(stats["num_draft_tokens"], "no draft was found in these texts",
                  compare_texts("speculated = plain", alone, said, bounds))
    else:
        yield not_run("speculated = plain", "this engine verifies no drafts")
    urgent = [replace(request, at=3 + 2 * i, priority=-1 - i) for i, request in enumerate(every[1:])]
    said, stats = ways.run([every[0], *urgent], Way(rows=1))
    yield _if(stats["num_preemptions"], "nobody was preempted",
              compare_texts("preempted = not", alone, said, bounds))


def _if(happened: object, why: str, finding: Finding) -> Finding:
    return finding if happened else not_run(finding.what, why)


def _greedy(scored: Said) -> Said:
    """What a greedy request would have taken at each place: the best, in front."""
    best = [replace(one, token_ids=one.token_ids[1:], logprobs=one.logprobs[1:], rank=0)
            for one in scored.logprobs]
    return replace(scored, logprobs=best)


# ---- against other numbers


def _against(config: EngineConfig, engine: Engine, ways: Ways, alone: Sequence[Said], tell: Tell
             ) -> list[Finding]:
    """The model's numbers against the same weights in float32, and those against another implementation."""
    checkpoint, vocab_size = engine.checkpoint, engine.spec.vocab_size
    sequences = _sequences(alone)
    asked = [Request(prompt=sequence, tokens=1, scores=vocab_size) for sequence in sequences]
    here_PV, full_PV, found = distributions(ways.run(asked, Way())[0], vocab_size), None, []
    what = f"{engine.numerics} = float32"
    if engine.numerics == "float32":
        full_PV = here_PV
        found.append(not_run("quantized = float32", "the model runs in float32"))
    elif checkpoint.path is not None:
        tell("loading the weights in float32")
        full_PV = _in_float32(config, asked, vocab_size)
        same = engine.numerics != "packed" or any(tensor.quantized for tensor in checkpoint.tensors.values())
        bounds = {"kl_nat": 0.01, "top1": 0.95} if same else {"kl_nat": 0.1, "top1": 0.85}
        found.append(compare_distributions(what, full_PV, here_PV, near_nat=SAME_NUMBERS.near, **bounds))
    else:
        found.append(not_run(what, "random weights are another model in another format"))
    tell(f"{found[-1].what}: {found[-1].verdict}")
    tell("asking the reference")
    return [*found, _reference(checkpoint, sequences, full_PV)]


def _sequences(alone: Sequence[Said]) -> list[tuple[int, ...]]:
    """Prompts with their answers, as many as make SCORED places."""
    found, left = [], SCORED
    for one in alone:
        sequence = (*one.prompt, *one.tokens)[: left + 1]
        if len(sequence) > 1:
            found.append(sequence)
            left -= len(sequence) - 1
    return found


def _in_float32(config: EngineConfig, asked: Sequence[Request], vocab_size: int) -> Floats:
    full = build_engine(replace(config, dtype="float32", kv_cache_dtype="auto", quantization=None,
                                speculate=None))
    try:
        return distributions(Ways(full, full.executor).run(asked, Way())[0], vocab_size)
    finally:
        full.close()


def _reference(checkpoint: Checkpoint, sequences: Sequence[tuple[int, ...]], full_PV: Floats | None
               ) -> Finding:
    what, path = "float32 = transformers", checkpoint.path
    if path is None or not path.is_dir() or not any(path.glob("*.safetensors")):
        return not_run(what, "not applicable: the checkpoint is no folder of safetensors")
    if find_spec("transformers") is None:
        return not_run(what, "transformers is not installed")
    assert full_PV is not None
    torch, transformers = import_module("torch"), import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    except Exception as error:  # a model that it does not know is no fault of ours
        return not_run(what, f"transformers cannot load it: {type(error).__name__}: {error}"[:200])
    with torch.inference_mode():
        logits = [model(torch.tensor([sequence])).logits[0, :-1].float() for sequence in sequences]
    there_PV = torch.cat(logits).log_softmax(-1).numpy()[:, : full_PV.shape[1]]
    return compare_distributions(what, there_PV, full_PV, near_nat=SAME_NUMBERS.near, kl_nat=1e-4, top1=0.98)
