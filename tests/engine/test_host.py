"""Host memory behind the cache: what a start decides, and what a swap is priced at."""

from dataclasses import replace
from pathlib import Path

import pytest

from ridgeline.base.clock import VirtualClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GB
from ridgeline.engine.build import build_engine
from ridgeline.engine.host import decide_host
from ridgeline.engine.startup import Startup
from ridgeline.spec.cache import Paged, plan_layout
from tests.engine.tiny import tiny_folder

LAYOUT = plan_layout([(Paged(bytes_per_entry=1024),)] * 4, block_tokens=16)  # 65,536 bytes a page


def decide(*, free_bytes: int = 100 * GB, **config: object) -> int:
    made = replace(EngineConfig(), **config)  # type: ignore[arg-type]
    return decide_host(made, LAYOUT, free_bytes=free_bytes, startup=Startup(VirtualClock()))


def test_what_is_asked_for() -> None:
    assert decide() == decide(host_kv_bytes=0) == 0
    assert decide(host_kv_bytes=655360 + 5) == 10
    for config, text in (({"host_kv_bytes": 200 * GB}, "do not fit"), ({"host_kv_bytes": 9}, "131072"),
                         ({"host_kv_bytes": GB, "cache": False}, "without a cache")):
        with pytest.raises(ConfigError, match=text):
            decide(**config)  # type: ignore[arg-type]


def test_a_mark_that_leaves_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="leaves nothing of a KV cache of 999 kB"):
        build_engine(EngineConfig(
            model=str(tiny_folder(tmp_path)), load_format="dummy", device="cpu", threads=1, progress=False,
            kv_cache_bytes=1_000_000, kv_watermark_bytes=1_000_000))


def test_an_engine_with_host_memory(tmp_path: Path) -> None:
    """From the flag to the executor's arena and the scheduler's numbers."""
    config = EngineConfig(model=str(tiny_folder(tmp_path)), load_format="dummy", device="cpu", threads=1,
                          kv_cache_bytes=1_000_000, host_kv_bytes=1_000_000, progress=False)
    engine = build_engine(config)
    try:
        assert engine.capacity.num_host_pages == engine.info["host_kv_bytes"] // engine.info["page_bytes"] > 1
        assert engine.info["startup"]["choices"]["host_link_bytes_per_s"]["value"] > 1e6
        assert engine.loop.stats()["num_swaps"] == 0
    finally:
        engine.close()
