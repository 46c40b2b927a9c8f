"""What a GPU's runner must do beside plain texts, as cases for Triton's interpreter and for a GPU: through
the scheduler, what the CPU's runner does with the same float32 weights. Two steps are in flight wherever they
can be. The interpreter gets one layer, a GPU two."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from ridgeline.adapters.load import Adapter
from ridgeline.adapters.slots import AdapterSlots
from ridgeline.adapters.stacked import StackedSlots
from ridgeline.base.clock import WallClock
from ridgeline.frontend import structure
from ridgeline.kernels.gpu import Gpu
from ridgeline.models.adapter import seat_shapes
from ridgeline.nn.build import build_model
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.grammar import Grammars
from ridgeline.runner.graphs import FIELDS, DecodeGraphs, Recorder, Variant
from ridgeline.runner.prefixes import Prefixes
from ridgeline.runner.runner import LocalExecutor
from ridgeline.runner.short_graphs import ShortGraphs, Size
from ridgeline.runner.speculate.ngram import Ngram
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.runner.speculate.texts import Texts
from ridgeline.schedule.executor import Capacity
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.adapters.made import ALL, adapter_folder, loaded
from tests.helpers import tiny_mixture, tiny_spec, tiny_weights
from tests.invariance.driver import MOST_DRAFTS, Job, Run, Setup, Tiny
from tests.kernels.step_cases import Recorded
from tests.runner.hand import Feed, Hand
from tests.runner.test_grammar import END, VOCAB, Letters

SETUP = Setup(num_rows=4, max_step_tokens=16, depth=2, block_tokens=16)
MOST_RANK = 5  # of an adapter
PLAIN = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)


def tiny(gpu: Gpu) -> ModelSpec:
    layers, windows = (1, (None,)) if gpu.interpret else (2, (None, 9))
    spec = tiny_spec(num_layers=layers, head_dim=16, vocab_size=VOCAB, windows=windows)
    return replace(spec, eos_token_ids=(END,))


class Event:
    """Stands for CUDA's where nothing runs beside the host."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: None) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, other: "Event") -> float:
        return 1.0


def without_device() -> None:
    """What the runner asks of CUDA beside its kernels."""
    torch.cuda.Event, torch.cuda.synchronize = Event, lambda *_: None  # type: ignore[assignment,misc]
    torch.cuda.current_stream = lambda *_: None  # type: ignore[assignment]


class Either(Tiny):
    """The tiny model on the CPU, or by a GPU's kernels; both follow grammars. piece: tokens of a prefix that
    rows read together. adapters: for slots 1 and on; a GPU has one slot more."""

    def __init__(
        self, spec: ModelSpec, gpu: Gpu | None, piece: int | None = None, adapters: Sequence[Adapter] = ()
    ) -> None:
        slots = AdapterSlots(len(adapters)) if adapters else None
        super().__init__(spec, adapters=slots)
        self.piece = piece
        self.gpu, self.adapters = gpu, adapters
        for slot, adapter in enumerate(adapters if slots else (), 1):
            slots.put(slot, adapter)  # type: ignore[union-attr]

    def slots(self, gpu: Gpu) -> StackedSlots | None:
        """The GPU's, still empty."""
        if not self.adapters:
            return None
        shapes, num = seat_shapes(self.spec, MOST_RANK), len(self.adapters) + 1
        return StackedSlots(num, shapes, dtype=torch.float32, device=gpu.device)

    def _executor(self, setup: Setup) -> LocalExecutor | GpuExecutor:
        grammars = Grammars(
            Letters, vocab_size=VOCAB, eos_token_ids=(END,), threads=1,
            pinned=self.gpu is not None and not self.gpu.interpret,
        )  # fmt: skip
        capacity, drafter = self._capacity(setup), None
        if setup.speculate:
            texts = Texts()
            drafter = Drafter(texts, Ngram(texts, MOST_DRAFTS), WallClock(), ordered=self.gpu is None)
        if self.gpu is None:
            device = torch.device("cpu")
            one: LocalExecutor | GpuExecutor = LocalExecutor(
                self.model, capacity, cache_dtype=torch.float32, device=device, clock=WallClock(), threads=1,
                drafter=drafter, grammars=grammars,
            )  # fmt: skip
        else:
            weights = {name: weight.to(self.gpu.device) for name, weight in self.weights.items()}
            one = GpuExecutor(
                build_model(self.spec, weights, torch.float32, self.gpu, self.slots(self.gpu)), capacity,
                cache_dtype=torch.float32, device=self.gpu.device, clock=WallClock(), drafter=drafter,
                grammars=grammars,
            )  # fmt: skip
            for slot, adapter in enumerate(self.adapters, 1):
                one.put_adapter(slot, adapter)
            if self.piece is not None:
                one._prefixes = Prefixes(
                    capacity.layout, capacity.num_rows, capacity.max_model_len, piece=self.piece, least=1
                )
            if self.gpu.interpret or self.piece is not None:
                self.give_graphs(one, capacity, Recorded() if self.gpu.interpret else one._recorder)
        one.max_in_flight = setup.depth
        self.one = one
        return one

    def give_graphs(self, one: GpuExecutor, capacity: Capacity, recorder: Recorder) -> None:
        """By a recorder that runs in the interpreter, or for other prefixes."""
        parts = one._model, one._rows, one._chooser, recorder
        one._graphs = DecodeGraphs(
            *parts, max_rows=capacity.num_rows, prefixes=one._shared_prefixes() if self.piece else None
        )
        one._short = ShortGraphs(
            *parts, capacity.layout, max_rows=capacity.num_rows, max_tokens=capacity.max_step_tokens
        )
        most = max(FIELDS * capacity.num_rows, one._short.num_staged)
        for slot in one._slots:
            slot.staged = torch.zeros(most, dtype=torch.int32, pin_memory=not one._model.gpu.interpret)

    def sizes(self) -> tuple[list[Variant], list[Size]]:
        """Recorded: of decodes, and of steps with prompts."""
        one = self.one
        assert isinstance(one, GpuExecutor) and one._graphs is not None and one._short is not None
        return list(one._graphs._ready), list(one._short._ready)


