"""The Python API over a tiny random model: vLLM's shape, text and ids, batches and streams."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

import ridgeline
from ridgeline import LLM, AsyncLLM, RequestOutput, SamplingParams
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, EngineDeadError, RequestError
from tests.engine.tiny import tiny_folder

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), load_format="dummy", dtype="float32", threads=1, max_num_seqs=8) as made:
        yield made


def test_texts_and_ids_agree(llm: LLM) -> None:
    """A text and its token ids give the same; one prompt is a batch of one; order is kept."""
    assert llm.text.tokenizer is not None
    ids = llm.text.tokenizer.encode("hello")
    by_text, by_ids = llm.generate(["hello", ids], GREEDY)
    assert by_text.prompt == "hello" and by_ids.prompt is None
    assert by_text.prompt_token_ids == by_ids.prompt_token_ids == ids
    assert by_text.outputs[0].token_ids == by_ids.outputs[0].token_ids
    assert llm.generate("hello", GREEDY)[0].outputs == llm.generate(ids, GREEDY)[0].outputs == by_text.outputs
    [choice] = by_text.outputs
    assert choice.finish_reason == "length" and len(choice.token_ids) == 12 and choice.logprobs is None
    assert choice.text == llm.text.tokenizer.decode(choice.token_ids)


def test_params_for_each_prompt(llm: LLM) -> None:
    params = [SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True) for n in (1, 5, 3)]
    assert [len(out.outputs[0].token_ids) for out in llm.generate(["a", "b", "c"], params)] == [1, 5, 3]


def test_logprobs_in_vllms_shape(llm: LLM) -> None:
    """A dict a position with the taken token's first; the prompt's first position has none."""
    params = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1, ignore_eos=True)
    [output] = llm.generate("hello", params)
    [choice] = output.outputs
    assert choice.logprobs is not None and len(choice.logprobs) == 4
    for token, position in zip(choice.token_ids, choice.logprobs, strict=True):
        assert len(position) == 2 and next(iter(position)) == token
        assert position[token].rank == 1 and position[token].decoded_token is not None
    assert choice.cumulative_logprob == pytest.approx(
        sum(p[t].logprob for t, p in zip(choice.token_ids, choice.logprobs, strict=True)))  # fmt: skip
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == 5
    assert output.prompt_logprobs[0] is None
    for token, found in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
        assert found is not None and token in found


def test_seeds_and_choices(llm: LLM) -> None:
    """The same seed repeats; n choices differ and repeat as a pair."""
    params = SamplingParams(temperature=2.0, seed=7, n=2, max_tokens=12, ignore_eos=True)
    first, again = llm.generate(["x"], params), llm.generate(["x"], params)
    assert [c.token_ids for c in first[0].outputs] == [c.token_ids for c in again[0].outputs]
    assert first[0].outputs[0].token_ids != first[0].outputs[1].token_ids


def test_chat_is_the_rendered_completion(llm: LLM) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    [chat] = llm.chat(conversation, GREEDY)
    assert chat.prompt == "<|start|>user\nhi<|end|>\n<|start|>"
    assert llm.generate(chat.prompt, GREEDY)[0].outputs == chat.outputs
    assert len(llm.chat([conversation, conversation], GREEDY)) == 2


def test_refusals_leave_the_engine_whole(llm: LLM) -> None:
    for prompt, params in (
        ([999], GREEDY),
        ([[]], GREEDY),
        ("x" * 300, GREEDY),
        ("x", SamplingParams(top_p=0.0)),
    ):
        with pytest.raises(RequestError):
            llm.generate(prompt, params)
    assert llm.generate("x", GREEDY)[0].finished
    assert llm.stats()["num_running"] == llm.stats()["num_used_pages"] == 0


def test_prefix_caching_is_seen_in_the_output(llm: LLM) -> None:
    prompt = list(range(10, 90))
    first, second = llm.generate(prompt, GREEDY)[0], llm.generate(prompt, GREEDY)[0]
    assert first.outputs == second.outputs and second.num_cached_tokens >= 64 > first.num_cached_tokens


def test_what_was_chosen_is_told(llm: LLM) -> None:
    """`doctor` has something to show: phases, choices with reasons, sizes."""
    info = llm.info
    assert {"open", "weights", "executor"} <= info["startup"]["phases_s"].keys()
    assert info["startup"]["choices"]["threads"] == {"value": 1, "why": "as given"}
    assert info["policy"] == "throughput"
    assert info["max_model_len"] == info["max_request_tokens"] == 256 and info["weights_bytes"] > 0


@pytest.mark.parametrize("wrong", [
    {"quantization": "fp3"}, {"kv_cache_dtype": "fp8"}, {"dtype": "int4"}, {"policy": "lottery"},
    {"device": "tpu"}, {"max_model_len": 10**6}, {"load_format": "magic"},
])  # fmt: skip
def test_what_is_not_there_is_refused_at_start(folder: Path, wrong: dict[str, object]) -> None:
    """A quantization or cache dtype that is absent is refused, never ignored."""
    settings: dict[str, object] = {"load_format": "dummy", **wrong}
    with pytest.raises(ConfigError):
        LLM(str(folder), **settings)  # type: ignore[arg-type]


def test_small_cache_names_the_largest_request(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C-18: the start says what fits; what does not is refused at once, and the small ones run."""
    caplog.set_level("INFO", logger="ridgeline.engine")
    config = EngineConfig(model=str(folder), load_format="dummy", threads=1, dtype="float32",
                          max_model_len=200,
                          kv_cache_bytes=9 * 2 * 2 * 2 * 8 * 4 * 16)  # fmt: skip
    with LLM.from_config(config) as small:
        assert small.info["policy"] == "fcfs"
        most = small.info["max_request_tokens"]
        assert 100 <= most <= 128 and f"max_request_tokens = {most}" in caplog.text
        with pytest.raises(RequestError, match=str(most)):
            small.generate([list(range(3, 150))], GREEDY)
        cut = SamplingParams(temperature=0.0, max_tokens=150, ignore_eos=True)
        [output] = small.generate([list(range(3, 100))], cut)
        assert output.outputs[0].finish_reason == "length" and len(output.outputs[0].token_ids) == most - 97


