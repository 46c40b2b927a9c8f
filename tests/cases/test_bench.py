"""C-26: what the load client makes of a stream whose truth is known, by its machine-readable output."""

import asyncio
import json

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
    async def run() -> int:
        async with scripted(lambda number, call: acts(call, thinks=thinks)) as server:
            words = ["bench", "serve", "--url", server.url, "--endpoint", "chat", "--dataset", "fixed:20,37",
                     "--rate", "50", "--num-prompts", "3", "--warmup", "0", "--no-progress",
                     "--json"]  # fmt: skip
            return await asyncio.to_thread(main, words)

    assert asyncio.run(run()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["completed"] == 3 and found["total_output_tokens"] == 3 * 37
    assert found["median_ttft_ms"] == pytest.approx(450, abs=10)
    assert found["median_tpot_ms"] == pytest.approx(25, abs=1)
    for gaps in found["itls"]:
        assert len(gaps) == 9, "the first token is no gap, nor is the chunk without text"
        assert gaps == pytest.approx([0.1] * 9, abs=0.02)
