"""Protects decode steps that are recorded once and run in one call: the same to the bit as layer by layer, in
result and cache, and refused where anything but kernels stands between the layers."""

import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.adapters.slots import AdapterSlots
from ridgeline.blocks.step import CacheRegion, GroupStep, Step
from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.tape import Tape
from ridgeline.nn.build import Model, build_model
from ridgeline.nn.linear import Weight
from ridgeline.nn.replay import MAX_ROWS, TRIALS, Replay, recorded_bytes
from ridgeline.quant.packed import PackedMatrix, Packing32
from ridgeline.runner.cache import PageCache
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from tests.helpers import tiny_spec, tiny_weights
from tests.quant.blocks import Source, kernels, random_part

CPU = torch.device("cpu")
NUM_SEQUENCES, LENGTH = 80, 600
REFUSED = "something other than kernels"


def spec_of(*, qkv_bias: bool = False, qk_norm: bool = False, window: int | None = None) -> ModelSpec:
    return tiny_spec(hidden_size=64, head_dim=16, intermediate_size=96, max_position=LENGTH,
                     windows=(None, window), qkv_bias=qkv_bias, qk_norm=qk_norm)


def packed_model(spec: ModelSpec, adapters: AdapterSlots | None = None) -> Model:
    """Every matrix of the layers packed; numbers small enough to stay finite over any number of steps."""
    packing = Packing32(kernels(), planes=2)
    weights: dict[str, Weight] = dict(tiny_weights(spec))
    for seed, (name, param) in enumerate(spec.params()):
        if param.role == "linear" and name.startswith("layers."):
            weights[name] = packing.pack(Source((random_part("q4_1", *param.shape, seed=seed),)), CPU)
    return build_model(spec, weights, torch.float32, adapters=adapters)


