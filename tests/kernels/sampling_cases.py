"""What the sampling kernels must do, as cases for the interpreter and for a GPU: the tokens of the CPU's
sampler, and those of the twin that sorts.

Legend: S rows, V vocabulary.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.sampling import Allowed, Requests, Sampling, ask_of, bias_of, marks_of
from ridgeline.kernels.sampling.reference import adjusted_reference, sample_reference
from ridgeline.runner.grammar import Masks
from ridgeline.runner.logprobs import top_logprobs
from ridgeline.runner.sampler import Sampler, gumbel
from ridgeline.schedule.plan import RowStart
from ridgeline.spec.sampling import SamplingParams

PLAIN = SamplingParams(temperature=0.9)
MIX = (SamplingParams(temperature=0.0), PLAIN, replace(PLAIN, top_k=40), replace(PLAIN, top_p=0.9),
       replace(PLAIN, min_p=0.05), replace(PLAIN, top_k=7, top_p=0.5, min_p=0.01),
       replace(PLAIN, repetition_penalty=1.3, frequency_penalty=0.5, presence_penalty=0.2, top_p=0.95),
       replace(PLAIN, min_tokens=9, logit_bias={5: 3.0, 6: -500.0}), replace(PLAIN, top_k=1))
PROMPT, OUTPUT, STOPS = [0, 1, 2, 3, 4], [5, 7, 7], (0, 2)


class Sides:
    """The kernels, and what they are compared with, over the same requests, one a row."""

    def __init__(self, gpu: Gpu, vocab_size: int, requests: Sequence[SamplingParams]) -> None:
        rows, self.gpu, self.vocab_size = len(requests), gpu, vocab_size
        self.cpu = Sampler(rows, vocab_size, torch.device("cpu"))
        self.sampling = Sampling(gpu, max_rows=rows + 1, vocab_size=vocab_size)
        self.requests = Requests.room(torch.zeros(rows + 1, dtype=torch.int64, device=gpu.device),
                                      vocab_size=vocab_size, marks=rows, biases=rows)
        self.asks = []
        for row, params in enumerate(requests):
            self.cpu.start(RowStart(
                request=row, row=row, params=params, seed=row, prompt=np.array(PROMPT, np.int32),
                output=np.array(OUTPUT, np.int32), stop_token_ids=STOPS))
            marked, biased = params.needs_history or params.min_tokens > 0, bool(params.logit_bias)
            ask = ask_of(params, row, vocab_size, marks=row if marked else -1, bias=row if biased else -1,
                         num_prompt=len(PROMPT))
            self.requests.marks_CV[row] = marks_of(vocab_size, PROMPT, OUTPUT, STOPS).to(gpu.device)
            self.requests.bias_CV[row] = bias_of(vocab_size, params.logit_bias).to(gpu.device)
            self.requests.write(row, ask)
            self.asks.append(ask)

    def step(self, logits_SV: Tensor, rows: Sequence[int], position: int,
             masks: Masks | None = None) -> list[int]:
        """Tokens by the kernels, the last row of logits being idle; failed rows are equal, and give -1.
        masks: of some of the rows."""
        num = len(rows)
        lens = torch.tensor([position] * num + [0], dtype=torch.int32, device=self.gpu.device)
        at = torch.tensor([*rows, len(self.asks)], dtype=torch.int32, device=self.gpu.device)
        out_2S = torch.full((2, num + 1), 77, dtype=torch.int32, device=self.gpu.device)
        allowed, logits_NV = None, logits_SV[:num].float()
        if masks is not None:
            which = torch.tensor([masks.first.get(row, -1) for row in range(num + 1)], dtype=torch.int32)
            allowed = Allowed(bits=masks.bits_NW.to(self.gpu.device), which_S=which.to(self.gpu.device))
            logits_NV = masks.apply(logits_NV, range(num), range(num), [0] * num, keep=True)
        self.sampling(logits_SV.to(self.gpu.device), at, lens, self.requests, out_2S, allowed)
        wanted = self.cpu.sample(logits_NV, torch.tensor(rows), torch.full((num,), position))
        assert out_2S[0, :num].tolist() == wanted.tokens_S.tolist()
        assert out_2S[1, :num].tolist() == wanted.failed_S.int().tolist()
        assert out_2S[:, num].tolist() == [77, 77], "an idle row is left alone"
        assert self.requests.last_token[at[:num].long()].tolist() == wanted.tokens_S.tolist()
        return wanted.tokens_S.masked_fill(wanted.failed_S, -1).tolist()


def spread(rows: int, vocab_size: int, scale: float, dtype: torch.dtype, seed: int) -> Tensor:
    return (torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale).to(dtype)


def mixture(small: int, large: int, scale: float, *, step: float = 0.0,
            turns: int = 1) -> Callable[[Gpu, torch.dtype], None]:
    """Every kind of row in one call, in any place. step: logits are its multiples, so that many are equal.
    turns: of the rows, in the interpreter."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        vocab_size = small if gpu.interpret else large
        sides, rows = Sides(gpu, vocab_size, MIX), list(reversed(range(len(MIX))))
        for turn in range(turns if gpu.interpret else 12):
            logits = spread(len(MIX) + 1, vocab_size, scale, dtype, turn)
            if step:
                logits = (logits / step).round() * step
            sides.step(logits, rows, len(PROMPT) + len(OUTPUT) + turn)
            rows = rows[1:] + rows[:1]

    return check


