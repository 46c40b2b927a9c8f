"""Protects paged attention: every row sees exactly its own keys, whatever else lies in the arena."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from ridgeline.blocks.attention.reference import Scoring, paged_attention
from ridgeline.blocks.paged import QUERY_BLOCK, plan_attention
from ridgeline.blocks.step import CacheRegion, GroupStep, Step

NAN_BYTE = 255  # eight of them are a NaN in every float format


PLAIN = Scoring(scale=0.3)


class Scene:
    """Rows with a cached past, in a NaN-filled arena whose pages hold other things beside the region."""

    def __init__(self, starts: list[int], counts: list[int], *, num_decodes: int, heads: int = 6,
                 groups: int = 2, width: int = 16, tokens_per_page: int = 4,
                 dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        torch.manual_seed(seed)
        self.starts, self.counts, self.groups, self.width = starts, counts, groups, width
        ends = [a + b for a, b in zip(starts, counts)]
        held = [-(-end // tokens_per_page) for end in ends]
        region_bytes = tokens_per_page * 2 * groups * width * dtype.itemsize
        num_pages = sum(held) + 3
        arena = torch.full((num_pages, region_bytes + 192), NAN_BYTE, dtype=torch.uint8)
        region = CacheRegion(group=0, tokens_per_page=tokens_per_page, dtype=dtype,
                             bytes_NB=arena[:, 64: 64 + region_bytes])
        self.arena, self.entries = arena, region.entries(2, groups, width)
        pages = random.permutation(np.arange(1, num_pages))
        table = np.zeros((len(starts), max(held) + 2), np.int32)
        table[:] = pages[-1]  # entries past the end name a page of NaN
        self.past: list[Tensor] = []
        slots = []
        for row, (start, end, used) in enumerate(zip(starts, ends, held)):
            table[row, :used], pages = pages[:used], pages[used:]
            positions = np.arange(end)
            places = table[row, positions // tokens_per_page] * tokens_per_page + positions % tokens_per_page
            self.past.append(torch.randn(start, 2, groups, width).to(dtype))
            old = torch.from_numpy(places[:start]).long()
            self.entries[old // tokens_per_page, old % tokens_per_page] = self.past[-1]
            slots.append(places[start:])
        self.slots = torch.from_numpy(np.concatenate(slots)).long()
        num_tokens = sum(counts)
        mixed = torch.randn(num_tokens, heads + 2 * groups, width).to(dtype)
        self.q, self.kv = mixed[:, :heads], mixed[:, heads:].unflatten(1, (2, groups))
        none = torch.zeros(0, dtype=torch.long)
        self.step = Step(ids_T=torch.zeros(num_tokens, dtype=torch.long), positions_T=none, reach_T=none,
                         lengths_S=torch.tensor(ends), starts=np.array(starts), counts=np.array(counts),
                         num_decodes=num_decodes,
                         groups=(GroupStep(table_SP=torch.from_numpy(table), slots_T=self.slots),))

    def run(self, window: int | None = None, scoring: Scoring = PLAIN) -> Tensor:
        plan = plan_attention(self.step, self.step.groups[0], self.entries, window)
        return paged_attention(self.q, self.kv, self.entries, plan, scoring=scoring, window=window)

    def expected(self, window: int | None = None, scoring: Scoring = PLAIN) -> Tensor:
        """One query at a time over plain lists of keys, in float64."""
        out, token = [], 0
        for row, (start, count) in enumerate(zip(self.starts, self.counts)):
            kv = torch.cat((self.past[row], self.kv[token: token + count])).double()
            for i in range(count):
                low = 0 if window is None else max(0, start + i - window + 1)
                keys, values = kv[low: start + i + 1].unbind(1)
                share = self.q.shape[1] // self.groups
                heads = []
                for head in range(self.q.shape[1]):
                    scores = keys[:, head // share] @ self.q[token + i, head].double() * 0.3
                    if scoring.softcap is not None:
                        scores = scoring.softcap * torch.tanh(scores / scoring.softcap)
                    if scoring.sinks_M is not None:
                        scores = torch.cat((scores, scoring.sinks_M[head: head + 1].double()))
                    heads.append(scores.softmax(0)[:len(keys)] @ values[:, head // share])
                out.append(torch.stack(heads))
            token += count
        return torch.stack(out)


CASES = {
    "one decode": ([9], [1], 1),
    "the first token": ([0], [1], 1),
    "decodes of equal length": ([7, 7, 7], [1, 1, 1], 3),
    "decodes of very different length": ([0, 1000, 3, 170, 4, 5, 1, 333], [1] * 8, 8),
    "a whole prompt": ([0], [13], 0),
    "a chunk on a page border": ([8], [8], 0),
    "a chunk inside a page": ([5], [6], 0),
    "a chunk of one token that is not a decode": ([6], [1], 0),
    "decodes and chunks": ([31, 2, 0, 17, 64], [1, 1, 9, 5, 70], 2),
    "a chunk longer than a block of queries": ([3], [QUERY_BLOCK + 9], 0),
}


@pytest.mark.parametrize("window", [None, 1, 5, 8, 64], ids=lambda w: f"window {w}")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_dense_attention(case: str, window: int | None) -> None:
    """NaN in hidden keys, stale table entries and other rows must not leak; sizes are odd."""
    starts, counts, num_decodes = CASES[case]
    scene = Scene(starts, counts, num_decodes=num_decodes)
    out, expected = scene.run(window), scene.expected(window)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("case", ["decodes and chunks", "a chunk longer than a block of queries"])
def test_sinks_and_softcap(case: str, window: int | None) -> None:
    """A sink takes its share of the softmax, beside few keys and many; scores are capped before the mask."""
    starts, counts, num_decodes = CASES[case]
    scene = Scene(starts, counts, num_decodes=num_decodes)
    sinks = torch.linspace(-1.0, 3.0, scene.q.shape[1])
    for scoring in (Scoring(scale=0.3, sinks_M=sinks), Scoring(scale=0.3, softcap=0.7),
                    Scoring(scale=0.3, softcap=0.7, sinks_M=sinks)):
        out, expected = scene.run(window, scoring), scene.expected(window, scoring)
        torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize(("heads", "groups", "width", "tokens_per_page"),
                         [(1, 1, 8, 1), (4, 4, 8, 3), (9, 3, 20, 16), (8, 1, 12, 5)])
def test_head_layouts(heads: int, groups: int, width: int, tokens_per_page: int) -> None:
    """MHA, GQA and MQA, odd head widths and page sizes."""
    scene = Scene([21, 40, 0, 3], [1, 1, 7, 4], num_decodes=2, heads=heads, groups=groups, width=width,
                  tokens_per_page=tokens_per_page)
    torch.testing.assert_close(scene.run().double(), scene.expected(), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 8])
def test_a_bfloat16_cache(window: int | None) -> None:
    scene = Scene([21, 40, 0, 3], [1, 1, 7, 4], num_decodes=2, dtype=torch.bfloat16)
    torch.testing.assert_close(scene.run(window).double(), scene.expected(window), atol=2e-2, rtol=2e-2)


def test_writes_nothing_but_its_slots() -> None:
    """A step must leave every byte of other tokens, other regions and other rows alone."""
    scene = Scene([9, 6, 2], [1, 1, 5], num_decodes=2)
    before = scene.arena.clone()
    scene.run()
    bytes_a_token = 2 * scene.groups * scene.width * 4
    changed = (scene.arena != before).nonzero()
    slots = {int(s) for s in scene.slots}
    tokens_per_page = scene.entries.shape[1]
    for page, byte in changed.tolist():
        assert page * tokens_per_page + (byte - 64) // bytes_a_token in slots
        assert 64 <= byte < 64 + tokens_per_page * bytes_a_token


def test_rows_do_not_depend_on_their_neighbours() -> None:
    """A row of a batch padded to a long neighbour equals the row alone."""
    starts = [900, 3, 40, 41, 7]
    together = Scene(starts, [1] * 5, num_decodes=5)
    out = together.run()
    for row, start in enumerate(starts):
        alone = Scene([start], [1], num_decodes=1)
        alone.q, alone.kv = together.q[row: row + 1], together.kv[row: row + 1]
        table = alone.step.groups[0].table_SP
        places = torch.arange(start)
        alone.entries[table[0, places // 4].long(), places % 4] = together.past[row]
        torch.testing.assert_close(alone.run()[0], out[row], atol=1e-6, rtol=1e-6)


def test_a_row_of_nan_stays_alone() -> None:
    """A broken row's keys poison its own output only."""
    scene = Scene([12, 12, 5], [1, 1, 3], num_decodes=2)
    clean = scene.run().clone()
    scene.kv[0] = math.nan
    out = scene.run()
    assert out[0].isnan().all()
    torch.testing.assert_close(out[1:], clean[1:])
