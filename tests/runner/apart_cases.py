"""--deterministic on a GPU, as cases for Triton's interpreter and for a GPU: through the scheduler, every
log-probability of a request has the same bits alone and in company. In 16 bits, as a GPU's products are; the
interpreter has no bfloat16, and gets float16."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from ridgeline.base.clock import WallClock
from ridgeline.kernels.decode_linear import Call, DecodeLinears
from ridgeline.kernels.gpu import Gpu
from ridgeline.kernels.prefill_attention import Chunk, PrefillAttention
from ridgeline.nn.build import build_model
from ridgeline.runner.gpu import GpuExecutor
from ridgeline.runner.speculate.ngram import Ngram
from ridgeline.runner.speculate.speculator import Drafter
from ridgeline.runner.speculate.texts import Texts
from ridgeline.spec.cache import plan_layout
from ridgeline.spec.model import ModelSpec
from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_spec
from tests.invariance.driver import MOST_DRAFTS, Job, Setup, Text, Tiny
from tests.kernels.triton_cases import random
from tests.runner.gpu_cases import without_device

WORDS = (5, 11, 37)  # of all answers, so that n-grams find drafts; the model says their order
ALL = Setup(num_rows=2, max_step_tokens=11, depth=2, policy="priority", prefix_caching=True, block_tokens=16,
            check=False)  # two rows for all, of which the urgent take one after another


class Apart(Tiny):
    """The tiny model by a GPU's kernels, deterministic."""

    def __init__(self, spec: ModelSpec, gpu: Gpu) -> None:
        super().__init__(spec)
        self.gpu = replace(gpu, apart=True, max_rows=8)
        self.dtype = torch.float16 if gpu.interpret else torch.bfloat16
        self.there = {name: weight.to(gpu.device) for name, weight in self.weights.items()}

    def _executor(self, setup: Setup) -> GpuExecutor:
        layout = plan_layout(self.spec.cache(self.dtype.itemsize), block_tokens=setup.block_tokens)
        texts, drafter = Texts(), None
        if setup.speculate:
            drafter = Drafter(texts, Ngram(texts, MOST_DRAFTS), WallClock(), ordered=False)
        model = build_model(self.spec, self.there, self.dtype, self.gpu, apart=True)
        assert not model.capturable
        one = GpuExecutor(
            model, replace(self._capacity(setup), layout=layout), cache_dtype=self.dtype,
            device=self.gpu.device, clock=WallClock(), drafter=drafter,
        )  # fmt: skip
        one.max_in_flight = setup.depth
        one._cache.arena.fill_(255)  # NaN
        return one


    def alone(self, job: Job) -> Text:
        if (key := repr(job)) not in self._alone:
            self._alone[key] = self.run(Setup(block_tokens=ALL.block_tokens), [job]).texts[0, 0]
        return self._alone[key]


def bits(text: Text) -> object:
    """Its tokens, and the log-probabilities as they are held."""
    return text.tokens, [(one.token_ids.tolist(), one.logprobs.tobytes()) for one in text.logprobs]


def work(lengths: Sequence[int], num_tokens: int, apart: int = 2) -> list[Job]:
    """Prompts that share beginnings, greedy and drawn, so many steps apart; each is more urgent than those
    before it."""
    return [
        Job(prompt=(*(3 + i * i % 89 for i in range(length - 1)), 40 + n), at=apart * n, priority=-n,
            params=SamplingParams(temperature=0.8 * (n % 2), seed=n, ignore_eos=True, max_tokens=num_tokens,
                                  logprobs=3, logit_bias=dict.fromkeys(WORDS, 90.0)))
        for n, length in enumerate(lengths)
    ]  # fmt: skip


def same(tiny: Apart, setup: Setup, jobs: Sequence[Job], most: int | None = None) -> Counter[str]:
    """The first texts of the run, `most` of them, have the bits that they have alone; the run's numbers."""
    run = tiny.run(setup, jobs)
    for index, job in enumerate(jobs[:most]):
        text, alone = run.texts[index, 0], tiny.alone(job.alone(0))
        assert len(text.logprobs) == len(text.tokens) == job.params.max_tokens
        assert bits(text) == bits(alone), (setup, job, text.tokens, alone.tokens)
    return Counter({name: value for name, value in run.stats.items() if isinstance(value, int)})