def both(
    gpu: Gpu, setup: Setup, jobs: Sequence[Job], *, prompts: bool = False, piece: int | None = None,
    adapters: Sequence[Adapter] = (),
) -> Run:  # fmt: skip
    """The GPU's run, whose texts are the CPU's. prompts: some were in a graph. piece: as of Either, and some
    rows did. adapters: rows that take one decode in a graph too, unless they verify drafts."""
    if gpu.interpret:
        without_device()
    one, other = Either(tiny(gpu), gpu, piece, adapters), Either(tiny(gpu), None, adapters=adapters)
    ours, wanted = one.run(setup, jobs), other.run(setup, jobs)
    asks = any(job.params.grammar for job in jobs)
    decodes, short = one.sizes()
    assert not gpu.interpret or asks == any(not variant.chooses for variant in decodes), decodes
    assert any(variant.shares for variant in decodes) == (piece is not None), decodes
    graphed = bool(adapters and not setup.speculate)
    assert any(variant.adapted for variant in decodes) == graphed, decodes
    assert short or not prompts, "prompts by graphs too"
    for key, text in wanted.texts.items():
        assert ours.texts[key].tokens == text.tokens, (key, ours.texts[key].tokens, text.tokens)
        assert len(ours.texts[key].logprobs) == len(text.logprobs)
        for got, want in zip(ours.texts[key].logprobs, text.logprobs):
            np.testing.assert_allclose(got.logprobs, want.logprobs, atol=1e-4)
        if text.pooled is not None:
            np.testing.assert_allclose(ours.texts[key].pooled, text.pooled, atol=1e-4)
    return ours


def job(prompt: Sequence[int], at: int = 0, **changes: object) -> Job:
    return Job(prompt=tuple(prompt), params=replace(PLAIN, **changes), at=at)  # type: ignore[arg-type]


def pooled(gpu: Gpu, dtype: torch.dtype) -> None:
    """Vectors of prompts, in chunks and of one token, beside texts."""
    long = [3 + i % 9 for i in range(18)]
    both(gpu, SETUP, [
        job([5], max_tokens=3), job(long, pool="mean", max_tokens=1),
        job([4], 1, pool="last", max_tokens=1), job([6], 2, pool="mean", max_tokens=1),
    ])  # fmt: skip


def followed(gpu: Gpu, dtype: torch.dtype) -> None:
    """Rows under grammars, greedy, seeded, with penalties and probabilities, beside free ones; what is forced
    meanwhile is not sampled."""
    free, loose = replace(PLAIN, ignore_eos=False), structure.regex("(ab|ba|é[12]){1,3}12é")
    tight = structure.regex("[ab]12é")
    run = both(gpu, SETUP, [
        Job(prompt=(1, 2, 3), params=replace(free, grammar=loose, max_tokens=4)),
        job([4, 5], max_tokens=3, logprobs=2),
        Job(prompt=(7, 8), params=replace(free, grammar=tight, max_tokens=5, temperature=1.0, seed=3,
                                          repetition_penalty=1.4), at=1),
        Job(prompt=(9,), params=replace(free, grammar=loose, max_tokens=3, logprobs=1, temperature=1.0,
                                        seed=5), at=1),
    ])  # fmt: skip
    assert run.texts[2, 0].tokens[1:4] == [6, 11, 10]


