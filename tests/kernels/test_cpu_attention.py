"""Protects the fused decode attention: each row sees exactly its own keys, right to float32 rounding, and the
same to the bit alone, in company, on any number of threads and under any instruction set."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.blocks.attention.reference import Scoring, paged_attention
from ridgeline.blocks.norm_rope.reference import rms_norm, rotate
from ridgeline.blocks.paged import plan_attention
from ridgeline.blocks.step import CacheRegion, GroupStep, Step
from ridgeline.kernels.cpu.attention import Runs, TokenRows, fits, fused_attention, runs_of
from ridgeline.kernels.cpu.native import Native
from ridgeline.kernels.cpu.tape import MAX_GROUP, run_tokens

pytestmark = pytest.mark.usefixtures("poisoned")
EPS = 1e-5
NAN_BYTE = 255  # two or four of them are a NaN
# positions beside the borders of eight keys, pages and chunks of 256 keys
BORDERS = (0, 1, 6, 7, 8, 9, 62, 63, 64, 254, 255, 256, 257, 511, 512, 700, 1499)


@dataclass(frozen=True, kw_only=True)
class Shape:
    dim: int = 64
    heads: int = 6
    kv_heads: int = 2
    rotary: int | None = None
    window: int | None = None
    qk_norm: bool = False
    block: int = 16
    dtype: torch.dtype = torch.float32
    scale: float = 0.2
    sinks: bool = False


class Scene:
    """Sequences with a cached past, in a NaN-filled arena whose pages hold other things beside the region.

    Each has counts[i] new tokens (one by default) from positions[i] on.
    """

    def __init__(self, shape: Shape, positions: tuple[int, ...], seed: int = 0,
                 counts: tuple[int, ...] | None = None) -> None:
        self.shape, self.positions = shape, positions
        self.counts = np.array(counts or [1] * len(positions))
        self.sequence = np.arange(len(positions)).repeat(self.counts)
        offset = np.concatenate([np.arange(count) for count in self.counts])
        self.position = torch.from_numpy(np.array(positions)[self.sequence] + offset)
        random, numbers = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
        block, dim = shape.block, shape.dim
        held = [(position + count - 1) // block + 1
                for position, count in zip(positions, self.counts.tolist(), strict=True)]
        region_bytes = block * 2 * shape.kv_heads * dim * shape.dtype.itemsize
        num_pages = sum(held) + 2
        self.arena = torch.full((num_pages, region_bytes + 192), NAN_BYTE, dtype=torch.uint8)
        region = CacheRegion(group=0, tokens_per_page=block, dtype=shape.dtype,
                             bytes_NB=self.arena[:, 64: 64 + region_bytes])
        self.entries = region.entries(2, shape.kv_heads, dim)
        pages = numbers.permutation(num_pages).tolist()
        self.table = torch.full((len(positions), max(held) + 1), pages.pop(), dtype=torch.int32)
        self.past: list[Tensor] = []
        for row, position in enumerate(positions):
            self.table[row, : held[row]] = torch.tensor([pages.pop() for _ in range(held[row])])
            first = 0 if shape.window is None else max(0, position + 1 - shape.window)
            places = torch.arange(first, position)
            past = torch.randn(len(places), 2, shape.kv_heads, dim, generator=random).to(shape.dtype)
            self.entries[self.table[row, places // block].long(), places % block] = past
            self.past.append(past)
        self.qkv = torch.randn(len(self.position), shape.heads + 2 * shape.kv_heads, dim, generator=random)
        self.norms = 1 + torch.randn(2, dim, generator=random) / 4 if shape.qk_norm else None
        self.sinks = torch.linspace(-2.0, 3.0, shape.heads) if shape.sinks else None
        rotary = dim if shape.rotary is None else shape.rotary
        angles = self.position[:, None] * 100.0 ** -torch.arange(0, 1, 2 / rotary)
        self.cosine = torch.cat((angles.cos(), angles.cos()), -1)
        self.sine = torch.cat((-angles.sin(), angles.sin()), -1)

    def run(self, library: Native, *tokens: int) -> Tensor:
        """The kernel's result for these tokens of as many sequences (all by default), in this order."""
        chosen = torch.tensor(tokens or range(len(self.position)))
        return self._run(library, chosen, self.table[self.sequence[chosen]], None)

    def run_chunks(self, library: Native) -> Tensor:
        """All tokens in one call, a sequence's in runs."""
        runs = runs_of(self.counts, run_tokens(self.shape.heads, self.shape.kv_heads))
        return self._run(library, torch.arange(len(self.position)), self.table, runs)

    def run_one_by_one(self, library: Native) -> Tensor:
        """As decode steps: each sequence's first new token, then each one's second, and so on."""
        first = self.counts.cumsum() - self.counts
        out = torch.full_like(self.qkv[:, : self.shape.heads], math.nan)
        for place in range(self.counts.max()):
            tokens = (first + place)[self.counts > place]
            out[tokens] = self.run(library, *tokens.tolist())
        return out

    def _run(self, library: Native, tokens: Tensor, table: Tensor, runs: Runs | None) -> Tensor:
        position = self.position[tokens].int()
        shared = TokenRows(position_T=position, table_SP=table, cosine_TR=self.cosine[tokens],
                           sine_TR=self.sine[tokens], longest=int(position.max()), runs=runs)
        q_norm, k_norm = (None, None) if self.norms is None else self.norms
        return fused_attention(library, self.qkv[tokens], self.entries, shared, scale=self.shape.scale,
                               window=self.shape.window, q_norm=q_norm, k_norm=k_norm, eps=EPS,
                               sinks=self.sinks)

    def turned(self) -> Tensor:
        """Queries, keys and values after norm and rotation, by the torch twins."""
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        qk, values = self.qkv.split((heads + kv_heads, kv_heads), 1)
        if self.norms is not None:
            gain = torch.cat((self.norms[0].expand(heads, -1), self.norms[1].expand(kv_heads, -1)))
            qk = rms_norm(qk, None, EPS) * gain
        return torch.cat((rotate(qk, self.cosine, self.sine), values), 1)

    def expected(self) -> Tensor:
        """Dense attention in float64, row by row, over the past and the new token as the cache holds it."""
        shape, turned = self.shape, self.turned()
        share, out = shape.heads // shape.kv_heads, []
        for row, past in enumerate(self.past):
            new = turned[row, shape.heads:].unflatten(0, (2, shape.kv_heads)).to(shape.dtype)
            keys, values = torch.cat((past, new[None])).double().repeat_interleave(share, 2).unbind(1)
            scores = torch.einsum("md,kmd->mk", turned[row, : shape.heads].double(), keys) * shape.scale
            if self.sinks is not None:
                scores = torch.cat((scores, self.sinks[:, None].double()), -1)
            out.append(torch.einsum("mk,kmd->md", scores.softmax(-1)[:, : len(keys)], values))
        return torch.stack(out)

    def cache(self) -> Tensor:
        """All that the arena holds, NaN as a number."""
        return self.entries.float().nan_to_num(nan=12345.0)


