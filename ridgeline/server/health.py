"""Whether the engine is alive, told by its progress: a step that finished lately, or an idle engine that
answers. Holds the engine's newest gauges for /metrics.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from ridgeline.account.live import Live
from ridgeline.account.metrics import EngineValue
from ridgeline.api.job import Engine
from ridgeline.base.clock import Clock
from ridgeline.base.errors import EngineDeadError

POLL_S = 0.5
FRESH_S = 2.0  # how long a scrape waits for an engine that is in the middle of a step


class Health:
    """stall_s: how long work may wait without any step finishing before the engine counts as stuck. live:
    hears of the gauges."""

    def __init__(self, engine: Engine, clock: Clock, stall_s: float, live: Live | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._stall_s = stall_s
        self._live = live
        self._num_steps = -1
        self._moved_s = clock.now()
        self._stats: Mapping[str, Any] = {}

    async def watch(self) -> None:
        """Poll for ever. An engine in the middle of a long step answers late; that is no fault."""
        while True:
            await self._poll()
            await asyncio.sleep(POLL_S)

    async def gauges(self) -> dict[str, EngineValue]:
        """The engine's numbers by the names of `metrics`: fresh, or the last known from a busy engine."""
        try:
            async with asyncio.timeout(FRESH_S):
                await self._poll()
        except TimeoutError:
            pass
        gauges = _gauges(self._stats) if self._stats else {}
        return gauges | {"engine_restarts_total": self._engine.num_restarts}

    def trouble(self) -> str | None:
        """What is wrong with the engine, or None when it lives."""
        if self._engine.dead is not None:
            return f"the engine is not running: {self._engine.dead}"
        still_s = self._clock.now() - self._moved_s
        if still_s > self._stall_s:
            return f"no step has finished for {still_s:.0f} s although work is waiting"
        return None

    async def _poll(self) -> None:
        try:
            stats = await self._engine.ask("stats")
        except EngineDeadError:
            self._stats, self._num_steps, self._moved_s = {}, -1, self._clock.now()
            return
        idle = not stats["num_running"] and not stats["num_waiting"]
        if idle or stats["num_steps"] != self._num_steps:
            self._moved_s = self._clock.now()
        self._num_steps = stats["num_steps"]
        self._stats = stats
        if self._live is not None:
            self._live.sample(stats)


def _gauges(stats: Mapping[str, Any]) -> dict[str, EngineValue]:
    free = stats["num_free_pages"] - stats["num_cached_pages"]
    late = {"requests_late_total": stats["num_late"]} if "num_late" in stats else {}
    return _drafts(stats) | late | {
        "num_requests_running": stats["num_running"],
        "num_requests_waiting": stats["num_waiting"],
        "kv_cache_usage_perc": stats["kv_usage"],
        "kv_blocks_live": stats["num_used_pages"],
        "kv_blocks_total": stats["num_used_pages"] + stats["num_free_pages"],
        "kv_blocks": {"used": stats["num_used_pages"], "cached": stats["num_cached_pages"],
                      "pending": stats["num_pending_pages"], "free": free},
        "num_requests_waiting_by_reason": stats["waiting"],
        "request_waited_seconds_total": stats["waited_s"],
        "little_law": stats["little_law"],
        "prefix_cache_queries_total": stats["num_prompt_tokens"],
        "prefix_cache_hits_total": stats["num_cached_tokens"],
        "num_preemptions_total": stats["num_preemptions"],
        "engine_steps_total": stats["num_steps"],
        "engine_short_steps_total": stats["num_short_steps"],
        "engine_undone_rows_total": stats["num_undone"],
        "engine_step_token_limit": stats["step_token_limit"],
        "engine_step_seconds_total": stats["step_measured_s"],
        "engine_step_floor_seconds_total": stats["step_floor_s"],
        "engine_step_prefill_seconds_total": stats["step_prefill_s"],
    }


def _drafts(stats: Mapping[str, Any]) -> dict[str, EngineValue]:
    """Nothing of an engine that drafts nothing."""
    if "num_draft_tokens" not in stats:
        return {}
    return {
        "spec_decode_num_drafts_total": stats["num_verified"],
        "spec_decode_num_draft_tokens_total": stats["num_draft_tokens"],
        "spec_decode_num_accepted_tokens_total": stats["num_accepted_tokens"],
    }
