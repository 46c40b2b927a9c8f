"""Protects the load client: its times against a server that knows them, what it counts, and that it ends."""

import asyncio
import json
from argparse import ArgumentParser
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.bench.serve.ask import ServeAsk
from ridgeline.bench.serve.client import Client, Observed
from ridgeline.bench.serve.compare import compare
from ridgeline.bench.serve.drive import drive
from ridgeline.bench.serve.numbers import result
from ridgeline.bench.serve.page import page
from ridgeline.bench.serve.run import measure, too_many_failed
from ridgeline.bench.serve.text import report
from ridgeline.cli import main
from ridgeline.commands.bench_serve import add_arguments
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.make import make_workload
from tests.bench.scripted import HEAD, Act, Call, Script, Scripted, event, piece, scripted, steady, text

CLOSE_S = 0.002


def _ask(num: int, rate: float | None = 100.0, lengths: str = "fixed:20,5", **load: Any) -> ServeAsk:
    return ServeAsk(url="", workload=WorkloadAsk(lengths=lengths, rate=rate, num_requests=num, **load),
                    num_warmups=0, progress=False)


def _run(script: Script, ask: ServeAsk) -> tuple[dict[str, Any], Scripted]:
    """The client's numbers and the server's memory."""

    async def run() -> tuple[dict[str, Any], Scripted]:
        async with scripted(script) as server:
            found = await measure(replace(ask, url=server.url), make_workload(ask.workload))
            return found, server

    return asyncio.run(run())


def test_latencies_come_back_as_the_server_made_them() -> None:
    """20 ms to the first token, 5 ms between tokens: each time is the server's own to 2 ms, and so are the
    numbers. Medians and means, since a busy machine holds up one of the two now and then."""
    ask = _ask(40, rate=60.0, lengths="uniform:10-40,2-9")

    async def run() -> tuple[list[Observed], list[Call]]:
        async with scripted(steady(0.02, 0.005)) as server:
            client = Client(replace(ask, url=server.url))
            await client.connect()
            observed = await drive(make_workload(ask.workload), client.send, max_concurrency=None,
                                   duration_s=None, done=lambda one: None)
            return observed, server.calls

    observed, calls = asyncio.run(run())
    wrote_s = [call.wrote_s[1:-1] for call in calls]  # without the head and the usage
    seen_s = [one.times_s for one in sorted(observed, key=lambda one: one.sent_s)]
    late_s = [b - a for wrote, seen in zip(wrote_s, seen_s, strict=True)
              for a, b in zip(wrote, seen, strict=False)]
    assert median(late_s) < CLOSE_S and min(late_s) >= -CLOSE_S
    ttfts = [wrote[0] - one.intended_s for wrote, one in zip(wrote_s, observed, strict=True)]
    gaps = [b - a for one in wrote_s for a, b in pairwise(one)]
    tpots = [(one[-1] - one[0]) / (len(one) - 1) for one in wrote_s]
    assert min(gaps) > 0.004 and min(ttfts) > 0.02
    found = result(ask, "scripted", "", observed, uniform=True)
    assert found["median_ttft_ms"] / 1e3 == pytest.approx(median(ttfts), abs=CLOSE_S)
    assert found["mean_itl_ms"] / 1e3 == pytest.approx(fmean(gaps), abs=CLOSE_S)
    assert found["mean_tpot_ms"] / 1e3 == pytest.approx(fmean(tpots), abs=CLOSE_S)
    assert found["ridgeline"]["pooled_tpot_ms"] / 1e3 == pytest.approx(fmean(gaps), abs=CLOSE_S)
    assert found["total_output_tokens"] == sum(call.body["max_tokens"] for call in calls)


def test_prompts_have_the_tokens_that_were_asked_for() -> None:
    """Exact by the server's own count: the template's tokens are taken off; no two begin alike."""
    ask = _ask(30, rate=300.0, lengths="uniform:10-60,2-3")
    found, server = _run(steady(0.0, 0.0), ask)
    asked = [request.num_prompt for request in make_workload(ask.workload).requests]
    assert found["input_lens"] == asked == [call.num_prompt for call in server.calls]
    assert len({tuple(call.body["prompt"].split()[:6]) for call in server.calls}) == 30


def test_shared_prefixes_are_equal_texts() -> None:
    _, server = _run(steady(0.0, 0.0), _ask(12, rate=300.0, lengths="prefix:40,10,1,2"))
    starts = {tuple(call.body["prompt"].split()[:36]) for call in server.calls}
    assert len(starts) == 2 and len({call.body["prompt"] for call in server.calls}) == 12