def test_ids_only_without_a_tokenizer(tmp_path: Path) -> None:
    """A config folder alone, and a trace of what it did."""
    folder, trace = tiny_folder(tmp_path / "m", tokenizer=False), tmp_path / "trace.jsonl"
    with LLM(str(folder), load_format="dummy", threads=1, prefix_caching=False, kv_cache_dtype="auto",
             trace_file=str(trace)) as bare:  # fmt: skip
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, detokenize=False)
        assert bare.generate([[5] * 4, [6] * 9], params)[1].outputs[0].text == ""
        with pytest.raises(RequestError, match="no tokenizer"):
            bare.generate("text", params)
    assert {"header", "step", "request"} == {
        line.split('"kind": "')[1].split('"')[0] for line in trace.open()
    }


# ---- streams


def test_streams(folder: Path, llm: LLM) -> None:
    """Growing outputs of several requests at once, ending as the batch API's; aborts and closing."""

    async def work() -> None:
        engine = AsyncLLM(str(folder), load_format="dummy", dtype="float32", threads=1, max_num_seqs=8)
        try:
            assert engine.info["policy"] == "fcfs"
            prompts = ["hello", "some other", "third"]
            ends = await asyncio.gather(*(stream(engine, prompt) for prompt in prompts))
            for end, want in zip(ends, llm.generate(prompts, GREEDY), strict=True):
                assert end.outputs == want.outputs and end.metrics.finished_s is not None
            slow = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
            left = engine.generate("bye", slow)
            await anext(left)
            await left.aclose()
            last = None
            async for output in engine.generate("x", slow, request_id="mine"):
                last = output
                await engine.abort("mine")
            assert last is not None and last.outputs[0].finish_reason == "abort"
            with pytest.raises(RequestError):
                await anext(engine.generate([999], GREEDY))
            chat = [output async for output in engine.chat([{"role": "user", "content": "hi"}], GREEDY)]
            assert chat[-1].finished
        finally:
            engine.close()
        with pytest.raises(EngineDeadError):
            await anext(engine.generate("x", GREEDY))

    asyncio.run(asyncio.wait_for(work(), 60))


async def stream(engine: AsyncLLM, prompt: str) -> RequestOutput:
    before, last = "", None
    async for output in engine.generate(prompt, GREEDY):
        assert output.outputs[0].text.startswith(before)
        before, last = output.outputs[0].text, output
    assert last is not None and last.finished
    return last


# ---- the package


def test_the_package_names_its_api() -> None:
    assert set(dir(ridgeline)) >= {"LLM", "AsyncLLM", "SamplingParams", "RequestOutput"}
    with pytest.raises(AttributeError):
        ridgeline.nothing  # noqa: B018
