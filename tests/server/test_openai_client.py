"""Protects what a user of the official client sees, against a real server process on the default model."""

import asyncio
import itertools
from typing import Any

import openai
import pytest

from ridgeline.bench.serve.ask import ServeAsk
from ridgeline.bench.serve.run import measure
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.make import make_workload
from tests.server.process import Server

pytestmark = pytest.mark.anyio
COUNT = [{"role": "user", "content": "Count from one to ten in words."}]
M = "SmolLM2-135M-Instruct"


def _chat(server: Server, **fields: Any) -> Any:
    return server.openai().chat.completions.create(model=M, **{"messages": COUNT, "temperature": 0, **fields})


def test_models(server: Server) -> None:
    (model,) = server.openai().models.list().data
    assert model.id == M and model.max_model_len == 8192  # type: ignore[attr-defined]
    assert server.openai().models.retrieve(M).id == M
    with pytest.raises(openai.NotFoundError):
        server.openai().models.retrieve("nope")


def test_streamed_chat_is_the_whole_chat(server: Server) -> None:
    whole = _chat(server, max_tokens=24)
    stream = _chat(server, max_tokens=24, stream=True)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices[0].finish_reason] == ["length"]
    assert whole.usage.completion_tokens == 24 and whole.choices[0].finish_reason == "length"


def test_streamed_completion_is_the_whole_completion(server: Server) -> None:
    client = server.openai()
    fields: dict[str, Any] = {
        "model": M,
        "prompt": ["The sea is", "Once upon"],
        "temperature": 0,
        "max_tokens": 12,
    }
    whole = client.completions.create(**fields)
    texts = ["", ""]
    for chunk in client.completions.create(**fields, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]


def test_two_choices_differ_and_repeat_by_seed(server: Server) -> None:
    runs = [_chat(server, n=2, temperature=1.0, seed=7, max_tokens=16) for _ in range(2)]
    texts = [[choice.message.content for choice in run.choices] for run in runs]
    assert texts[0] == texts[1] and texts[0][0] != texts[0][1]
    assert [choice.index for choice in runs[0].choices] == [0, 1]
    assert runs[0].usage.completion_tokens <= 32
    one = _chat(server, temperature=1.0, seed=7, max_tokens=16)
    assert one.choices[0].message.content == texts[0][0], "the first choice is the one of n = 1"


def test_stop(server: Server) -> None:
    full = _chat(server, max_tokens=32).choices[0].message.content
    stop = full[9:14]
    cut = _chat(server, max_tokens=32, stop=[stop])
    assert cut.choices[0].message.content == full[: full.index(stop)]
    assert cut.choices[0].finish_reason == "stop" and cut.usage.completion_tokens < 32
    kept = _chat(server, max_tokens=32, stop=[stop], extra_body={"include_stop_str_in_output": True})
    assert kept.choices[0].message.content == full[: full.index(stop) + len(stop)]


def test_logprobs(server: Server) -> None:
    answer = _chat(server, max_tokens=8, logprobs=True, top_logprobs=3).choices[0]
    content = answer.logprobs.content
    assert b"".join(bytes(entry.bytes) for entry in content).decode() == answer.message.content
    for entry in content:
        values = [top.logprob for top in entry.top_logprobs]
        assert len(values) == 3 and values == sorted(values, reverse=True) and max(values) <= 0
        assert entry.logprob == pytest.approx(values[0], abs=1e-5), "greedy takes the likeliest"
    legacy = server.openai().completions.create(
        model=M, prompt="The sea is", max_tokens=4, logprobs=2, temperature=0, echo=True
    )
    lists = legacy.choices[0].logprobs
    assert lists is not None and lists.tokens and lists.token_logprobs and lists.text_offset
    assert "".join(lists.tokens) == legacy.choices[0].text and lists.token_logprobs[0] is None
    assert [legacy.choices[0].text[o] for o in lists.text_offset] == [token[0] for token in lists.tokens]


def test_usage_in_a_stream(server: Server) -> None:
    chunks = list(_chat(server, max_tokens=5, n=2, stream=True, stream_options={"include_usage": True}))
    assert all(chunk.usage is None for chunk in chunks[:-1]) and chunks[-1].choices == []
    whole = _chat(server, max_tokens=5, n=2).usage
    assert chunks[-1].usage.completion_tokens == whole.completion_tokens == 10
    assert chunks[-1].usage.prompt_tokens == whole.prompt_tokens


def test_the_extra_fields(server: Server) -> None:
    body = {"top_k": 1, "min_tokens": 4, "ignore_eos": True, "repetition_penalty": 1.1, "min_p": 0.0,
            "stop_token_ids": [5], "priority": 0, "cache_salt": "me", "return_token_ids": True}  # fmt: skip
    answer = _chat(server, temperature=1.0, max_tokens=8, extra_body=body)
    assert len(answer.choices[0].token_ids) == answer.usage.completion_tokens
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens


def test_bias_and_stop_ids(server: Server) -> None:
    """A token that is forced, and one that ends the text when it comes."""
    forced = _chat(server, max_tokens=4, logit_bias={"5678": 100}, extra_body={"return_token_ids": True})
    assert forced.choices[0].token_ids == [5678] * 4
    ended = _chat(server, max_tokens=4, logit_bias={"5678": 100}, extra_body={"stop_token_ids": [5678]})
    assert ended.choices[0].finish_reason == "stop" and ended.usage.completion_tokens == 1
    assert ended.choices[0].message.content == ""