def company(gpu: Gpu, dtype: torch.dtype) -> None:
    """In chunks beside decodes, behind a prefix from the cache, preempted."""
    if gpu.interpret:
        without_device()
        tiny = Apart(tiny_spec(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16, hidden_size=160), gpu)
        sums = same(tiny, ALL, work((19, 5, 6), 3, 1), most=2)
    else:
        sums = same(Apart(SPECS["windows"], gpu), ALL, LONG)
    assert sums["num_cached_tokens"] and sums["num_preemptions"], sums


def products(gpu: Gpu, dtype: torch.dtype) -> None:
    """Rows of a product, and of all that goes with it, have the bits that they have beside others and in
    other places, over one tile and more."""
    dtype = torch.float16 if gpu.interpret else torch.bfloat16
    rows, n, k = (70, 70, 160) if gpu.interpret else (1000, 1111, 4096)
    x, weight = random(gpu, dtype, rows, k), random(gpu, dtype, 2 * n, k, scale=k**-0.5)
    linears, out = DecodeLinears(replace(gpu, apart=True)), torch.empty(rows, n, device=gpu.device)
    for call in (
        Call(x_MK=x, weight=weight[:n], out_MN=out),
        Call(x_MK=x, weight=weight[n:], bias=random(gpu, dtype, n), residual_MN=random(gpu, dtype, rows, n)),
        Call(x_MK=x, weight=weight, norm_K=random(gpu, dtype, k), eps=1e-5, gated=True),
    ):
        whole = linears(call).clone()
        for low, high in ((0, 1), (17, 18), (69, 70), (3, 68), (1, rows)):
            fewer = replace(call, **{name: tensor[low:high] for name in ("x_MK", "residual_MN", "out_MN")
                                     if (tensor := getattr(call, name)) is not None})
            assert torch.equal(linears(fewer), whole[low:high]), (low, high)


def attention(gpu: Gpu, dtype: torch.dtype) -> None:
    """A GPU's: tokens of a prompt attend to the same bits in chunks of any length, short and beyond what
    fills all processors, with a window and without."""
    heads, groups, dim, tokens, page = 16, 2, 64, 2500, 64
    attend = PrefillAttention(replace(gpu, apart=True))
    qkv = random(gpu, torch.bfloat16, tokens, heads + 2 * groups, dim)
    pages = random(gpu, torch.bfloat16, -(-tokens // page), 2, groups, page, dim)
    keys, values = pages.transpose(2, 3).unbind(1)
    table = torch.arange(len(pages), dtype=torch.int32, device=gpu.device)
    for window in (None, 1000):
        outs = []
        for cuts in ((0, tokens), (0, 1, 2, 70, 191, 700, 1999, 2436, 2499, tokens)):
            made = []
            for low, high in pairwise(cuts):
                plan = attend.plan([Chunk(first=0, start=low, count=high - low)], table[None], keys, values,
                                   num_heads=heads, dtype=torch.bfloat16, window=window)
                made.append(attend(qkv[low:high], keys, values, plan, scale=dim**-0.5))
            outs.append(torch.cat(made))
        assert torch.equal(*outs), window


def under(name: str, setup: Setup, *counts: str) -> Callable[[Gpu, torch.dtype], None]:
    """A model's texts under a setup, in which these things happen."""

    def check(gpu: Gpu, dtype: torch.dtype) -> None:
        sums = same(Apart(SPECS[name], gpu), setup, LONG)
        assert all(sums[f"num_{count}"] for count in counts), sums

    return check


SPECS = {
    "plain": tiny_spec(head_dim=16, num_layers=3, hidden_size=64),
    "windows": tiny_spec(head_dim=16, windows=(None, 40), qk_norm=True),
    "biases, untied": tiny_spec(head_dim=16, qkv_bias=True, tied=False),
}
LONG = work((70, 131, 90, 27, 133, 1), 20)  # beyond tiles of 64 keys, and of 32 queries
CASES: dict[str, Callable[[Gpu, torch.dtype], None]] = {
    "company": company, "products": products,
}  # fmt: skip
LARGE = {  # for a GPU
    "attention": attention,
    "in one batch": under("plain", replace(ALL, num_rows=6, max_step_tokens=512, prefix_caching=False)),
    "drafted": under("plain", replace(ALL, max_step_tokens=37, speculate="ngram"), "accepted_tokens",
                     "preemptions"),
    "swapped": under("biases, untied", replace(ALL, num_host_pages=100), "swaps"),
    "few pages": under("biases, untied", replace(
        ALL, num_rows=6, num_pages=24, max_step_tokens=150, prefix_caching=False, depth=1), "preemptions"),
}
