"""What the door refuses, with the field at fault, a short code and the numbers in the text."""

import numpy as np
import pytest

from ridgeline.base.errors import RequestError
from ridgeline.schedule.door import mix_seed
from ridgeline.schedule.request import Finish, NewRequest
from ridgeline.spec.sampling import SamplingParams
from tests.helpers_schedule import VOCAB, Harness


def refusal(harness: Harness, prompt: list[int], params: SamplingParams | None = None) -> RequestError:
    before = harness.loop.stats()
    with pytest.raises(RequestError) as caught:
        harness.loop.add(NewRequest(id="bad", prompt=np.array(prompt), params=params or SamplingParams()))
    assert harness.loop.stats() == before and harness.loop.idle(), "a refused request leaves nothing behind"
    return caught.value


def test_a_prompt_longer_than_the_context_names_both_numbers() -> None:
    harness = Harness(max_model_len=64, num_pages=100)
    for length in (64, 264):
        error = refusal(harness, [1] * length)
        assert (error.param, error.code, error.status) == ("prompt", "context_length_exceeded", 400)
        assert str(length) in str(error) and "64" in str(error)


def test_an_answer_is_cut_at_the_border_with_length() -> None:
    harness = Harness(max_model_len=64, num_pages=100)
    harness.add("a", [1] * 54, SamplingParams(seed=1, max_tokens=100, ignore_eos=True))
    harness.run()
    assert harness.told["a", 0].last.num_output == 10 and harness.finish_of("a") is Finish.LENGTH


def test_a_request_that_can_never_fit_is_refused_and_delays_nobody() -> None:
    """A cache of 512 tokens, a context of 2048: the prompt of 600 is refused, 300 + 400 is cut where the
    cache ends, and the short ones behind them all run."""
    harness = Harness(num_pages=129, max_model_len=2048, max_step_tokens=256)
    assert harness.scheduler.max_request_tokens == 512
    error = refusal(harness, [1] * 600)
    assert (error.param, error.code) == ("prompt", "kv_cache_exceeded")
    assert "600" in str(error) and "512" in str(error) and "--kv-cache-bytes" in str(error)
    harness.add("cut", [1 + i % 30 for i in range(300)],
                SamplingParams(seed=1, max_tokens=400, ignore_eos=True))
    for i in range(5):
        harness.add(str(i), [2, 3, 4 + i], SamplingParams(seed=1, max_tokens=8, ignore_eos=True))
    harness.run()
    assert harness.told["cut", 0].last.num_output == 212 and harness.finish_of("cut") is Finish.LENGTH
    assert all(harness.told[str(i), 0].last.num_output == 8 for i in range(5))


@pytest.mark.parametrize(("prompt", "params", "param", "words"), [
    ([], SamplingParams(), "prompt", "no tokens"),
    ([5, 99999999], SamplingParams(), "prompt", "99999999"),
    ([-1], SamplingParams(), "prompt", "-1"),
    ([5279552648203111001], SamplingParams(), "prompt", "5279552648203111001"),
    ([5], SamplingParams(stop_token_ids=(VOCAB,)), "stop_token_ids", str(VOCAB)),
    ([5], SamplingParams(logit_bias={-3: 1.0}), "logit_bias", "-3"),
    ([5], SamplingParams(logit_bias={10**30: 1.0}), "logit_bias", str(10**30)),
    ([5], SamplingParams(n=0), "n", "0"),
    ([5], SamplingParams(max_tokens=-1), "max_tokens", "-1"),
    ([5], SamplingParams(min_tokens=-2), "min_tokens", "-2"),
])
def test_bad_fields_are_named(prompt: list[int], params: SamplingParams, param: str, words: str) -> None:
    error = refusal(Harness(), prompt, params)
    assert error.param == param and words in str(error)


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    harness = Harness()
    harness.add("a", [1, 2], SamplingParams(seed=1, max_tokens=3))
    with pytest.raises(RequestError, match="'a' is still running"):
        harness.add("a", [3], SamplingParams(seed=1, max_tokens=3))
    harness.run()
    harness.told.clear()
    harness.add("a", [3], SamplingParams(seed=1, max_tokens=3))
    harness.run()


def test_mixed_seeds_are_distinct_and_in_range() -> None:
    seeds = {mix_seed(seed, index) for seed in (0, 1, 2**63, -5) for index in range(50)}
    assert len(seeds) == 200 and all(0 <= seed < 2**63 for seed in seeds)
