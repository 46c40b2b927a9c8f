"""Protects the numbers of the live page: shares of device time, goodput, blocks by state, waits by reason."""

import json
from typing import Any

import pytest

from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.account.live import MOST_SAMPLES, Live
from ridgeline.account.metrics import Metrics
from ridgeline.base.clock import VirtualClock
from ridgeline.schedule.targets import Targets
from ridgeline.server.app import build_app
from ridgeline.server.health import Health
from tests.server.asgi import call
from tests.server.fake import fake_api, keyring

pytestmark = pytest.mark.anyio


def _stats(at_s: float, **change: Any) -> dict[str, Any]:
    """An engine that is 3/4 busy: a quarter prefill, half decode; steps of 0.1 s on a floor of 0.05 s."""
    return {
        "uptime_s": at_s, "num_steps": int(7.5 * at_s), "step_measured_s": 0.75 * at_s,
        "step_floor_s": 0.375 * at_s, "step_prefill_s": 0.25 * at_s, "num_running": 2, "num_waiting": 3,
        "num_used_pages": 4, "num_free_pages": 5, "num_cached_pages": 3, "num_pending_pages": 1,
        "num_generated_tokens": int(20 * at_s), "num_prompt_tokens": int(8 * at_s),
        "num_cached_tokens": int(2 * at_s), "num_preemptions": 0, "num_recomputed_tokens": 0,
        "num_surplus_tokens": 0, "waiting": {"rank": 2, "rows": 1, "pages": 0},
        "waited_s": {"rank": 0.5 * at_s, "rows": at_s, "pages": 7.0}, "little_law": {"difference": 0.0},
        **change,
    }  # fmt: skip


def _end(live: Live, finish: str, ttft_s: float, tpot_s: float) -> None:
    choice = ChoiceTimes(prompt=0, choice=0, num_output=3, first_s=0.0, last_s=2 * tpot_s, ttft_s=ttft_s,
                         finish=finish, parts_s={"queue": ttft_s / 4, "prefill": 3 * ttft_s / 4})
    live.ended(RequestClock(Metrics("m"), 0.0), choice)


def test_a_minute_of_an_engine() -> None:
    clock = VirtualClock()
    live = Live(clock, Targets(ttft_s=0.5, tpot_s=0.1))
    assert json.dumps(live.data(), allow_nan=False), "before anything is known"
    for second in range(101):
        clock.advance_to(float(second))
        live.sample(_stats(float(second)))
        live.sample(_stats(float(second)))
    for finish, ttft_s, tpot_s in [("stop", 0.4, 0.1), ("length", 0.5, 0.05), ("stop", 0.6, 0.05),
                                   ("stop", 0.1, 0.2), ("abort", 0.1, 0.01)]:
        _end(live, finish, ttft_s, tpot_s)
    found = live.data()
    json.dumps(found, allow_nan=False)
    assert found["device"] == pytest.approx({"prefill_share": 0.25, "decode_share": 0.5, "idle_share": 0.25,
                                             "step_mean_s": 0.1, "step_floor_s": 0.05}, rel=1e-3)
    assert found["goodput"] == {"minute": 2 / 60, "start": 2 / 100, "ended": 5, "good": 2}
    assert found["latency"]["ttft"]["p50"] == 0.4 and found["ttft_parts_s"]["queue"] == pytest.approx(0.085)
    assert found["kv"] == {"used": 4, "cached": 3, "pending": 1, "free": 2}
    assert [(wait["reason"], wait["waited_s"]) for wait in found["waits"]] == [
        ("rows", 60.0), ("rank", 30.0), ("pages", 0.0)]  # fmt: skip
    assert found["output_tok_s"] == 20 and found["prompt_tokens"] == 480 == 4 * found["cached_tokens"]
    lengths = {len(curve) for curve in found["series"].values()}
    assert lengths == {101} and found["series"]["at_s"][-1] == 0
    clock.advance_to(170.0)
    assert live.goodput() == {"minute": 0.0, "start": 2 / 170}


def test_its_memory_is_bounded() -> None:
    clock = VirtualClock()
    live = Live(clock)
    for second in range(MOST_SAMPLES + 50):
        clock.advance_to(float(second))
        live.sample(_stats(float(second)))
        _end(live, "stop", 1.0, 1.0)
    found = live.data()
    assert len(found["series"]["at_s"]) == MOST_SAMPLES and found["goodput"]["ended"] == 61


async def test_the_route_needs_the_key_and_hears_of_requests() -> None:
    api, engine = fake_api()
    health = Health(engine, VirtualClock(), 30.0, api.live)
    app = build_app(api, health, keys=keyring("secret"))
    assert (await call(app, "GET", "/v1/ridgeline/live")).status == 401
    headers = {"authorization": "Bearer secret"}
    await call(app, "POST", "/v1/completions", b'{"prompt": "a", "max_tokens": 3}', headers)
    await health.gauges()
    got = await call(app, "GET", "/v1/ridgeline/live", headers=headers)
    assert got.headers["cache-control"] == "no-store" and got.json["model"] == "m"
    assert got.json["goodput"]["good"] == 1 and got.json["kv"]["cached"] == 3
    text = (await call(app, "GET", "/metrics", headers=headers)).body.decode()
    assert 'goodput_requests_per_second{model_name="m",engine="0",window="minute"}' in text