def test_closing_a_stream_cancels_it(server: Server) -> None:
    stream = _chat(server, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
    assert len(list(itertools.islice(stream, 3))) == 3
    before = server.metrics()
    assert before["vllm:num_requests_running"] == 1
    stream.close()
    server.idle(timeout_s=2.0)
    after = server.metrics()
    assert after["vllm:request_success_total|abort"] == before["vllm:request_success_total|abort"] + 1


async def test_giving_up_on_a_whole_answer_cancels_it(server: Server) -> None:
    async with server.async_openai() as client:
        task = asyncio.create_task(client.chat.completions.create(
            model=M, messages=COUNT, max_tokens=2000, extra_body={"ignore_eos": True}  # type: ignore[arg-type]
        ))  # fmt: skip
        while server.metrics()["vllm:num_requests_running"] < 1:
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    server.idle(timeout_s=2.0)


async def test_fifty_clients_at_once(server: Server) -> None:
    """Each gets its own answer, the one that it gets alone."""
    prompts = [f"Write the number {i} and its double." for i in range(50)]
    fields: dict[str, Any] = {"model": M, "temperature": 0.8, "max_tokens": 12, "stream": True}

    async def ask(client: openai.AsyncOpenAI, index: int) -> str:
        messages: Any = [{"role": "user", "content": prompts[index]}]
        stream = await client.chat.completions.create(messages=messages, seed=index, **fields)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with server.async_openai() as client:
        texts = await asyncio.gather(*(ask(client, i) for i in range(50)))
        alone = [await ask(client, i) for i in (0, 17, 49)]
    assert all(texts) and len(set(texts)) > 40
    assert [texts[i] for i in (0, 17, 49)] == alone


def test_errors_are_the_clients_own(server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        _chat(server, temperature=-1)
    assert refused.value.param == "temperature" and refused.value.code == "invalid_value"
    with pytest.raises(openai.BadRequestError) as refused:
        _chat(server, messages=[{"role": "user", "content": "word " * 9000}], stream=True)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        server.openai().chat.completions.create(model="nope", messages=COUNT)  # type: ignore[arg-type]


def test_tokenize_agrees_with_usage(server: Server) -> None:
    tokens = server.post("/tokenize", {"messages": COUNT}).json()
    assert tokens["count"] == _chat(server, max_tokens=1).usage.prompt_tokens
    text = server.post("/detokenize", {"tokens": tokens["tokens"]}).json()["prompt"]
    assert text.startswith("<|im_start|>system") and text.endswith("<|im_start|>assistant\n")


async def test_the_load_client_reads_this_server(server: Server) -> None:
    """Prompts of the asked lengths by the server's own count, and every token of every answer."""
    workload = WorkloadAsk(lengths="uniform:40-60,2-4", arrival="closed:2", num_requests=4)
    ask = ServeAsk(url=server.url, workload=workload, endpoint="chat", num_warmups=0, progress=False)
    found = await measure(ask, offered := make_workload(workload))
    assert found["completed"] == 4, found["errors"]
    assert found["input_lens"] == [request.num_prompt for request in offered.requests]
    assert found["output_lens"] == [request.num_output for request in offered.requests]
    assert found["mean_e2el_ms"] > found["mean_ttft_ms"] > 0 and not found["ridgeline"]["usage_below_chunks"]


def test_the_account_of_a_request_and_the_law_of_all(server: Server) -> None:
    """Four at once, two of them two choices: each is told by its id what its time was made of, measured by
    two processes; over all requests so far, number in the system = arrival rate x time in the system."""
    async def ask(client: openai.AsyncOpenAI, index: int) -> str:
        raw = await client.chat.completions.with_raw_response.create(
            model=M, messages=COUNT, max_tokens=8, n=1 + index % 2,
            extra_headers={"x-request-id": f"account-{index}"})
        return raw.headers["x-request-id"]

    async def crowd() -> list[str]:
        async with server.async_openai() as client:
            return await asyncio.gather(*(ask(client, index) for index in range(4)))

    for index, request_id in enumerate(asyncio.run(crowd())):
        account = server.http.get(f"/v1/ridgeline/requests/{request_id}").json()
        assert account["id"] == f"account-{index}" and account["status"] == "ended"
        assert len(account["choices"]) == 1 + index % 2
        for choice in account["choices"]:
            parts, tokens = choice["ttft_parts_s"], choice["num_output_tokens"]
            assert sum(parts.values()) == pytest.approx(choice["ttft_s"]) and min(parts.values()) > -1e-3
            if tokens > 1:
                e2e_s = choice["ttft_s"] + (tokens - 1) * choice["tpot_s"]
                assert e2e_s == pytest.approx(choice["e2e_s"], abs=0.01)
            assert choice["floor_s"] > 0 and choice["measured_s"] > 0
            assert sum(choice["waited_s"].values()) == pytest.approx(parts["queue"], abs=1e-6)
    now = server.metrics()
    law = {name.partition("|")[2]: value for name, value in now.items() if "ridgeline:little_law" in name}
    assert law["num_in_system"] == pytest.approx(law["arrival_rate"] * law["time_in_system_s"], rel=0.01)
    name = "ridgeline:time_to_first_token"
    parts = sum(value for key, value in now.items() if key.startswith(f"{name}_part_seconds_sum"))
    assert parts == pytest.approx(now[f"{name}_seconds_sum"])
