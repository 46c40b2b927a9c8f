"""Sampling on the GPU: from a step's logits to one token a row, and the log-probabilities of the best few.

The door: what each request asks of its sampler, in tensors, and the launches. Rows of any mixture share two
launches; nothing is read back, and nothing but the number of rows shapes them, so that they can be captured.
A token is a function of its row's logits, request, seed and position alone. Same rules, order and noise as
the CPU's sampler: integers are equal to the bit, scores are float64, so tokens differ only where two scores
lie within a few units in the last place, or a token at top_p's border within those of float32.

Legend: S rows of a step, R requests, V vocabulary, C places of texts or biases, K best.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, inf, log

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.base.errors import ConfigError
from ridgeline.kernels.gpu import Gpu, power_of_two
from ridgeline.spec.sampling import SamplingParams

MAX_VOCAB = 1 << 24  # of the order of tokens, 24 bits are the id's
IN_PROMPT = 1 << 24  # a mark's bits; below it, how often the token is in the output
IS_STOP = 1 << 25
MAX_BIAS = 100.0
_BLOCK = 128
_TILE = 4  # blocks that a program of the pass over the logits, one warp, reads at once
_MOST_PROGRAMS, _FEW_PROGRAMS = 32, 8  # of them a processor: at most, and where a row is cut in parts of few
_FEW_BLOCKS = 16
_AT_ONCE = 16  # blocks that are read at once later


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request's numbers. reals float64 [6] and wholes int32 [5], as the rows of `Requests`; seed of 64
    bits."""

    reals: NDArray[np.float64]
    wholes: NDArray[np.int32]
    seed: int


def ask_of(params: SamplingParams, seed: int, vocab_size: int, *, marks: int = -1, bias: int = -1,
           num_prompt: int = 0) -> Ask:
    """marks, bias: the request's places in `Requests`, -1 for none; a request that needs_history or has
    min_tokens needs marks, one with a logit_bias a bias. num_prompt: tokens before the output."""
    assert marks >= 0 or not (params.needs_history or params.min_tokens)
    assert bias >= 0 or not params.logit_bias
    top_k = params.top_k if 0 < params.top_k < vocab_size else vocab_size
    return Ask(
        reals=np.array([0.0 if params.greedy else params.temperature, params.top_p,
                        log(params.min_p) if params.min_p > 0.0 else -inf, params.repetition_penalty,
                        params.presence_penalty, params.frequency_penalty]),
        wholes=np.array([top_k, marks, bias, num_prompt + params.min_tokens, -1], np.int32),
        seed=seed % 2**64)


def marks_of(vocab_size: int, prompt: Sequence[int], output: Sequence[int], stops: Sequence[int]) -> Tensor:
    """A row of `Requests.marks_CV`, on the host: the text so far, and what min_tokens keeps out."""
    marks = np.bincount(np.asarray(output, np.int64), minlength=vocab_size).astype(np.int32)
    marks[np.unique(np.asarray(prompt, np.int64))] += IN_PROMPT
    marks[np.unique(np.asarray(stops, np.int64))] += IS_STOP
    return torch.from_numpy(marks)