@pytest.mark.parametrize("cap", [None, 1])
def test_a_stall_counts_for_every_request_that_it_delays(cap: int | None) -> None:
    """No coordinated omission: a server that stops for 300 ms is felt by each request meant for that time,
    also by those that wait for a place under the cap."""
    begun: list[float] = []

    def script(number: int, call: Call) -> list[Act]:
        begun.append(call.came_s) if not begun else None
        stalled_s = max(begun[0] + 0.3 - call.came_s, 0.0)
        return steady(stalled_s, 0.0)(number, call)

    found, server = _run(script, replace(_ask(40, rate=100.0, lengths="fixed:10,1"), max_concurrency=cap))
    free_s = 0.3 - (server.calls[0].came_s - begun[0])
    start_s = found["start_times"][0]
    for at_s, ttft_s in zip(found["start_times"], found["ttfts"], strict=True):
        assert ttft_s >= free_s - (at_s - start_s) - CLOSE_S
    delayed = sum(ttft_s > 0.1 for ttft_s in found["ttfts"])
    assert delayed > 8, "requests were held back with the server"


def test_closed_arrivals_keep_so_many_under_way() -> None:
    ask = _ask(12, rate=None, arrival="closed:3")
    found, _ = _run(steady(0.02, 0.0), ask)
    assert found["max_concurrent_requests"] == 3 and found["completed"] == 12
    assert "closed load" in report(found)