def masked(gpu: Gpu, dtype: torch.dtype) -> None:
    """Every kind of row under a mask of a few tokens, of one, or of nearly all, beside rows without."""
    vocab_size = 300 if gpu.interpret else 128_255
    sides, rows, filled = Sides(gpu, vocab_size, MIX), range(len(MIX)), Future[None]()
    filled.set_result(None)
    random = np.random.default_rng(0)
    for turn, share in enumerate((0.02, 0.98)):
        allow = random.random((6, -(-vocab_size // 32) * 32)) < share
        allow[:, 7], allow[5], allow[5, 299] = True, False, True
        bits = torch.from_numpy(np.packbits(allow, axis=1, bitorder="little").view(np.int32))
        masks = Masks(bits_NW=bits, first=dict(zip((8, 6, 5, 3, 1, 0), range(6))), filled=filled)
        tokens = sides.step(spread(len(MIX) + 1, vocab_size, 2.0, dtype, turn), rows, 8 + turn, masks)
        assert all(allow[mask, tokens[row]] for row, mask in masks.first.items())


def sorted_twin(gpu: Gpu, dtype: torch.dtype) -> None:
    """The twin that sorts gives the same tokens; a row alone, in more parts, those it gets in a batch."""
    vocab_size = 700 if gpu.interpret else 1500
    sides = Sides(gpu, vocab_size, MIX)
    logits, position = spread(len(MIX) + 1, vocab_size, 2.0, dtype, 5), 8
    tokens = sides.step(logits, range(len(MIX)), position)
    alone = Sides(gpu, vocab_size, MIX)
    for row, ask in enumerate(sides.asks):
        marked, biased = int(ask.wholes[1]) >= 0, int(ask.wholes[2]) >= 0
        x_V = adjusted_reference(
            logits[row], ask, position, marks_of(vocab_size, PROMPT, OUTPUT, STOPS) if marked else None,
            bias_of(vocab_size, MIX[row].logit_bias) if biased else None)
        assert sample_reference(x_V, ask, gumbel(row, position, torch.arange(vocab_size))) == tokens[row]
        if row in (1, 5, 6):
            assert alone.step(logits[[row, 0]], [row], position) == tokens[row: row + 1]


def broken_rows(gpu: Gpu, dtype: torch.dtype) -> None:
    """Logits that are not finite, anywhere, fail their row and no other, and so does a row left no token."""
    vocab_size = 300
    sides = Sides(gpu, vocab_size, [PLAIN] * 5)
    logits = spread(6, vocab_size, 1.0, dtype, 0)
    logits[0, 299], logits[1, 0], logits[2, 130] = torch.nan, torch.inf, -torch.inf
    assert [token < 0 for token in sides.step(logits, range(5), 9)] == [True] * 3 + [False] * 2
    small = Sides(gpu, 12, [PLAIN])
    small.requests.marks_CV[0] = marks_of(12, [], [], range(12)).to(gpu.device)
    small.requests.write(0, ask_of(replace(PLAIN, min_tokens=9), 0, 12, marks=0))
    out_2S, one = torch.zeros(2, 1, dtype=torch.int32, device=gpu.device), torch.ones(1, dtype=torch.int32)
    small.sampling(logits[:1, :12].to(gpu.device), (one - 1).to(gpu.device), one.to(gpu.device),
                   small.requests, out_2S)
    assert out_2S.tolist() == [[0], [1]]


def history(gpu: Gpu, dtype: torch.dtype) -> None:
    """A token counts from the next position on; sampling a position again changes nothing."""
    params = SamplingParams(temperature=0.0, frequency_penalty=1.0, presence_penalty=0.5,
                            repetition_penalty=1.1)
    sides, logits = Sides(gpu, 40, [params]), spread(2, 40, 0.3, dtype, 0)
    taken = []
    for position in range(8, 20):
        again = sides.step(logits, [0], position)
        assert sides.step(logits, [0], position) == again
        taken += again
    assert len(set(taken)) > 6
    counts = torch.bincount(torch.tensor(OUTPUT + taken[:-1]), minlength=40)
    assert torch.equal(sides.requests.marks_CV[0].cpu() & 0xFFFF, counts.int())


def logprobs(gpu: Gpu, dtype: torch.dtype) -> None:
    """Ids, ranks and values, ties included; more wanted than there are."""
    for vocab_size, k in ((3, 5), (700, 9)):
        logits = (spread(6, vocab_size, 4.0, dtype, 0) * 2).round() / 2
        taken = torch.arange(6) % vocab_size
        lens = torch.tensor([1, 1, 1, 1, 1, 0], dtype=torch.int32, device=gpu.device)
        sampling = Sampling(gpu, max_rows=6, vocab_size=vocab_size)
        got = sampling.logprobs(logits.to(gpu.device), lens, taken.to(gpu.device), k)
        wanted = top_logprobs(logits[:5].float(), taken[:5], k)
        assert torch.equal(got[0][:5].cpu(), wanted[0]) and torch.equal(got[2][:5].cpu(), wanted[2])
        torch.testing.assert_close(got[1][:5].cpu(), wanted[1], atol=2e-6, rtol=0)


CASES: dict[str, Callable[[Gpu, torch.dtype], None]] = {
    "mixture of a few hundred tokens": mixture(300, 128_256, 3.0, turns=2),
    "mixture of flat rows": mixture(140, 5003, 0.1),
    "mixture of equal logits": mixture(260, 5003, 2.0, step=0.5),
    "mixture of a dozen tokens": mixture(12, 12, 1.0),
    "masks": masked,
    "the twin that sorts": sorted_twin,
    "broken rows": broken_rows,
    "history": history,
    "logprobs": logprobs,
}