def bias_of(vocab_size: int, logit_bias: Mapping[int, float]) -> Tensor:
    """A row of `Requests.bias_CV`, on the host; biases are cut to 100 either way, as in OpenAI's API."""
    bias_V = torch.zeros(vocab_size)
    for token, bias in logit_bias.items():
        bias_V[token] = min(max(bias, -MAX_BIAS), MAX_BIAS)
    return bias_V


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """What the requests ask, on the device. The last column of wholes is the kernel's own.

    reals_R6 float64: temperature (0: greedy), top_p, log min_p (-inf: off), repetition, presence and
    frequency penalty. wholes_R5 int32: top_k (V: off), place in marks, place in bias (-1: none), first
    position at which stop tokens may be sampled, position of the token sampled last (-1: none since the marks
    were written; it is counted when a later position is sampled, so that sampling a position again changes
    nothing). seeds_R int64. marks_CV int32, bias_CV float32: read by the rows that have a place there only.
    last_token int64 [R]: the token sampled last, for whoever feeds it to the next step.
    """

    reals_R6: Tensor
    wholes_R5: Tensor
    seeds_R: Tensor
    marks_CV: Tensor
    bias_CV: Tensor
    last_token: Tensor

    @classmethod
    def room(cls, last_token: Tensor, *, vocab_size: int, marks: int, biases: int) -> "Requests":
        """Greedy rows that change nothing; marks and biases: places there are."""
        device, num_rows = last_token.device, len(last_token)
        reals = torch.tensor([0.0, 1.0, -inf, 1.0, 0.0, 0.0], dtype=torch.float64).repeat(num_rows, 1)
        wholes = torch.tensor([vocab_size, -1, -1, 0, -1], dtype=torch.int32).repeat(num_rows, 1)
        return cls(reals_R6=reals.to(device), wholes_R5=wholes.to(device),
                   seeds_R=torch.zeros(num_rows, dtype=torch.int64, device=device),
                   marks_CV=torch.zeros(max(1, marks), vocab_size, dtype=torch.int32, device=device),
                   bias_CV=torch.zeros(max(1, biases), vocab_size, device=device), last_token=last_token)

    def write(self, row: int, ask: Ask) -> None:
        """A request takes a row. Nobody waits: what goes up lies in pinned memory of its own."""
        for numbers, there in ((ask.reals, self.reals_R6[row]), (ask.wholes, self.wholes_R5[row])):
            host = torch.from_numpy(numbers)
            there.copy_(host.pin_memory() if there.is_cuda else host, non_blocking=True)
        self.seeds_R[row].fill_(int(np.uint64(ask.seed).view(np.int64)))

    def pointers(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What grammars leave to the rows of a step. bits int32 [masks, (V + 31) // 32], a bit a token; which_S
    int32: the mask of each row, -1 for none."""

    bits: Tensor
    which_S: Tensor


class Sampling:
    """Samples on one stream of one GPU. Its memory is written anew by each call."""

    def __init__(self, gpu: Gpu, *, max_rows: int, vocab_size: int) -> None:
        if vocab_size >= MAX_VOCAB:
            raise ConfigError(f"no sampling kernel: a vocabulary of {vocab_size} is above {MAX_VOCAB}")
        self._gpu, self._vocab_size, self._max_rows = gpu, vocab_size, max_rows
        self._num_blocks = -(-vocab_size // _BLOCK)
        self._max_SB, self._noise_SB, self._list_SB = torch.empty(
            3, max_rows, self._num_blocks, dtype=torch.int32, device=gpu.device)
        self._mass_SB = torch.empty(max_rows, self._num_blocks, device=gpu.device)
        self._odd = torch.empty(max_rows * self._num_blocks, device=gpu.device)

    def __call__(self, logits_SV: Tensor, rows_S: Tensor, lens_S: Tensor, requests: Requests,
                 out_2S: Tensor, allowed: Allowed | None = None) -> None:
        """out_2S int32 gets the tokens, and 1 where a row failed, because its logits are not all finite
        (below 3e38) or its request leaves no token; its token is 0. The tokens go to requests.last_token as
        well.

        logits_SV: float32 or bfloat16, left as they are. rows_S int32: each request once at most. lens_S
        int32: tokens known, which is the position where the new one will stand; 0 where a row is idle, for
        which nothing is written. allowed: None where no row has a mask.
        """
        from ridgeline.kernels.sampling.triton import choose_kernel

        assert out_2S.dtype == torch.int32 and out_2S.stride(1) == 1
        masks = (None, None) if allowed is None else (allowed.bits, allowed.which_S)
        parts = self._survey(logits_SV, rows_S, lens_S, requests, masks)
        choose_kernel[(len(logits_SV),)](
            logits_SV, rows_S, lens_S, *requests.pointers(), self._max_SB, self._noise_SB, self._mass_SB,
            self._odd, self._list_SB, out_2S[0], out_2S[1], *masks, self._vocab_size, self._num_blocks, parts,
            logits_SV.stride(0), _BLOCK, power_of_two(self._num_blocks), _AT_ONCE, self._pdl, num_warps=8,
            **self._gpu.launch_options())

    def logprobs(self, logits_SV: Tensor, lens_S: Tensor, tokens_S: Tensor,
                 k: int) -> tuple[Tensor, Tensor, Tensor]:
        """(ids int64 [S, 1 + K], values float32 [S, 1 + K], ranks int64 [S]): the token taken, then the
        K = min(k, V) best in order, with natural log-probabilities of the logits as they are. A rank counts
        the tokens that are strictly more probable. Unwritten where lens_S is 0."""
        from ridgeline.kernels.sampling.triton import logprobs_kernel

        num_rows, k = len(logits_SV), min(k, self._vocab_size)
        ids = torch.empty(num_rows, 1 + k, dtype=torch.int64, device=logits_SV.device)
        values = torch.empty(num_rows, 1 + k, device=logits_SV.device)
        ranks_S = torch.empty(num_rows, dtype=torch.int64, device=logits_SV.device)
        self._survey(logits_SV, lens_S, lens_S, None)
        logprobs_kernel[(num_rows,)](
            logits_SV, lens_S, tokens_S, self._max_SB, self._mass_SB, self._list_SB, ids, values, ranks_S,
            self._vocab_size, self._num_blocks, logits_SV.stride(0), 1 + k, k, _BLOCK,
            power_of_two(self._num_blocks), _AT_ONCE, self._pdl, num_warps=8, **self._gpu.launch_options())
        return ids, values, ranks_S

    @property
    def _pdl(self) -> int:
        return int(self._gpu.programmatic)

    def _survey(self, logits_SV: Tensor, rows_S: Tensor, lens_S: Tensor, requests: Requests | None,
                masks: tuple[Tensor | None, Tensor | None] = (None, None)) -> int:
        """The pass over the logits, raw without requests; into how many parts a row was cut."""
        from ridgeline.kernels.sampling.triton import survey_kernel

        num_rows = len(logits_SV)
        assert logits_SV.shape[1] == self._vocab_size and logits_SV.stride(1) == 1
        assert logits_SV.dtype in (torch.float32, torch.bfloat16) and num_rows <= self._max_rows
        assert rows_S.dtype == lens_S.dtype == torch.int32
        work = self._num_blocks * num_rows / self._gpu.processors
        part = max(ceil(work / _MOST_PROGRAMS), min(_FEW_BLOCKS, ceil(work / _FEW_PROGRAMS)))
        part = ceil(part / _TILE) * _TILE
        parts = -(-self._num_blocks // part)
        held = (self._odd,) * 6 if requests is None else requests.pointers()
        survey_kernel[(parts, num_rows)](
            logits_SV, rows_S, lens_S, *held, self._max_SB, self._noise_SB, self._mass_SB, self._odd,
            *masks, self._vocab_size, self._num_blocks, logits_SV.stride(0), part, _BLOCK, _TILE,
            requests is None, self._pdl, num_warps=1, **self._gpu.launch_options())
        return parts