class Scene:
    """A model with sequences whose cache is filled with random numbers up to any position.

    alone: put a chunk of another sequence in every step, so that the model runs layer by layer.
    """

    def __init__(self, spec: ModelSpec, model: Model, *, alone: bool, block_tokens: int = 16,
                 seed: int = 0) -> None:
        self.model, self.alone, self.tokens = model, alone, block_tokens
        layout = plan_layout(spec.cache(2), block_tokens=block_tokens)
        self.num_groups, held = len(layout.groups), -(-LENGTH // block_tokens)
        self.pages = PageCache(layout, (NUM_SEQUENCES + 1) * held, CPU)
        arena, random = self.pages.arena, torch.Generator().manual_seed(seed)
        numbers = torch.randn(arena.numel() // 2, generator=random).bfloat16()
        arena.copy_(numbers.view(torch.uint8).view_as(arena))
        self.table = torch.randperm(len(arena), generator=random).int().view(-1, held)
        model.bind_cache(layout, self.pages.region, torch.bfloat16)

    def step(self, sequences: Sequence[int], positions: Sequence[int], runs: Sequence[int] = (),
             adapters: Sequence[int] = ()) -> Tensor:
        """The hidden states of one token of each sequence, or of successive ones in runs. adapters:
        their slots."""
        rows = len(sequences)
        starts, counts = list(positions), [1] * rows
        position_T, row_T = list(positions), list(range(rows))
        if self.alone:
            starts, counts = [*starts, 0], [*counts, 2]
            position_T, row_T = [*position_T, 0, 1], [*row_T, rows, rows]
        table = self.table[[*sequences, NUM_SEQUENCES][: len(starts)]]
        at = torch.tensor(position_T)
        slots = table[row_T, at // self.tokens].long() * self.tokens + at % self.tokens
        group = GroupStep(table_SP=table, slots_T=slots)
        sequence_T = torch.tensor([*sequences, NUM_SEQUENCES])[row_T]
        step = Step(ids_T=(at * 7 + sequence_T) % 90, positions_T=at, reach_T=at + 1,
                    lengths_S=(torch.tensor(starts) + torch.tensor(counts)).int(), num_decodes=rows,
                    starts=np.array(starts), counts=np.array(counts), groups=(group,) * self.num_groups,
                    runs=np.array(runs) if runs else None,
                    adapter_T=np.array([*adapters, *[0] * (len(position_T) - rows)])
                    if any(adapters) else None)
        return self.model.forward(step)[:rows].clone()

    def cache(self) -> Tensor:
        """All that the sequences hold."""
        return self.pages.arena[self.table[:NUM_SEQUENCES].flatten().long()]


def sizes() -> Iterator[tuple[list[int], list[int]]]:
    """Steps of ever other rows, at ever other positions: one chunk of keys and several, few rows and many."""
    random = np.random.default_rng(0)
    for rows in (1, 3, 64, 7, 1, 2, 80, 64, 5, 1, 8, 3):
        sequences = random.permutation(NUM_SEQUENCES)[:rows].tolist()
        yield sequences, random.integers(1, LENGTH, rows).tolist()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("qk_norm", "window"), [(False, None), (True, 37)])
def test_the_same_as_layer_by_layer(threads: int, qk_norm: bool, window: int | None,
                                    caplog: pytest.LogCaptureFixture) -> None:
    """Result and cache, to the bit."""
    torch.set_num_threads(threads)
    caplog.set_level("INFO")
    spec = spec_of(qk_norm=qk_norm, window=window)
    recorded, plain = (Scene(spec, packed_model(spec), alone=alone) for alone in (False, True))
    for sequences, positions in sizes():
        assert torch.equal(recorded.step(sequences, positions), plain.step(sequences, positions))
    assert torch.equal(recorded.cache(), plain.cache())
    assert REFUSED not in caplog.text


@pytest.mark.parametrize("threads", [1, 2])
def test_drafts_are_decodes(threads: int) -> None:
    """A recording takes runs of a sequence's tokens, which read its keys once; result and cache are those of
    rows by themselves, to the bit."""
    torch.set_num_threads(threads)
    spec = spec_of(qk_norm=True, window=None)
    runs, rows = (Scene(spec, packed_model(spec), alone=False) for _ in range(2))
    for counts in ((1, 1), (2, 1), (4, 3, 1), (1,), (9, 1, 2), (4,), (1, 1, 1)):
        sequences = [sequence for sequence, count in enumerate(counts) for _ in range(count)]
        positions = [LENGTH - 300 * sequence % 400 - 20 + i for sequence, count in enumerate(counts)
                     for i in range(count)]
        drafted = counts if len(sequences) > len(counts) else ()
        assert torch.equal(runs.step(sequences, positions, drafted), rows.step(sequences, positions))
    assert torch.equal(runs.cache(), rows.cache())


@pytest.mark.parametrize("block_tokens", [4, 16])
@pytest.mark.parametrize("first", [1, MAX_ROWS])
def test_what_cannot_be_recorded_is_right_all_the_same(block_tokens: int, first: int,
                                                       caplog: pytest.LogCaptureFixture) -> None:
    """A bias is added between kernels, or attention is no kernel: the trial leaves no trace in the cache."""
    caplog.set_level("INFO")
    spec = spec_of(qkv_bias=block_tokens == 16)
    recorded, plain = (Scene(spec, packed_model(spec), alone=alone, block_tokens=block_tokens)
                       for alone in (False, True))
    for sequences, positions in [(list(range(first)), [33] * first), *sizes()]:
        torch.testing.assert_close(recorded.step(sequences, positions), plain.step(sequences, positions),
                                   rtol=1e-5, atol=1e-5)
    same = recorded.cache().view(torch.bfloat16).float(), plain.cache().view(torch.bfloat16).float()
    torch.testing.assert_close(*same, rtol=1e-2, atol=1e-5)
    assert caplog.text.count(REFUSED) == 1


def test_a_plain_float32_model_is_not_recorded(caplog: pytest.LogCaptureFixture) -> None:
    """Only its attention is a kernel; the first step has as many rows as a recording has room for."""
    caplog.set_level("INFO")
    spec = spec_of()
    recorded, plain = (Scene(spec, build_model(spec, tiny_weights(spec), torch.float32), alone=alone)
                       for alone in (False, True))
    for sequences, positions in [(list(range(MAX_ROWS)), [9] * MAX_ROWS), *sizes()]:
        torch.testing.assert_close(recorded.step(sequences, positions), plain.step(sequences, positions),
                                   rtol=1e-4, atol=1e-4)
    assert caplog.text.count(REFUSED) == 1


def test_a_model_that_gets_another_cache() -> None:
    """What was recorded over the old one is forgotten."""
    spec = spec_of()
    model, other = packed_model(spec), packed_model(spec)
    for seed in (0, 1):
        recorded = Scene(spec, model, alone=False, seed=seed)
        plain = Scene(spec, other, alone=True, seed=seed)
        for sequences, positions in sizes():
            assert torch.equal(recorded.step(sequences, positions), plain.step(sequences, positions))
        assert torch.equal(recorded.cache(), plain.cache())


def test_nan_of_one_row_stays_there() -> None:
    """A row whose cache is broken is NaN in every run, and its neighbours are as ever."""
    spec = spec_of()
    recorded, plain = (Scene(spec, packed_model(spec), alone=alone) for alone in (False, True))
    for scene in (recorded, plain):
        scene.pages.arena[scene.table[5].long()] = 255
    for _ in range(TRIALS + 3):
        a, b = (scene.step([4, 5, 6], [40, 50, 60]) for scene in (recorded, plain))
        assert a[1].isnan().all() and torch.equal(a[[0, 2]], b[[0, 2]])


@pytest.mark.parametrize("threads", [1, 2])
def test_the_memory_of_a_recording_is_foretold(threads: int) -> None:
    """What the start sets aside is what a recording then holds, weights and cache apart."""
    torch.set_num_threads(threads)
    spec = spec_of()
    scene = Scene(spec, packed_model(spec), alone=False)
    recorder = CountsTapes(kernels(), scene.model._modules)
    scene.model._replay = recorder
    scene.step([1, 2], [30, 300])
    weights = {part.data_ptr() for tensor in recorder.kept if isinstance(tensor, PackedMatrix)
               for part in tensor.tensors().values()}
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
                for tensor in recorder.kept if isinstance(tensor, Tensor)}
    not_counted = {scene.pages.arena.untyped_storage().data_ptr(), *weights}
    held = sum(size for at, size in storages.items() if at not in not_counted)
    foretold = recorded_bytes(spec, threads=threads, max_tokens=scene.table.shape[1] * scene.tokens)
    small = 2 * 4 * spec.hidden_size * len(spec.layers)  # weights of the norms
    assert held - small <= foretold <= held


class CountsTapes(Replay):
    """Says what its tape keeps alive."""

    @property
    def kept(self) -> list[object]:
        assert self._tape is not None
        return self._tape._kept


class Adds:
    """A block that is one kernel; `between` makes it one kernel and something else."""

    def __init__(self, matrix: PackedMatrix, between: float) -> None:
        self._matrix, self._between = matrix, between

    def bind(self, regions: Sequence[CacheRegion]) -> None: ...

    def share_key(self) -> str:
        return "adds"

    def prepare(self, step: Step) -> None:
        return None

    def __call__(self, x_TH: Tensor, step: Step, shared: object) -> Tensor:
        out = self._matrix.apply_add(x_TH, x_TH, step.num_decodes)
        return out.mul_(self._between) if self._between != 1 else out


@pytest.mark.parametrize("between", [1.0, 0.5])
def test_recorded_or_refused(between: float) -> None:
    """None means: run layer by layer. A recording serves every step, or after its first trial none."""
    matrix = Packing32(kernels(), planes=2).pack(Source((random_part("q8_0", 64, 64),)), CPU)
    assert isinstance(matrix, PackedMatrix)
    block = Adds(matrix, between)
    replay = Replay(kernels(), [block, block])
    answers = []
    for rows in (2, 1, 9, 64, 3, 1, MAX_ROWS + 1):
        x, none = torch.randn(rows, 64), torch.zeros(0, dtype=torch.long)
        step = Step(ids_T=torch.zeros(rows, dtype=torch.long), positions_T=none, reach_T=none, lengths_S=none,
                    starts=np.zeros(rows, np.int64), counts=np.ones(rows, np.int64), num_decodes=rows,
                    groups=())
        expected = block(block(x, step, None), step, None)
        out = replay(x, step)
        answers.append(out is not None)
        assert out is None or torch.equal(out, expected)
    assert answers == [True] * 6 + [False] if between == 1 else answers == [True] * 2 + [False] * 5


def test_a_recording_hears_its_own_thread_only() -> None:
    """Two engines of one process share the library."""
    library: Native = kernels()
    matrix = Packing32(library, planes=2).pack(Source((random_part("q4_1", 32, 32),)), CPU)
    assert isinstance(matrix, PackedMatrix)
    library.tape = tape = Tape(4, 1)
    try:
        other = threading.Thread(target=lambda: matrix.apply(torch.ones(1, 32), 1))
        other.start()
        other.join()
        assert len(tape) == 0
        matrix.apply(torch.ones(1, 32), 1)
        assert len(tape) == 1
    finally:
        library.tape = None