def close(out: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    """A bfloat16 cache may round a new key to the other neighbour."""
    off = 3e-6 if dtype is torch.float32 else 5e-3
    torch.testing.assert_close(out.double(), expected.double(), atol=off, rtol=off)


SHAPES = [
    *(Shape(dim=dim, qk_norm=dim % 16 == 0) for dim in range(8, 97, 8)),
    *(Shape(dim=dim) for dim in (104, 112, 120, 128, 160, 192, 248, 256)),
    *(Shape(heads=heads, kv_heads=kv_heads, qk_norm=True, dim=32)
      for heads, kv_heads in ((1, 1), (5, 5), (9, 3), (8, 2), (8, 1), (18, 2), (16, 1), (40, 2), (34, 1))),
    *(Shape(dim=64, rotary=rotary, qk_norm=norm) for rotary in (2, 16, 30, 62) for norm in (False, True)),
    Shape(sinks=True), Shape(heads=40, kv_heads=2, window=9, sinks=True),
    *(Shape(dim=32, block=block) for block in (8, 24, 64, 256, 512)),
    *(Shape(dim=80, window=window, block=8)
      for window in (1, 2, 3, 7, 8, 9, 15, 31, 64, 255, 256, 257, 300, 513, 1499, 1500, 4096)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_dense_attention(library: Native, shape: Shape, dtype: torch.dtype) -> None:
    """Over a cache that is NaN where a row may not look: later places, other pages, what left the window."""
    shape = replace(shape, dtype=dtype)
    scene = Scene(shape, BORDERS)
    close(scene.run(library), scene.expected(), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", [Shape(), Shape(dim=80, rotary=40, qk_norm=True, window=37, block=8),
                                   Shape(dim=128, heads=8, kv_heads=1, sinks=True)], ids=str)
def test_equals_the_torch_path(library: Native, shape: Shape, dtype: torch.dtype) -> None:
    """Result and cache are those of blocks/attention/reference.py, which serves where no kernel does."""
    shape = replace(shape, dtype=dtype)
    ours, twin = Scene(shape, BORDERS), Scene(shape, BORDERS)
    out = ours.run(library)
    starts, num = torch.tensor(BORDERS), len(BORDERS)
    slots = twin.table[torch.arange(num), starts // shape.block].long() * shape.block + starts % shape.block
    group = GroupStep(table_SP=twin.table, slots_T=slots)
    step = Step(ids_T=starts, positions_T=starts, reach_T=starts, lengths_S=starts + 1, starts=starts.numpy(),
                counts=np.ones(num, np.int64), num_decodes=num, groups=(group,))
    plan = plan_attention(step, group, twin.entries, shape.window)
    turned = twin.turned()
    q, kv = turned[:, : shape.heads], turned[:, shape.heads:].unflatten(1, (2, shape.kv_heads)).to(dtype)
    there = paged_attention(q, kv, twin.entries, plan, window=shape.window,
                            scoring=Scoring(scale=shape.scale, sinks_M=twin.sinks))
    close(out, there, dtype)
    share = 1e-6 if dtype is torch.float32 else 8e-3
    torch.testing.assert_close(ours.cache(), twin.cache(), atol=1e-6, rtol=share)


def test_writes_nothing_but_its_slots(library: Native) -> None:
    """Every byte of other tokens, other regions and other rows stays."""
    for shape in (Shape(), Shape(dtype=torch.bfloat16, dim=24)):
        scene = Scene(shape, (9, 6, 40))
        before = scene.arena.clone()
        scene.run(library)
        token_bytes = 2 * shape.kv_heads * shape.dim * shape.dtype.itemsize
        slots = {(int(scene.table[row, position // shape.block]), position % shape.block)
                 for row, position in enumerate(scene.positions)}
        places = (scene.arena != before).nonzero()
        assert {(page, (byte - 64) // token_bytes) for page, byte in places.tolist()} == slots
        assert int(places[:, 1].min()) >= 64 and int(places[:, 1].max()) < 64 + shape.block * token_bytes


@pytest.mark.parametrize("shape", [Shape(), Shape(window=290, block=8, dim=72, qk_norm=True, sinks=True),
                                   Shape(heads=20, dtype=torch.bfloat16)], ids=str)
def test_a_row_alone_is_a_row_in_company(library: Native, shape: Shape) -> None:
    """To the bit, on one thread and two, whole and with its keys cut over threads."""
    scene = Scene(shape, BORDERS)
    together, cache = scene.run(library), scene.cache()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for row in range(len(BORDERS)) if threads == 1 else (0, 8, 13, 16):
            assert torch.equal(scene.run(library, row)[0], together[row]), "alone"
        assert torch.equal(scene.run(library, 16, 3), together[[16, 3]]), "a few rows, cut over two threads"
        assert torch.equal(scene.run(library), together)
    assert torch.equal(scene.cache(), cache)


@pytest.mark.parametrize("shape", [
    Shape(), Shape(heads=9, kv_heads=3, qk_norm=True, dtype=torch.bfloat16),
    Shape(heads=4, kv_heads=4, dim=72), Shape(heads=18, kv_heads=1, dim=32),
    *(Shape(window=window, block=8) for window in (1, 5, 8, 31, 256, 300)),
], ids=str)
@pytest.mark.parametrize("threads", [1, 2])
def test_a_prompt_chunk_is_its_tokens_one_by_one(library: Native, shape: Shape, threads: int) -> None:
    """To the bit, result and cache: chunks that start anywhere, beside decodes, whole or cut over threads."""
    torch.set_num_threads(threads)
    for positions, counts in (((7, 300, 250, 0), (1, 1, 23, 19)), ((509,), (4,))):
        together, singly = (Scene(shape, positions, counts=counts) for _ in range(2))
        out = together.run_chunks(library)
        assert out.isfinite().all() and torch.equal(out, singly.run_one_by_one(library))
        assert torch.equal(together.cache(), singly.cache())


def test_runs_share_as_many_queries_as_a_pass_takes() -> None:
    """Decodes need none; a chunk is cut where its sequence ends."""
    assert runs_of(np.array([1, 1, 1]), run_tokens(3, 1)) is None
    runs = runs_of(np.array([1, 12, 1]), run_tokens(MAX_GROUP // 5, 1))
    assert runs is not None and runs.start.tolist() == [0, 1, 6, 11, 13, 14]
    assert runs.sequence_T is not None and runs.sequence_T.tolist() == [0] + 12 * [1] + [2]
    alone = runs_of(np.array([2]), run_tokens(2 * MAX_GROUP, 1))
    assert alone is not None and alone.start.tolist() == [0, 1, 2]
    tested = runs_of(np.array([1, 1, 1, 1, 3]), run_tokens(3, 1), np.array([1, 3]))
    assert tested is not None and tested.start.tolist() == [0, 1, 4, 7]


def test_a_row_of_nan_stays_alone(library: Native) -> None:
    """A broken row gives NaN, so that it is found, and its neighbours do not notice."""
    for place in (0, 6, 9):  # of a query, the key, the value
        scene = Scene(Shape(), (300, 300, 5))
        clean = scene.run(library)
        scene.qkv[1, place, 11] = math.nan
        broken = scene.run(library)
        assert broken[1].isnan().any() and torch.equal(broken[[0, 2]], clean[[0, 2]])
        assert place or broken[1, 0].isnan().all()


@pytest.mark.parametrize("shape", [Shape(heads=9, kv_heads=3), Shape(window=5, block=8)], ids=str)
def test_a_token_of_nan_is_not_seen_before_it(library: Native, shape: Shape) -> None:
    """Of a run too: a draft that breaks leaves the tokens before it what they are."""
    clean, broken = (Scene(shape, (270, 5), counts=(9, 3)) for _ in range(2))
    broken.qkv[4] = math.nan
    expected, out = clean.run_chunks(library), broken.run_chunks(library)
    assert torch.equal(out[:4], expected[:4]) and torch.equal(out[9:], expected[9:]) and out[4].isnan().all()


def test_large_scores(library: Native) -> None:
    """Scores of thousands and, below, all of one sign: the largest is taken off before the exponential."""
    for size in (30.0, 300.0):
        scene = Scene(Shape(scale=size), (700, 12))
        torch.testing.assert_close(scene.run(library).double(), scene.expected(), atol=2e-3, rtol=2e-3)
    scene = Scene(Shape(scale=3.0, rotary=2), (700, 12))
    scene.entries[:, :, 0, :, 2:] = -10.0
    scene.qkv[:, : 8, 2:] = 10.0
    scene.qkv[:, 6:8, 2:] = -10.0
    assert scene.run(library).isfinite().all()


def test_what_the_kernel_serves() -> None:
    """Pages of whole eights, heads of whole eights up to 256, float32 activations, and two cache dtypes."""
    def entries(tokens: int, dim: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(2, tokens, 2, 1, dim, dtype=dtype)

    assert fits(entries(8, 256), torch.float32) and fits(entries(16, 8, torch.float32), torch.float32)
    for tokens, dim in ((4, 64), (12, 64), (16, 20), (16, 264)):
        assert not fits(entries(tokens, dim), torch.float32)
    assert not fits(entries(16, 64, torch.float16), torch.float32)
    assert not fits(entries(16, 64), torch.bfloat16)


def test_instruction_sets_agree(library: Native, scalar: Native) -> None:
    for shape in (Shape(qk_norm=True, window=290), Shape(dim=72, dtype=torch.bfloat16), Shape(dim=128)):
        scene = Scene(shape, (0, 9, 63, 300, 700))
        assert torch.equal(scene.run(library), scene.run(scalar))
