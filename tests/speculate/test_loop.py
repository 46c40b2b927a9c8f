"""Speculation through the real loop: texts are what they are without it, samples follow the model."""

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.spec.sampling import SamplingParams
from tests.helpers import tiny_spec, tiny_states, tokens_of
from tests.invariance.driver import MODELS, Job, Setup, Tally, Tiny
from tests.speculate.chance import least_p

BASE = tuple(tokens_of(60, seed=0).tolist())
PRESSED = Setup(depth=2, prefix_caching=True, num_pages=40)  # pages run out: requests are preempted
TIGHT = replace(PRESSED, num_pages=34)
STRIDES = replace(PRESSED, num_pages=60, snapshot_stride=8)
CHUNKED = Setup(depth=2, prefix_caching=True, max_step_tokens=13)
HOW: tuple[dict[str, float], ...] = (
    {"temperature": 0.0}, {"temperature": 0.0, "repetition_penalty": 1.3}, {"temperature": 0.8},
    {"temperature": 1.0, "top_k": 8}, {"temperature": 1.2, "top_p": 0.8, "n": 2},
    {"temperature": 0.7, "min_p": 0.05, "presence_penalty": 0.5},
    {"temperature": 0.0, "n": 2, "logprobs": 2, "min_tokens": 4})


def jobs(few_words: bool) -> list[Job]:
    """few_words: texts of six tokens, so that there is something to look up."""
    bias = dict.fromkeys((5, 11, 37, 58, 70, 91), 90.0) if few_words else {}
    return [Job(prompt=(BASE[: 7 * i + 4] * (2 if i % 2 else 1))[:50], at=i, params=SamplingParams(
                seed=i, max_tokens=20, ignore_eos=i % 2 == 0, logit_bias=bias, **how))
            for i, how in enumerate(HOW)]


@pytest.fixture(scope="module")
def tinies() -> dict[str, Tiny]:
    states = {name: tiny_states(name) for name in ("state", "delta")}
    return {name: Tiny(spec) for name, spec in (MODELS | states).items()}


@pytest.mark.parametrize(("model", "how", "setup"), [
    ("dense", "ngram", TIGHT), ("mixed", "ngram", CHUNKED), ("dense", "draft", CHUNKED),
    ("mixed", "draft", PRESSED), ("state", "draft", CHUNKED),
    pytest.param("delta", "draft", STRIDES, marks=pytest.mark.soak)])
def test_the_same_texts(tinies: dict[str, Tiny], model: str, how: str, setup: Setup) -> None:
    """Greedy and seeded, with penalties, filters, n and log-probabilities; batched, chunked, found in the
    cache and preempted: what each says alone without drafts, near ties apart."""
    tally, work, tiny = Tally(), jobs(how == "ngram"), tinies[model]
    run = tally.compare(tiny, replace(setup, speculate=how), work, warm=work[:2])
    tally.report(f"{how}, {model}")
    assert run.stats["num_draft_tokens"] > run.stats["num_accepted_tokens"] > 10
    assert run.stats["num_preemptions"] or setup in (CHUNKED, STRIDES)  # admission foresees what states need
    scores = run.texts[len(work) - 1, 1].logprobs
    alone = tiny.alone(work[-1].alone(1)).logprobs
    assert [one.token_ids.tolist() for one in scores] == [one.token_ids.tolist() for one in alone]
    assert np.allclose([one.logprobs for one in scores], [one.logprobs for one in alone], atol=1e-4)


def test_an_end_among_drafts_that_stand(tinies: dict[str, Tiny]) -> None:
    """A text that ends at a verified draft ends there for the cache too: what stood behind is not of it. The
    draft model is the model itself, so every draft stands."""
    tiny = Tiny(tinies["dense"].spec, draft_noise=0.0)
    asked = SamplingParams(temperature=0.0, repetition_penalty=1.5, max_tokens=16, ignore_eos=True, seed=0)
    whole = tiny.alone(Job(prompt=BASE[:9], params=asked)).tokens
    ends = [place for place, token in enumerate(whole) if whole.index(token) == place]
    work = [Job(prompt=BASE[:9], params=replace(asked, ignore_eos=False, stop_token_ids=(whole[place],)))
            for place in ends]
    run = tiny.run(replace(PRESSED, speculate="draft"), work)
    assert len(ends) > 6 and run.stats["num_accepted_tokens"] > len(ends)
    for index, place in enumerate(ends):
        assert run.texts[index, 0].tokens == whole[: place + 1]


VOCAB, LENGTH = 12, 4
# each third token has stood behind 4, 5 before, and itself behind it
PROMPT = (*(token for first in range(2, VOCAB, 3) for token in (4, 5, first, first)), 4, 5)
WIDE = Setup(num_rows=500, num_pages=4000, draft_pages=4000, block_tokens=8, max_step_tokens=2500,
             prefix_caching=True, check=False)


def exact(tiny: Tiny) -> np.ndarray:
    """The joint distribution of the LENGTH tokens after PROMPT, from log-probabilities without drafts."""
    joint = np.zeros((VOCAB,) * LENGTH)
    ask = SamplingParams(temperature=0.0, seed=0, max_tokens=1, logprobs=VOCAB, ignore_eos=True)
    before = [tokens for size in range(LENGTH) for tokens in np.ndindex((VOCAB,) * size)]
    run = tiny.run(WIDE, [Job(prompt=PROMPT + tokens, params=ask) for tokens in before])
    chances: dict[tuple[int, ...], np.ndarray] = {}
    for index, tokens in enumerate(before):
        scores = run.texts[index, 0].logprobs[0]
        chances[tokens] = np.zeros(VOCAB)
        chances[tokens][scores.token_ids[1:]] = np.exp(scores.logprobs[1:].astype(float))
    for tokens in np.ndindex(joint.shape):
        joint[tokens] = np.prod([chances[tokens[:i]][tokens[i]] for i in range(LENGTH)])
    return joint / joint.sum()


@pytest.fixture(scope="module")
def small() -> tuple[Tiny, np.ndarray]:
    tiny = Tiny(tiny_spec(vocab_size=VOCAB), draft_noise=0.05, sharpness=0.2)
    return tiny, exact(tiny)


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
@pytest.mark.parametrize("how", ["ngram", "draft"])
def test_samples_follow_the_model(small: tuple[Tiny, np.ndarray], how: str, seed: int) -> None:
    """5,000 requests without seeds, whose drafts a draft model draws by noise of its own."""
    tiny, joint = small
    job = Job(prompt=PROMPT, params=SamplingParams(max_tokens=LENGTH, ignore_eos=True))
    run = tiny.run(replace(WIDE, speculate=how, seed=seed), [job] * 5000)
    tokens = np.array([text.tokens for text in run.texts.values()])
    assert least_p(tokens, joint) > 0.001
    assert run.stats["num_draft_tokens"] > run.stats["num_accepted_tokens"] > 100
