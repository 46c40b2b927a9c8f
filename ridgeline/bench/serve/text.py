"""A load test's result for a terminal, and what its reader should not miss."""

from collections.abc import Iterator, Mapping
from typing import Any

_TITLES = {"ttft": "TTFT", "tpot": "TPOT, mean of requests' means", "itl": "ITL, between chunks",
           "e2el": "E2E"}
_LATE_MS = 5.0
_FAR = 0.05  # a share of tokens more or less than asked


def report(found: Mapping[str, Any]) -> str:
    said = [f"note: {note}" for note in notes(found)]
    return "\n".join([*_totals(found), "", *_latencies(found), *said])


def _totals(found: Mapping[str, Any]) -> Iterator[str]:
    ours = found["ridgeline"]
    yield f"{ours['workload']}, on {ours['url']} ({found['backend']}), model {found['model_id']}"
    failures = ", ".join(f"{count} {kind}" for kind, count in ours["failures"].items())
    yield (f"{found['num_prompts']} requests in {found['duration']:.1f} s: {found['completed']} answered, "
           f"{found['failed']} failed{f' ({failures})' if failures else ''}, at most "
           f"{found['max_concurrent_requests']} under way")
    yield (f"{found['request_throughput']:.2f} requests/s, {found['output_throughput']:.1f} output tok/s, "
           f"{found['total_token_throughput']:.1f} tok/s with prompts")
    yield (f"{found['total_input_tokens']} prompt tokens, {ours['cached_input_tokens']} of them cached; "
           f"{found['total_output_tokens']} output tokens in {ours['num_chunks']} chunks")
    if found["request_goodput"] is not None:
        goals = ", ".join(f"{name} {most:g} ms" for name, most in ours["goodput_ms"].items())
        yield f"goodput {found['request_goodput']:.2f} requests/s: {ours['attainment']:.1%} met {goals}"


def _latencies(found: Mapping[str, Any]) -> Iterator[str]:
    """Milliseconds, a row for each latency."""
    points = [f"p{point:g}" for point in found["ridgeline"]["percentiles"]]
    yield "".join([f"{'ms, from the intended send time':32}", *(f"{name:>10}" for name in ("mean", *points))])
    for name, title in _TITLES.items():
        values = [found.get(f"{point}_{name}_ms") if found["completed"] else None
                  for point in ("mean", *points)]
        yield "".join([f"{title:32}", *(f"{'-' if v is None else f'{v:.1f}':>10}" for v in values)])
    pooled = found["ridgeline"]["pooled_tpot_ms"]
    yield f"{'TPOT, total time over tokens':32}{'-' if pooled is None else f'{pooled:.1f}':>10}"


def notes(found: Mapping[str, Any]) -> Iterator[str]:
    """What bends the numbers, or makes them say less than they seem to."""
    ours, num_whole = found["ridgeline"], found["completed"]
    for kind in ours["failures"]:
        yield f"first failure, {next(error for error in found['errors'] if error.startswith(kind))[:300]}"
    if ours["uniform_lengths"]:
        yield ("requests are about equally long: real traffic is not, and what this shows of policies and "
               "tails may reverse under it; try --dataset sharegpt")
    if ours["arrival"].startswith("closed"):
        yield "a closed load waits for the server: its latencies hide what an overload does to clients"
    if ours["send_lag_ms"].get("p99", 0.0) > _LATE_MS and not found["max_concurrency"]:
        yield f"this client was late itself, p99 {ours['send_lag_ms']['p99']:.1f} ms, which counts"
    for kind in ("input", "output"):
        asked, got = ours[f"asked_{kind}_tokens"], found[f"total_{kind}_tokens"]
        if abs(got - asked) > _FAR * asked:
            yield f"{kind}s have {got / asked:.0%} of the tokens asked for"
    if ours["num_tiles"]:
        yield f"{ours['num_tiles']} image tiles were sent as text of as many tokens"
    for key, words in (("without_usage", "without usage: a token was counted for each chunk"),
                       ("usage_below_chunks", "with fewer tokens by usage than chunks with text"),
                       ("usage_above_text", "with more tokens by usage than bytes of text"),
                       ("usage_above_asked", "with more tokens by usage than asked for")):
        if ours[key]:
            yield f"{ours[key]} answers {words}"
    if num_whole and found["total_output_tokens"] > 1.05 * ours["num_chunks"]:
        each = found["total_output_tokens"] / ours["num_chunks"]
        yield f"a chunk holds {each:.1f} tokens: ITL is between chunks, TPOT is per token"
    most = max(ours["percentiles"], default=0)
    if 0 < num_whole < 100 / (100 - min(most, 99.999)):
        yield f"p{most:g} of {num_whole} requests is little more than the worst of them"
