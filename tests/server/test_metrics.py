"""Protects what dashboards read: valid exposition text, the alias names, and histograms that tell the truth.
"""

import asyncio
import math

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ridgeline.account.clocks import RequestClock
from ridgeline.account.metrics import TTFT_PARTS, Metrics
from ridgeline.base.clock import VirtualClock
from ridgeline.frontend.generation import Delta
from ridgeline.frontend.protocol import News
from ridgeline.server.health import Health

ENGINE = {"num_requests_running": 2, "num_requests_waiting": 1, "kv_cache_usage_perc": 0.25}
DRAFTS = {"num_draft_tokens": 8, "num_accepted_tokens": 5, "num_verified": {"1": 2, "2": 0, "3": 2}}
VLLM_NAMES = {
    "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
    "vllm:prompt_tokens", "vllm:generation_tokens", "vllm:request_success",
    "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds", "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds", "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds", "vllm:request_prompt_tokens", "vllm:request_generation_tokens",
}  # fmt: skip


def _samples(metrics: Metrics) -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(metrics.render(ENGINE).decode()):
        for sample in family.samples:
            assert (sample.labels["model_name"] == 'odd "name"\\' and sample.name not in found) or len(
                sample.labels
            ) > 2
            extra = {k: v for k, v in sample.labels.items() if k not in ("model_name", "engine")}
            found[sample.name + "".join(f"|{v}" for v in extra.values())] = sample.value
    return found


def _busy() -> Metrics:
    """Two choices of one prompt: 3 tokens in 4 s, and 1 token that is cut off."""
    metrics = Metrics('odd "name"\\')
    clock = RequestClock(metrics, 100.0).prompt(2, 100.5)
    first = {"arrived": 0.5, "tokenised": 1.0, "first_scheduled": 1.25, "first_started": 1.5,
             "first_token": 2.0}
    times = {**first, "finished": 4.0}
    clock.seen(News(id="a", num_prompt=7, times_s=first), Delta(token_ids=[1]), 102.0)
    clock.seen(News(id="a", choice=1, num_prompt=7), Delta(token_ids=[1]), 102.5)
    last = News(id="a", num_prompt=7, finish="stop", times_s=times)
    clock.seen(last, Delta(token_ids=[2, 3], finish="stop"), 104.0)
    clock.end("abort", 105.0)
    return metrics


def test_both_names_of_every_metric_say_the_same() -> None:
    samples = _samples(_busy())
    own = {name.removeprefix("ridgeline:"): v for name, v in samples.items() if name.startswith("ridgeline:")}
    alias = {name.removeprefix("vllm:"): v for name, v in samples.items() if name.startswith("vllm:")}
    assert own == alias and len(own) + len(alias) == len(samples)


def test_an_engine_that_drafts() -> None:
    """Drafts, those that were right, and how many there were at a time; nothing of these without drafts."""
    stats = dict.fromkeys(("num_running", "num_waiting", "kv_usage", "num_used_pages", "num_free_pages",
                           "num_prompt_tokens", "num_cached_tokens", "num_preemptions", "num_steps",
                           "step_measured_s", "step_floor_s", "step_prefill_s", "num_cached_pages",
                           "num_pending_pages", "num_short_steps", "num_undone",
                           "step_token_limit"), 0)  # fmt: skip
    stats |= {"waiting": {"rows": 2}, "waited_s": {"rows": 1.5}, "little_law": {"num_in_system": 3.0}}

    async def scrape(given: dict[str, object]) -> str:
        return Metrics("m").render(await Health(Answers(given), VirtualClock(), 9.0).gauges()).decode()

    plain, text = asyncio.run(scrape(stats)), asyncio.run(scrape(stats | DRAFTS))
    assert "spec_decode" not in plain and 'vllm:spec_decode_num_draft_tokens_total{model_name="m",' in text
    found = {sample.name + sample.labels.get("drafts", ""): sample.value
             for family in text_string_to_metric_families(text) for sample in family.samples}
    names = ("num_drafts_total1", "num_drafts_total2", "num_drafts_total3", "num_draft_tokens_total",
             "num_accepted_tokens_total")
    assert [found[f"ridgeline:spec_decode_{name}"] for name in names] == [2, 0, 2, 8, 5]
    for line in ('num_requests_waiting_by_reason{model_name="m",engine="0",reason="rows"} 2',
                 'request_waited_seconds_total{model_name="m",engine="0",reason="rows"} 1.5',
                 'little_law{model_name="m",engine="0",measure="num_in_system"} 3'):
        assert f"ridgeline:{line}\n" in text


class Answers:
    """An engine that answers "stats" alone."""

    dead = None
    num_restarts = 0

    def __init__(self, stats: dict[str, object]) -> None:
        self._stats = stats

    async def ask(self, what: str) -> dict[str, object]:
        assert what == "stats"
        return self._stats


def test_the_names_that_dashboards_read_are_there() -> None:
    families = {f.name for f in text_string_to_metric_families(_busy().render(ENGINE).decode())}
    assert families >= VLLM_NAMES, VLLM_NAMES - families


@pytest.mark.parametrize(
    ("name", "count", "total"),
    [
        ("time_to_first_token_seconds", 2, 4.5),
        ("inter_token_latency_seconds", 2, 2.0),
        ("request_time_per_output_token_seconds", 1, 1.0),
        ("e2e_request_latency_seconds", 2, 9.0),
        ("request_prompt_tokens", 1, 7),
        ("request_generation_tokens", 2, 4),
        ("request_queue_time_seconds", 1, 0.75),
        ("request_prefill_time_seconds", 1, 0.75),
        ("request_decode_time_seconds", 1, 2.0),
        ("request_inference_time_seconds", 1, 2.75),
    ],
)
def test_histograms(name: str, count: int, total: float) -> None:
    """Buckets never fall, +Inf is the count, and the largest finite bucket is beyond a minute."""
    samples = _samples(_busy())
    prefix = f"vllm:{name}_bucket|"
    buckets = [(float(k.removeprefix(prefix)), v) for k, v in samples.items() if k.startswith(prefix)]
    assert buckets == sorted(buckets) and [v for _, v in buckets] == sorted(v for _, v in buckets)
    assert buckets[-1] == (math.inf, count) and buckets[-2][0] >= 60
    assert samples[f"vllm:{name}_count"] == count and samples[f"vllm:{name}_sum"] == pytest.approx(total)
    assert buckets[0][1] < count, "not everything in the smallest"


def test_the_parts_of_ttft_sum_to_it() -> None:
    """Of the choice whose first token came with the engine's times: 2 s from its arrival."""
    samples = _samples(_busy())
    name = "vllm:time_to_first_token_part_seconds_sum"
    parts = {part: samples[f"{name}|{part}"] for part in TTFT_PARTS}
    assert parts == {"tokenise": 0.5, "queue": 0.25, "schedule": 0.25, "prefill": 0.5, "deliver": 0.5}


def test_counters() -> None:
    samples = _samples(_busy())
    assert samples["vllm:prompt_tokens_total"] == 7 and samples["vllm:generation_tokens_total"] == 4
    assert (
        samples["vllm:request_success_total|stop"] == 1 and samples["vllm:request_success_total|abort"] == 1
    )
    assert samples["vllm:kv_cache_usage_perc"] == 0.25
