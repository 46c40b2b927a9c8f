"""The kernels around decodes and chunks against their twins, and a whole model on the GPU's kernels against
plain torch. The former in the interpreter and on a GPU, models in the interpreter."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from ridgeline.blocks.attention.spec import AttentionSpec
from ridgeline.blocks.norm_rope.spec import RopeSpec
from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.rotate_write import rotate_write
from ridgeline.kernels.rotate_write.reference import rotate_write_reference
from ridgeline.kernels.step_inputs import angles, gather
from ridgeline.kernels.step_inputs.reference import angles_reference, gather_reference
from ridgeline.nn.build import build_model
from ridgeline.runner.choose import Chooser
from ridgeline.runner.graphs import FIELDS, Decoded, DecodeGraphs, Recorder, Variant
from ridgeline.spec.block import BlockSpec
from ridgeline.spec.model import ModelSpec
from tests.helpers import tiny_rope, tiny_spec, tiny_weights, tokens_of
from tests.kernels.triton_cases import close, random, tolerance
from tests.runner.hand import Feed, Hand

Case = Callable[[Gpu, torch.dtype], None]
PROMPT = tokens_of(37, seed=3).tolist()


def inputs(gpu: Gpu, dtype: torch.dtype) -> None:
    """Known tokens and last ones, an idle place, a table wider than a program's tile."""
    staged = torch.tensor([[1, 3, 5], [4, -1, 0], [-1, 0, 77], [9, 1, 1]], dtype=torch.int32)
    last = torch.arange(6) * 10
    table = torch.randint(0, 99, (6, 1500), dtype=torch.int32, generator=torch.Generator().manual_seed(0))
    there = [x.to(gpu.device) for x in (staged, last, table)]
    got, want = gather(*there), gather_reference(*there)
    for name in ("ids_S", "positions_S", "reach_S", "lens_S", "table_SX"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name


def turns(gpu: Gpu, dtype: torch.dtype) -> None:
    """Far positions too: the argument of the sine is large."""
    positions = torch.tensor([0, 1, 77, 8191, 131_071], device=gpu.device)
    frequencies = 500_000.0 ** -(torch.arange(12, device=gpu.device) / 12)
    for got, want in zip(angles(positions, frequencies, 1.5), angles_reference(positions, frequencies, 1.5)):
        assert (got - want).abs().max() < 1e-4


def written(qk_norm: bool, rotary: int) -> Case:
    """New keys and values in head-major pages; the heads are odd in number, the row longer than they are."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        heads, kv_heads, dim, page = 6, 3, 24, 16
        qkv = random(gpu, dtype, 9, (heads + 2 * kv_heads) * dim + 8)[:, :-8]
        slots = torch.randperm(4 * page, generator=torch.Generator().manual_seed(1))[:9].to(gpu.device)
        cos, sin = angles(torch.arange(9, device=gpu.device), torch.rand(rotary // 2, device=gpu.device), 1.0)
        norms = [random(gpu, dtype, dim) if qk_norm else None for _ in range(2)]
        results = []
        for run in (rotate_write, rotate_write_reference):
            pages = torch.zeros(4, 2, kv_heads, page, dim, dtype=dtype, device=gpu.device)
            keys, values = pages.transpose(2, 3).unbind(1)
            mine = torch.cat((qkv, qkv), 1)[:, : qkv.shape[1]]
            run(mine, keys, values, slots, cos, sin, num_heads=heads, q_norm=norms[0], k_norm=norms[1],
                eps=1e-5)
            results.append((mine[:, : (heads + kv_heads) * dim], pages))
        for got, want in zip(*results):
            close(got, want, tolerance(dtype))

    return check


def model(spec: ModelSpec) -> Case:
    """Greedy text of a whole prompt, of chunks, and beside another row, as plain torch gives it."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        plain, ours = (Hand(spec=spec, weights=tiny_weights(spec)) for _ in range(2))
        ours.model = build_model(spec, ours.weights, dtype, replace(gpu, max_rows=8))
        ours.model.bind_cache(ours.capacity.layout, ours.executor._cache.region, dtype)
        ours.executor._model = ours.model
        ours.executor._cache.arena.fill_(255)
        want, short = plain.generate(0, PROMPT, 3), plain.generate(1, PROMPT[:11], 1)
        assert ours.generate(0, PROMPT, 3) == ours.generate(1, PROMPT, 3, chunk=15) == want
        for row, prompt in ((2, PROMPT), (3, PROMPT[:11])):
            ours.start(row, prompt)
        first = ours.tokens(Feed(row=2, start=0, tokens=PROMPT))
        both = ours.tokens(Feed(row=2, start=37, tokens=[first[2]]), Feed(row=3, start=0, tokens=PROMPT[:11]))
        assert [first[2], both[2]] == want[:2] and [both[3]] == short
        plain.close()
        ours.close()

    return check


def sunk(spec: ModelSpec) -> ModelSpec:
    """The same with a score of its own for each head, that takes weight and gives no value."""
    def one(block: BlockSpec) -> BlockSpec:
        return replace(block, sinks=True) if isinstance(block, AttentionSpec) else block

    return replace(spec, layers=tuple(
        replace(layer, blocks=tuple((name, one(block)) for name, block in layer.blocks))
        for layer in spec.layers))


class Replayed:
    """Stands for a CUDA graph: runs the step again, into the memory that it had at first."""

    def __init__(self, step: Callable[[], Decoded], left: SimpleNamespace) -> None:
        self._step, self._left = step, left

    def replay(self) -> None:
        done = self._step()
        for name in ("out_2S", "logits_SV", "lens_S", "experts"):
            setattr(self._left, name, getattr(done, name))


class Recorded(Recorder):
    """Whose graphs run their step again."""

    def __init__(self) -> None:
        self.num = 0

    def renew(self) -> None: ...

    def record(self, step: Callable[[], Decoded]) -> tuple[torch.cuda.CUDAGraph, Decoded]:
        self.num += 1
        left = SimpleNamespace()
        return Replayed(step, left), left  # type: ignore[return-value]


def graphs(gpu: Gpu, dtype: torch.dtype) -> None:
    """Decodes of any number of rows, padded to a size, recorded once, fed by their own last tokens: the texts
    of plain torch."""
    spec = tiny_spec(head_dim=16, num_layers=1, qk_norm=True)
    plain, ours = (Hand(spec=spec, weights=tiny_weights(spec), num_rows=5) for _ in range(2))
    gpu = replace(gpu, max_rows=5)
    ours.model = ours.executor._model = build_model(spec, ours.weights, dtype, gpu)
    ours.model.bind_cache(ours.capacity.layout, ours.executor._cache.region, dtype)
    rows, outs = ours.executor._rows, {}
    chooser = Chooser(gpu, rows, num_rows=5, vocab_size=spec.vocab_size)
    recorder = Recorded()
    made = DecodeGraphs(ours.model, rows, chooser, recorder, max_rows=5)
    wanted = {row: plain.generate(row, PROMPT[: 9 + row], 6) for row in range(5)}
    for row in range(5):
        ours.start(row, PROMPT[: 9 + row])
        ours._reserve(row, 20)
        outs[row] = [ours.tokens(Feed(row=row, start=0, tokens=PROMPT[: 9 + row]))[row]]
    staged = torch.zeros(FIELDS * 5, dtype=torch.int32)
    for some in ([4], [0, 1, 2], [0, 1, 2, 3, 4], [1, 3], [0, 2], [3]):
        at = np.array(some, np.int32)
        start = np.array([8 + row + len(outs[row]) for row in some], np.int32)
        done = made.run(staged, at, start, np.full(len(some), -1, np.int32), start.astype(np.int64) + 1)
        assert not done.out_2S[1, : len(some)].any()
        for row, token in zip(some, done.out_2S[0].tolist()):
            outs[row].append(token)
    assert outs == {row: wanted[row][: len(out)] for row, out in outs.items()}
    assert recorder.num == 2 and set(made._ready) == {Variant(1), Variant(5)}
    made.record_all()
    assert recorder.num == 4 and set(made._ready) == {Variant(1), Variant(5)}
    plain.close()
    ours.close()


DYNAMIC = RopeSpec(kind="dynamic", theta=10_000.0, rotary_dim=16, max_position=16, factor=4.0)
BOTH: dict[str, Case] = {
    "inputs": inputs,
    "angles": turns,
    "written": written(qk_norm=False, rotary=24),
    "written with norms, part turned": written(qk_norm=True, rotary=16),
}
CASES: dict[str, Case] = BOTH | {  # in a GPU's bfloat16 texts part at near ties: tests/runner/test_gpu.py
    "graphs": graphs,
    "model": model(tiny_spec(head_dim=16, num_layers=1)),
    "model with windows and sinks": model(sunk(tiny_spec(head_dim=16, windows=(8, None)))),
    "model with qk-norm and biases, turned in part": model(tiny_spec(
        head_dim=16, num_layers=1, qk_norm=True, qkv_bias=True, tied=False,
        rope=replace(tiny_rope(), rotary_dim=8))),
    "model with lengths in its rotation": model(tiny_spec(head_dim=16, num_layers=1, rope=DYNAMIC)),
}
