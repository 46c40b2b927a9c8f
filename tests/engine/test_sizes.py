"""The rules by which a start fills in what the config leaves open."""

from dataclasses import replace

import pytest
import torch

from ridgeline.base.clock import VirtualClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.units import GB
from ridgeline.engine.capacity import decide_capacity
from ridgeline.engine.numerics import Numerics
from ridgeline.engine.sizes import (
    GpuRoom,
    Sizes,
    block_tokens,
    change_that_fits,
    check_weights,
    decide_sizes,
    decide_threads,
    graph_bytes,
    step_tokens,
)
from ridgeline.engine.startup import Startup
from ridgeline.kv.manager import KVManager
from ridgeline.ledger.memory import step_bytes
from ridgeline.models.checkpoint import open_shape
from ridgeline.nn.load import dense
from ridgeline.schedule.executor import Capacity
from ridgeline.spec.cache import Paged, plan_layout

LAYOUT = plan_layout([(Paged(bytes_per_entry=1024),)] * 4, block_tokens=16)  # 65,536 bytes a page


def decide(free_bytes: int = 100 * GB, max_position: int = 8192, room: GpuRoom | None = None,
           **config: object) -> tuple[Sizes, Startup]:
    startup = Startup(VirtualClock())
    made = replace(EngineConfig(), **config)  # type: ignore[arg-type]
    return decide_sizes(
        made, LAYOUT, max_position=max_position, free_bytes=free_bytes, startup=startup, room=room
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


def test_adapters_are_set_aside_first() -> None:
    """As recorded steps are; adapters that do not fit are refused, whatever the cache's size."""
    given = EngineConfig(), LAYOUT
    room, slots = 4 * 101 * 65536, 300_000_000
    startup = Startup(VirtualClock())
    sizes = decide_sizes(*given, max_position=8192, free_bytes=room + slots, startup=startup,
                         adapter_bytes=slots)
    assert sizes == decide(free_bytes=room)[0]
    assert "beside 300 MB for adapters" in startup.choices["kv_cache_bytes"][1]
    with pytest.raises(ConfigError, match=r"300 MB and 299 MB are free: lower --max-loras"):
        decide_sizes(EngineConfig(kv_cache_bytes=10 * 65536), LAYOUT, max_position=8192,
                     free_bytes=299_000_000, startup=startup, adapter_bytes=slots)


def test_given_numbers_are_kept() -> None:
    """A context that is asked for stays where the cache holds less: the door refuses what cannot fit."""
    sizes, startup = decide(kv_cache_bytes=33 * 65536 + 5, max_model_len=2048, max_num_batched_tokens=96)
    assert sizes == Sizes(max_model_len=2048, max_num_batched_tokens=96, num_pages=33)
    assert {why for _, why in startup.choices.values()} == {"as given"}


def test_steps_without_a_cache_and_with_many_sequences() -> None:
    """The naive path computes whole contexts; prompts find room beside every sequence's token."""
    assert decide(cache=False, max_model_len=4096)[0].max_num_batched_tokens == 4096
    assert decide(max_num_seqs=800)[0].max_num_batched_tokens == 1600
    sizes, startup = decide(policy="chunked:1024")
    assert startup.choices["max_num_batched_tokens"] == (sizes.max_num_batched_tokens, "policy chunked:1024")
    assert sizes.max_num_batched_tokens == 1024
    with pytest.raises(ConfigError, match="chunked:97: a step holds 96 tokens; set max_num_batch"):
        decide(policy="chunked:97", max_num_batched_tokens=96)


@pytest.mark.parametrize("config", [
    {"max_model_len": 8193}, {"max_model_len": 1}, {"max_num_seqs": 0}, {"block_tokens": 0},
    {"kv_cache_bytes": 65536}, {"kv_cache_bytes": 10**15},
])  # fmt: skip
def test_impossible_numbers_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        decide(**config)


ROOM = GpuRoom(total_bytes=100 * GB, weights_bytes=20 * GB, free_bytes=70 * GB, step_bytes=5 * GB,
               graph_bytes=3 * GB)


def test_a_gpu_gives_the_cache_what_steps_and_graphs_leave() -> None:
    """All of it when sequences could use it, and long steps; what is left is the libraries' own."""
    sizes, startup = decide(room=ROOM, max_num_seqs=512, max_position=131_072)
    assert 0.99 * ROOM.cache_bytes < sizes.num_pages * LAYOUT.page_bytes <= ROOM.cache_bytes == 60 * GB
    assert sizes.max_num_batched_tokens == 8192 and sizes.max_model_len == 131_072
    assert "70 GB are free" in startup.choices["kv_cache_bytes"][1]
    assert decide(room=ROOM, max_num_seqs=1)[0].num_pages == 513  # no more than can be used


def test_a_gpu_that_is_too_small_is_refused_in_bytes() -> None:
    """What there is, who takes it, and the change that fits; a cache that is asked for is not cut."""
    short = replace(ROOM, free_bytes=6 * GB)
    with pytest.raises(ConfigError, match=r"6 GB are free .*5 GB .*3 GB.*free another 4 GB"):
        decide(room=short)
    with pytest.raises(ConfigError, match=r"at least; set max_num_seqs to 3$"):
        decide(room=replace(short, change="set max_num_seqs to 3"))
    with pytest.raises(ConfigError, match=r"kv_cache_bytes 61 GB .*at most 60000000000"):
        decide(room=ROOM, kv_cache_bytes=61 * GB)
    assert decide(room=ROOM, kv_cache_bytes=60 * GB)[0].num_pages == 60 * GB // LAYOUT.page_bytes


def test_the_change_that_is_named_fits() -> None:
    """Steps as long as can be, else as many sequences; where neither helps, none is named."""
    def change(token_bytes: int, row_bytes: int, free: int, policy: str = "fcfs") -> str:
        def room(tokens: int, rows: int) -> GpuRoom:
            return replace(ROOM, free_bytes=free, step_bytes=tokens * token_bytes + rows * row_bytes,
                           graph_bytes=0)

        return change_that_fits(EngineConfig(max_num_seqs=64, policy=policy), room, 1000)

    assert change(1_000_000, 0, 5 * GB) == "set max_num_batched_tokens to 2048"
    assert change(1_000, 100_000_000, 5 * GB) == "set max_num_seqs to 16"
    assert change(1_000, 0, 2 * GB) == change(1_000_000, 0, 5 * GB, "chunked:4096") == ""


def test_weights_that_are_too_large_are_refused_before_they_are_loaded() -> None:
    spec = open_shape("llama-3.1-8b").spec
    check_weights(spec, element_bytes=2, free_bytes=17 * GB, total_bytes=24 * GB)
    with pytest.raises(ConfigError, match=r"weights take 16.1 GB and 12 GB of the GPU's 24 GB"):
        check_weights(spec, element_bytes=2, free_bytes=12 * GB, total_bytes=24 * GB)


def test_what_steps_take_grows_with_their_tokens() -> None:
    """The widest products stand beside the stream: 28,672 and 14,336 features of 8B's feed-forward."""
    spec = open_shape("llama-3.1-8b").spec
    many: dict[str, int] = {"num_seqs": 8, "element_bytes": 2, "context": 8192}
    more, less = (step_bytes(spec, step_tokens=t, **many) for t in (8192, 4096))
    assert (more - less) / 4096 / 2 >= 28_672 + 14_336 + 4096
    few, many, long = (graph_bytes(spec, num_seqs=rows, num_tokens=tokens, element_bytes=2)
                       for rows, tokens in ((8, 64), (512, 64), (8, 4096)))
    assert few < many and few < long


def test_latents_are_expanded_a_few_heads_at_a_time() -> None:
    """A prompt's last chunk makes keys and values of its whole prefix: at 128k tokens of DeepSeek-V3 one head
    of 192 + 128, and the 576 numbers of each entry."""
    spec = open_shape("deepseek-v3").spec
    long, short = (step_bytes(spec, step_tokens=64, num_seqs=1, context=n, element_bytes=2)
                   for n in (131_072, 1))
    assert long - short == 2 * (131_071 * 576 + 131_072 * (128 + 192 + 128) - 2 * 2**23)


def test_blocks_and_steps_are_the_devices() -> None:
    assert [block_tokens(EngineConfig(), on_gpu=gpu) for gpu in (False, True)] == [16, 64]
    assert block_tokens(EngineConfig(block_tokens=32), on_gpu=True) == 32
    assert step_tokens(EngineConfig(max_num_seqs=5000), on_gpu=True) == 10_000


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


def test_what_a_small_gpu_is_told_to_set_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """An 8B's steps and graphs in 2.5 GB: the change that the error names leaves room for a cache."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2_500_000_000, 24 * GB))
    bf16 = torch.bfloat16
    numerics = Numerics(name="bfloat16", activations=bf16, cache=bf16, policy=dense(bf16))

    def capacity(**config: int) -> Capacity:
        return decide_capacity(EngineConfig(**config), open_shape("llama-3.1-8b").spec, numerics, {},
                               torch.device("cuda"), Startup(VirtualClock()), None)

    with pytest.raises(ConfigError, match=r"; set max_num_batched_tokens to 4096$"):
        capacity()
    made = capacity(max_num_batched_tokens=4096)
    assert made.max_step_tokens == 4096 and made.num_pages > 2
