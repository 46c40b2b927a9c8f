"""Protects `ridgeline bench` as a whole, on a tiny random model: the engine runs, the floor stays below the
measurement, and a profile is written that the ledger reads back."""

import json
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.bench.offline import BenchArgs, run
from ridgeline.engine.floors import profile_name
from ridgeline.kernels.cpu.native import native
from ridgeline.ledger.profile import load_profile, save_profile

TINY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 512, "rope_theta": 10000.0, "tie_word_embeddings": True}


@pytest.fixture
def engine(tmp_path: Path) -> EngineConfig:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    return EngineConfig(model=str(tmp_path), load_format="dummy", max_num_seqs=8, kv_cache_bytes=4_000_000,
                        max_num_batched_tokens=128, threads=1, progress=False)


def ran(args: BenchArgs) -> str:
    said: list[str] = []
    assert run(args, said.append) == 0
    return "\n".join(said)


@pytest.mark.parametrize(("what", "concurrency"), [("latency", 1), ("throughput", 3)])
def test_a_benchmark_stands_beside_its_floor(engine: EngineConfig, what: str, concurrency: int) -> None:
    args = BenchArgs(what=what, engine=engine, prompt_tokens=20, output_tokens=10, num_requests=4, json=True,
                     concurrency=None if what == "latency" else concurrency)
    found = json.loads(ran(args))
    assert found["bench"] == what and found["concurrency"] == concurrency and found["num_requests"] == 4
    assert found["output_tok_s"] == pytest.approx(40 / found["wall_s"])
    for name in ("ttft_s", "tpot_s", "e2e_s"):
        assert 0 < found[name]["p50"] <= found[name]["p99"]
    for name in ("decode_step", "prefill_step"):
        assert 0 < found[name]["floor_s"] < found[name]["measured_s"]
        assert 0 < found[name]["share_of_floor"] < 1
    assert found["decode_step"]["tokens"] == concurrency
    assert found["threads"] == 1


def test_probe_writes_a_profile_with_the_model_s_steps(engine: EngineConfig, tmp_path: Path) -> None:
    path = tmp_path / "box.json"
    said = ran(BenchArgs(what="probe", engine=engine, profile=str(path)))
    profile = load_profile(str(path))
    (table,) = profile.tables.values()
    assert table.rows == (1, 2, 4, 5, 8) and table.chunk == (32, 128)
    assert min(table.row_s + table.chunk_s) > 0 and str(path) in said


def test_probe_without_a_name_measures_for_the_engines_of_this_machine(
        engine: EngineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start finds the profile, tables of other models included."""
    native()
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    ran(BenchArgs(what="probe", engine=engine))
    name = profile_name(1)
    first = load_profile(name)
    ((key, table),) = first.tables.items()
    save_profile(first.with_table("another", table))
    ran(BenchArgs(what="probe", engine=engine))
    assert set(load_profile(name).tables) == {"another", key}


@pytest.mark.parametrize(("changes", "message"), [
    (dict(what="speed"), "latency, throughput and probe are known"),
    (dict(profile="box"), "latency saves no profile"),
    (dict(concurrency=4), "latency has no use for --concurrency"),
    (dict(what="probe", profile="box", prompt_tokens=1), "probe has no use for --prompt-tokens"),
    (dict(what="throughput", concurrency=9), "need --max-num-seqs 9 or more: it is 8"),
    (dict(what="latency", output_tokens=1), "--output-tokens 2 or more")])
def test_what_cannot_be_measured_is_refused(engine: EngineConfig, changes: dict[str, object],
                                            message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(BenchArgs(**{"what": "latency", "engine": engine, **changes}))  # type: ignore[arg-type]