def drafted(gpu: Gpu, dtype: torch.dtype) -> None:
    """Rows that verify drafts: with probabilities, and under a grammar, where each position has its mask;
    beside a prompt and a row whose penalties want its tokens one by one."""
    ones = replace(PLAIN, ignore_eos=False, grammar=structure.regex("(1|a){4,8}"), logit_bias={6: 30.0})
    run = both(gpu, replace(SETUP, speculate="ngram"), [
        job([4] * 4, logprobs=1, logit_bias={4: 30.0}, max_tokens=6),
        Job(prompt=(6, 6, 6, 6), params=replace(ones, max_tokens=6)),
        job([4] * 6, 1, frequency_penalty=0.5, max_tokens=2),
    ])  # fmt: skip
    assert int(str(run.stats["num_accepted_tokens"])) >= 4 and run.texts[1, 0].tokens == [6] * 6


def short(gpu: Gpu, dtype: torch.dtype) -> None:
    """Prompts whole and in chunks beside decodes, more than a graph has places for, with probabilities, seeds
    and penalties."""
    both(gpu, SETUP, [
        job([3 + i % 9 for i in range(23)], logprobs=2), job([5, 6, 7], max_tokens=7, repetition_penalty=1.3),
        job([4] * 13, 1), job([8, 9], 2, logprobs=1, temperature=1.0, seed=3),
        job([3, 9] * 8, 2, max_tokens=1), job([7] * 5, 3), job([5], 4, prompt_logprobs=0),
        job([6, 5, 4], 6, frequency_penalty=0.7),
    ], prompts=True)  # fmt: skip


def prefixes(gpu: Gpu, dtype: torch.dtype) -> None:
    """Rows whose prompts begin alike, in the cache and not, beside one that shares nothing."""
    alike = [3 + i % 9 for i in range(80)]
    both(gpu, replace(SETUP, max_step_tokens=96, prefix_caching=True), [
        job(alike, max_tokens=6), job([*alike[:70], 5, 6], 1, max_tokens=4, logprobs=1),
        job([4, 5, 6], 2, max_tokens=3), job([*alike, 7], 2, max_tokens=3, temperature=1.0, seed=3),
    ], piece=64)  # fmt: skip


def experts(gpu: Gpu, dtype: torch.dtype) -> None:
    """As many were read as on the CPU, by a prompt and a decode."""
    if gpu.interpret:
        without_device()
    spec = tiny_mixture(head_dim=16)
    weights, counts = tiny_weights(spec), list[list[int]]()
    for one in (gpu, None):
        hand = Hand(spec=spec, weights=weights, gpu=one, num_rows=1, block_tokens=16)
        hand.start(0, [5, 6, 7])
        feeds = Feed(row=0, start=0, tokens=[5, 6, 7]), Feed(row=0, start=3, tokens=[9])
        counts.append([hand.step(feed).experts_read for feed in feeds])
        hand.close()
    assert counts[0] == counts[1] and min(counts[0]) > 0, counts


def adapted(gpu: Gpu, dtype: torch.dtype) -> None:
    """Rows of two adapters, at all places and at few, and of none: prompts whole and in chunks beside
    decodes, then decodes alone; rows change hands. The adapters differ. On a GPU, which is faster at it, also
    beside a grammar, vectors and drafts."""
    spec = tiny(gpu)
    with TemporaryDirectory() as name:
        folders = [
            adapter_folder(Path(name) / str(rank), spec, seed=rank, rank=rank, targets=targets, strength=3.0)
            for rank, targets in ((MOST_RANK, ALL), (3, ("q_proj", "v_proj", "down_proj")))
        ]
        made = [loaded(folder, spec) for folder in folders]
    prompt = [3 + i % 9 for i in range(9)]
    jobs = [replace(job(prompt, at, logprobs=2, max_tokens=2 + at), adapter=at) for at in range(3)]
    jobs += [replace(job([5, 6], 3, max_tokens=2), adapter=2), job([4], 3, max_tokens=3)]
    run = both(gpu, SETUP, jobs, prompts=True, adapters=made)
    assert len({run.texts[i, 0].logprobs[0].logprobs[0] for i in range(3)}) == 3
    if gpu.interpret:
        return
    both(gpu, SETUP, [
        *jobs, replace(job(prompt * 2, 4, pool="mean", max_tokens=1), adapter=1),
        replace(job([9], 4, grammar=structure.regex("(ab|ba){1,3}"), max_tokens=4), adapter=1),
        replace(job([5, 6, 7], 3, temperature=1.0, seed=3), adapter=2),
    ], prompts=True, adapters=made)  # fmt: skip
    both(gpu, replace(SETUP, speculate="ngram"), [
        replace(job([4] * 6, slot, logprobs=1, logit_bias={4: 30.0}), adapter=slot) for slot in (0, 1, 2)
    ], adapters=made)  # fmt: skip


CASES: dict[str, Callable[[Gpu, torch.dtype], None]] = {
    "pooled": pooled,
    "followed": followed,
    "drafted": drafted,
    "short": short,
    "prefixes": prefixes,
    "experts": experts,
    "adapted": adapted,
}
