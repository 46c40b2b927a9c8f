"""The rules by which a start fills in what the config leaves open."""

from dataclasses import replace

import pytest

from ridgeline.base.clock import VirtualClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GB
from ridgeline.engine.sizes import Sizes, decide_sizes, decide_threads
from ridgeline.engine.startup import Startup
from ridgeline.kv.manager import KVManager
from ridgeline.spec.cache import Paged, plan_layout

LAYOUT = plan_layout([(Paged(bytes_per_entry=1024),)] * 4, block_tokens=16)  # 65,536 bytes a page


def decide(free_bytes: int = 100 * GB, max_position: int = 8192, **config: object) -> tuple[Sizes, Startup]:
    startup = Startup(VirtualClock())
    made = replace(EngineConfig(), **config)  # type: ignore[arg-type]
    return decide_sizes(
        made, LAYOUT, max_position=max_position, free_bytes=free_bytes, startup=startup
    ), startup


def test_plenty_of_memory() -> None:
    """Every sequence at full length; no more is taken than can be used."""
    sizes, startup = decide(max_num_seqs=4)
    assert sizes == Sizes(max_model_len=8192, max_num_batched_tokens=512, num_pages=4 * 512 + 1)
    assert startup.choices["kv_cache_bytes"][1] == "4 sequences of 8192 tokens"


def test_little_memory_shortens_the_context() -> None:
    """A quarter of what is free, and the context that this holds; both said with their reasons."""
    sizes, startup = decide(free_bytes=4 * 101 * 65536)
    assert (
        sizes.num_pages == 101 and sizes.max_model_len == KVManager(LAYOUT, 101).largest_request(8192) == 1600
    )
    assert "quarter" in startup.choices["kv_cache_bytes"][1]
    assert startup.choices["max_model_len"] == (1600, "what the KV cache holds of the model's 8192")


def test_recorded_steps_are_set_aside_first() -> None:
    """The cache's share is of what the recording of decode steps leaves."""
    given = EngineConfig(), LAYOUT
    room, recorded = 4 * 101 * 65536, 300_000_000
    startup = Startup(VirtualClock())
    sizes = decide_sizes(*given, max_position=8192, free_bytes=room + recorded, startup=startup,
                         recorded_bytes=recorded)
    assert sizes == decide(free_bytes=room)[0]
    assert "beside 300 MB for recorded decode steps" in startup.choices["kv_cache_bytes"][1]


def test_given_numbers_are_kept() -> None:
    """A context that is asked for stays where the cache holds less: the door refuses what cannot fit."""
    sizes, startup = decide(kv_cache_bytes=33 * 65536 + 5, max_model_len=2048, max_num_batched_tokens=96)
    assert sizes == Sizes(max_model_len=2048, max_num_batched_tokens=96, num_pages=33)
    assert {why for _, why in startup.choices.values()} == {"as given"}


def test_steps_without_a_cache_and_with_many_sequences() -> None:
    """The naive path computes whole contexts; prompts find room beside every sequence's token."""
    assert decide(cache=False, max_model_len=4096)[0].max_num_batched_tokens == 4096
    assert decide(max_num_seqs=800)[0].max_num_batched_tokens == 1600


@pytest.mark.parametrize("config", [
    {"max_model_len": 8193}, {"max_model_len": 1}, {"max_num_seqs": 0}, {"block_tokens": 0},
    {"kv_cache_bytes": 65536},
])  # fmt: skip
def test_impossible_numbers_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        decide(**config)


def test_threads() -> None:
    """All cores, one less when serving, never none; a given number stands."""

    def threads(cores: int, *, serving: bool, given: int | None = None) -> int:
        config = EngineConfig(threads=given)
        return decide_threads(config, cores, serving=serving, startup=Startup(VirtualClock()))

    assert threads(8, serving=False) == 8 and threads(8, serving=True) == 7
    assert threads(1, serving=True) == 1 and threads(2, serving=True, given=2) == 2
    with pytest.raises(ConfigError):
        threads(2, serving=False, given=0)


def test_startup_record_is_plain_data() -> None:
    """`doctor` prints it, "info" sends it."""
    clock = VirtualClock()
    startup = Startup(clock)
    with startup.phase("weights"):
        clock.advance_to(1.5)
    assert startup.choose("threads", 2, "all cores") == 2
    assert startup.as_dict() == {
        "phases_s": {"weights": 1.5},
        "choices": {"threads": {"value": 2, "why": "all cores"}},
    }