def _broken(number: int, call: Call) -> list[Act]:
    """Each way to fail, in turn."""
    head, word = Act(0.0, HEAD), Act(0.0, piece(text("a")))
    length = b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"
    return [
        [Act(0.0, length)],
        [Act(0.0, length.replace(b"500 Oops", b"429 Busy"))],
        [Act(0.0, None)],
        [head, word, Act(0.0, None)],
        [head, word, Act(0.0, piece(b""))],
        [Act(0.0, b"hello? is this HTTP?\r\n\r\n")],
        [head, word, Act(0.0, piece(b"data: {oops\n\n"))],
        [head, word, Act(0.0, b"no chunk\r\n")],
        [Act(0.0, b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{\"choices\":1}")],
        [head, word, Act(0.0, piece(event(error={"message": "out of memory"})))],
        [head, Act(0.0, piece(text("", "stop") + call.usage(1)) + piece(b""))],
        [head, word, Act(5.0, b"")],
        [Act(5.0, b"")],
        steady(0.0, 0.0)(number, call),
    ][number]


def test_every_failure_is_counted_by_its_kind_and_nothing_hangs() -> None:
    ask = replace(_ask(14, rate=500.0), timeout_s=0.4, goodput={"ttft": 1.0})
    found, _ = _run(_broken, ask)
    assert found["ridgeline"]["failures"] == {
        "http 500": 1, "http 429": 1, "dropped": 3, "garbage": 4, "error": 1, "empty": 1, "timeout": 2}
    assert (found["completed"], found["failed"], found["ridgeline"]["attainment"]) == (1, 13, 1 / 14)
    assert found["max_concurrent_requests"] >= 2  # the two that hung, at least
    assert found["errors"][0] == "http 500: oops" and found["errors"][-1] == ""
    assert found["mean_ttft_ms"] == pytest.approx(found["ttfts"][-1] * 1e3)
    assert "13 failed (" in report(found) and "first failure, error: " in report(found)
    assert too_many_failed(found, 0.1) == "13 of 14 requests failed, more than --max-failed 0.1 allows"
    assert not too_many_failed(found, 0.95)


def test_a_server_that_goes_away_is_counted() -> None:
    async def run() -> dict[str, Any]:
        def script(number: int, call: Call) -> list[Act]:
            server.leave()
            return steady(0.0, 0.0)(number, call)

        async with scripted(script) as server:
            ask = replace(_ask(6, rate=50.0), url=server.url, timeout_s=0.5)
            return await measure(ask, make_workload(ask.workload))

    found = asyncio.run(run())
    assert found["completed"] and found["failed"]
    assert set(found["ridgeline"]["failures"]) <= {"connect", "dropped", "timeout"}


def test_clients_lose_their_patience() -> None:
    """Counted from the intended time: those that wait for a place under the cap leave too."""
    ask = replace(_ask(8, rate=400.0, patience_s=0.35), max_concurrency=2)
    found, _ = _run(steady(0.2, 0.0), ask)
    assert found["completed"] == 2 and found["ridgeline"]["failures"] == {"left": 6}
    assert found["duration"] < 1.0
    assert not too_many_failed(found, 0.1), "those who leave as they were told to did not fail"


def test_chats_reasoning_and_chunks_of_several_tokens() -> None:
    """A role without text is no first token; thoughts are text; one event may come in two pieces."""

    def script(number: int, call: Call) -> list[Act]:
        role = event(choices=[{"delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        thought = event(choices=[{"delta": {"reasoning_content": "so so"}, "finish_reason": None}])
        rest = text("one two three", "length", chat=True) + call.usage(99 if number == 2 else 6)
        return [Act(0.0, HEAD), Act(0.0, piece(role)), Act(0.03, piece(thought[:9])),
                Act(0.0, piece(thought[9:])), Act(0.03, piece(rest)), Act(0.0, piece(b""))]

    found, server = _run(script, replace(_ask(3, lengths="fixed:20,6"), endpoint="chat"))
    assert all(ttft_s > 0.028 for ttft_s in found["ttfts"])
    assert found["output_lens"] == [6, 6, 99] and [len(gaps) for gaps in found["itls"]] == [1, 1, 1]
    assert found["p50_tpot_ms"] == pytest.approx(found["p50_itl_ms"] / 5, rel=0.5)
    assert "a chunk holds 18.5 tokens" in report(found)
    assert "1 answers with more tokens by usage than bytes of text" in report(found)
    assert server.calls[0].body["messages"][0]["role"] == "user"


def test_without_usage_chunks_are_counted_and_told() -> None:
    def script(number: int, call: Call) -> list[Act]:
        three = b"".join([text("a"), text("b"), text("c", "stop")])
        return [Act(0.0, HEAD), Act(0.0, piece(three)), Act(0.0, piece(b""))]

    found, _ = _run(script, _ask(2))
    assert found["output_lens"] == [3, 3] and found["input_lens"] == [20, 20]
    assert "2 answers without usage" in report(found) and "outputs have 60% of the tokens" in report(found)


VLLM_NAMES = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "errors",
    "max_output_tokens_per_s", "max_concurrent_requests",
    *(f"{what}_{metric}_ms" for what in ("mean", "median", "std", "p99", "p99.9")
      for metric in ("ttft", "tpot", "itl", "e2el")),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """A small result with targets that half of it meets."""

    def script(number: int, call: Call) -> list[Act]:
        return steady(0.6 * (number % 2), 0.001)(number, call)

    return _run(script, replace(_ask(10, rate=200.0), goodput={"ttft": 0.4, "tpot": 0.3}))[0]


def test_the_file_has_vllms_names_and_goodput(found: dict[str, Any]) -> None:
    assert set(found) >= VLLM_NAMES
    assert found["ridgeline"]["attainment"] == 0.5
    assert found["request_goodput"] == pytest.approx(5 / found["duration"])
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert "about equally long" in report(found) and "50.0% met ttft 400 ms, tpot 300 ms" in report(found)


def test_the_page_needs_no_network(found: dict[str, Any]) -> None:
    html = page(found)
    assert html.count("<svg") == 4 and "http://" not in html.replace(found["ridgeline"]["url"], "")
    assert "<script" not in html and "href" not in html and "requests/s" in html


def test_only_what_was_offered_alike_is_compared(found: dict[str, Any], tmp_path: Path,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    def saved(name: str, **changes: Any) -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({**found, **changes}))
        return str(path)

    same = [saved("before"), saved("after", mean_ttft_ms=2 * found["mean_ttft_ms"])]
    assert main(["bench", "serve", "--compare", *same]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("mean_ttft_ms"))
    assert line.endswith("2.000")
    ours = found["ridgeline"]
    for words, changes in (
            ("request_rate is 200.0 and 100.0", {"request_rate": 100.0}),
            ("arrival is poisson and gamma:2", {"ridgeline": {**ours, "arrival": "gamma:2"}}),
            ("seed is 0 and 1", {"ridgeline": {**ours, "seed": 1}}),
            ("output tokens on average", {"total_output_tokens": found["total_output_tokens"] * 2}),
            ("only one has p42_ttft_ms", {"p42_ttft_ms": 1.0})):
        with pytest.raises(ConfigError, match=words):
            compare((Path(same[0]), Path(saved("other", **changes))))
    with pytest.raises(ConfigError, match="no result of a load test"):
        compare((Path(same[0]), tmp_path / "none.json"))


def test_targets_given_one_by_one_all_count() -> None:
    parser = ArgumentParser()
    add_arguments(parser)
    args = parser.parse_args(["--goodput", "ttft:500", "--goodput", "tpot:30", "e2el:9000"])
    assert dict(args.goodput) == {"ttft": 0.5, "tpot": 0.03, "e2el": 9.0}


@pytest.mark.parametrize(("words", "told"), [
    ([], "needs --url"),
    (["--url", "ftp://x", "--rate", "1"], "write it like http"),
    (["--url", "http://127.0.0.1:9", "--rate", "1"], "does not answer"),
    (["--url", "http://127.0.0.1:9"], "give a rate"),
    (["--compare", "a", "b", "--seed", "3"], "takes no --seed"),
    (["--url", "http://127.0.0.1:9", "--rate", "1", "--dataset", "nothing"], "no length distribution"),
])
def test_mistakes_are_told_in_a_line(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--no-progress", *words]) == 2
    assert told in capsys.readouterr().err
