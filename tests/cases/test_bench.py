"""C-26: what the load client makes of a stream whose truth is known, by its machine-readable output."""

import asyncio
import json
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from ridgeline.cli import main
from tests.bench.scripted import HEAD, Act, Call, event, piece, scripted, text


def acts(call: Call, *, thinks: bool) -> list[Act]:
    """A role at 50 ms, a token at 450 ms, nine chunks of four tokens 100 ms apart, usage right behind."""
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
    thought = event(choices=[{"index": 0, "delta": {"reasoning_content": "so"}, "finish_reason": None}])
    first = thought if thinks else text("so", chat=True)
    four = text(" one two three four", chat=True)
    last = text("", "length", chat=True) + call.usage(37) + b"data: [DONE]\n\n"
    return [Act(0.0, HEAD), Act(0.05, piece(role)), Act(0.4, piece(first)),
            *(Act(0.1, piece(four)) for _ in range(9)), Act(0.0, piece(last) + piece(b""))]  # fmt: skip


@pytest.mark.parametrize("thinks", [False, True])
def test_c26_first_token_and_tokens_that_come_by_fours(
    thinks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """450 ms to the first token and 25 ms a token, as near as the server came to them: a busy machine makes
    it late, and it remembers when it wrote what. The client is late too there, but not each time."""

    async def run() -> list[Call]:
        async with scripted(lambda number, call: acts(call, thinks=thinks)) as server:
            words = ["bench", "serve", "--url", server.url, "--endpoint", "chat", "--dataset", "fixed:20,37",
                     "--rate", "20", "--num-prompts", "4", "--warmup", "0", "--no-progress",
                     "--json"]  # fmt: skip
            assert await asyncio.to_thread(main, words) == 0
            return server.calls

    for _ in range(4):
        calls = asyncio.run(run())
        found = json.loads(capsys.readouterr().out)
        assert found["completed"] == 4 and found["total_output_tokens"] == 4 * 37
        assert [len(gaps) for gaps in found["itls"]] == [9] * 4, "the first is no gap, nor is the textless"
        ttft_s, tpot_s, late_s = _late(found, calls)
        if ttft_s < 0.01 and tpot_s < 0.001 and late_s < 0.02:
            return
    raise AssertionError(f"TTFT {ttft_s} s off, TPOT {tpot_s}, a gap {late_s}, and so each time")


def _late(found: dict[str, Any], calls: list[Call]) -> tuple[float, float, float]:
    """How far the client's median TTFT and TPOT and its worst gap are from the server's, in seconds. The time
    of a request counts from when it was to be sent, which is known from the one that came soonest."""
    firsts_s = [call.wrote_s[2] for call in calls]
    tpots_s = [(call.wrote_s[11] - call.wrote_s[2]) / 36 for call in calls]
    assert min(a - call.came_s for a, call in zip(firsts_s, calls, strict=True)) >= 0.449
    assert min(tpots_s) >= 0.0249
    start_s = min(call.came_s - at_s for call, at_s in zip(calls, found["start_times"], strict=True))
    ttfts_s = [a - start_s - at_s for a, at_s in zip(firsts_s, found["start_times"], strict=True)]
    gaps = [(seen_s, b - a) for itls, call in zip(found["itls"], calls, strict=True)
            for seen_s, (a, b) in zip(itls, pairwise(call.wrote_s[2:12]), strict=True)]  # fmt: skip
    return (abs(found["median_ttft_ms"] / 1e3 - median(ttfts_s)),
            abs(found["median_tpot_ms"] / 1e3 - median(tpots_s)),
            max(abs(seen_s - made_s) for seen_s, made_s in gaps))  # fmt: skip
