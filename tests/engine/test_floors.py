"""Floors in the records of a real engine: every step and request beside what it should have taken."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ridgeline.base.clock import WallClock
from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import RingTrace, read_trace
from ridgeline.cli import main
from ridgeline.engine.build import Engine, build_engine
from ridgeline.engine.floors import machine_profile, profile_name, step_key
from ridgeline.engine.startup import Startup
from ridgeline.kernels.cpu.native import native
from ridgeline.ledger.profile import StepTable, load_profile, profile_path, save_profile
from ridgeline.models.checkpoint import open_checkpoint
from ridgeline.schedule.request import NewRequest
from ridgeline.sim.replay import read_origin, read_recorded, replay
from ridgeline.sim.retimed import retime
from ridgeline.spec.sampling import SamplingParams
from tests.adapters.made import adapter_folder
from tests.engine.tiny import tiny_folder

TABLE = StepTable(rows=(1, 2), row_s=(3.0, 4.0), context=0, chunk=(2, 64), chunk_s=(5.0, 6.0))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache folder without a profile; the kernels of the machine stay where they are."""
    native()
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))


def run(engine: Engine, num_prompt: int = 20) -> None:
    """Three requests at once."""
    for i in range(3):
        params = SamplingParams(max_tokens=6, ignore_eos=True, seed=i)
        prompt = np.arange(3 + i, 3 + i + num_prompt, dtype=np.int32)
        engine.loop.add(NewRequest(id=str(i), prompt=prompt, params=params, arrived_s=WallClock().now()))
    while engine.loop.has_work():
        engine.loop.step()


def tiny_engine(tmp_path: Path, trace: RingTrace, **config: object) -> Engine:
    folder = tiny_folder(tmp_path / "model", tokenizer=False)
    fields = {"max_num_seqs": 4, "kv_cache_bytes": 1_000_000, "threads": 1, "progress": False} | config
    return build_engine(EngineConfig(model=str(folder), load_format="dummy", **fields), trace=trace)  # type: ignore[arg-type]


def test_every_record_has_a_floor_below_what_was_measured(tmp_path: Path) -> None:
    """In memory and in the file, whose header names the rates that the floors are made of."""
    trace, file = RingTrace(), tmp_path / "trace.jsonl"
    engine = tiny_engine(tmp_path, trace, trace_file=str(file), max_num_batched_tokens=16)
    run(engine)
    stats = engine.loop.stats()
    engine.close()
    assert len(trace.steps) > 6 and len(trace.requests) == 3
    for step in trace.steps:
        assert step.floor_s is not None and 0 < step.floor_s <= step.measured_s
        assert step.planned_s is None, "no table of this model was measured"
    for request in trace.requests:
        assert request.floor_s is not None and request.first_scheduled_s is not None
        assert 0 < request.floor_s <= request.finished_s - request.first_scheduled_s
    assert 0 < stats["step_floor_s"] <= stats["step_measured_s"]  # type: ignore[operator]
    written = list(read_trace(file))
    ended = [replace(one, token_times_s=tuple(one.token_times_s)) for one in trace.requests]
    assert written == sorted([*trace.steps, *ended], key=written.index)
    header = file.read_text().partition("\n")[0]
    assert engine.profile.name in header and "float32_flops_per_s" in header


def test_floors_count_the_adapters_that_a_step_reads(tmp_path: Path) -> None:
    """Each of them once, whatever rows have it; a step of the base model alone reads none."""
    spec = open_checkpoint(tiny_folder(tmp_path / "model", tokenizer=False), load_format="dummy").spec
    lora = [(name, str(adapter_folder(tmp_path / name, spec, rank=rank)))
            for name, rank in (("a", 2), ("b", 8))]
    trace = RingTrace()
    engine = tiny_engine(tmp_path, trace, lora=lora)
    adapters = engine.adapters
    assert adapters is not None
    each_s = {info["name"]: info["num_bytes"] / engine.profile.read_bytes_per_s for info in adapters.infos}
    assert 0 < each_s["a"] < each_s["b"]

    def floors(*names: str) -> tuple[float, float]:
        """Of the first step, and of the first request."""
        first = len(trace.steps)
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        for number, name in enumerate(names):
            prompt = np.arange(20, dtype=np.int32) + len(trace.requests) + 20 * number
            new = NewRequest(id=str(number), prompt=prompt, params=params)
            engine.loop.add(adapters.seat(new, name) if name else new)
        while engine.loop.has_work():
            engine.loop.step()
        step = trace.steps[first]
        request = next(one for one in reversed(trace.requests) if one.id == "0")
        assert step.floor_s and request.floor_s
        return step.floor_s, request.floor_s

    base_s, request_s = floors("", "")
    for other, beyond_s in (("", 0.0), ("a", 0.0), ("b", each_s["b"])):
        step_s, own_s = floors("a", other)
        assert step_s - base_s == pytest.approx(each_s["a"] + beyond_s)
        assert own_s - request_s == pytest.approx(3 * each_s["a"])
    engine.close()


def test_a_recorded_trace_replays_in_the_simulator(tmp_path: Path) -> None:
    """With the results of the record the same steps are planned, and each is priced beside what it took."""
    file = tmp_path / "trace.jsonl"
    engine = tiny_engine(tmp_path, RingTrace(), trace_file=str(file), trace_texts=True,
                         max_num_batched_tokens=16)
    run(engine)
    run(engine)  # finds the first round's prompts in the cache
    engine.close()

    recorded, origin, seconds = read_recorded(file), read_origin(file), engine.steps(engine.profile)
    assert replace(origin.capacity, layout=engine.capacity.layout) == engine.capacity
    found = replay(recorded, origin.capacity, lambda offers: origin.scheduler(offers, None), seconds=seconds,
                   max_in_flight=origin.max_in_flight)
    assert found.difference == "" and found.num_equal == found.num_steps > 12
    assert found.priced["all"].error["p50"] > 0 and found.priced["all"].total > -1
    waits = retime(recorded, origin, seconds)
    assert set(waits) == {"ttft", "tpot", "e2e"} and all(one.error > 0 for one in waits.values())
    assert 0 < waits["ttft"].simulated_s < waits["e2e"].simulated_s < waits["e2e"].measured_s


def test_what_slo_planned_is_planned_again_at_the_same_prices(
        tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its steps' sizes hang on prices and on what steps took: the record has the latter, the engine the
    former."""
    file = tmp_path / "trace.jsonl"
    engine = tiny_engine(tmp_path, RingTrace(), trace_file=str(file), trace_texts=True, policy="slo",
                         ttft_s=0.5, tpot_s=0.05, max_num_batched_tokens=16)
    run(engine)
    engine.close()
    recorded, origin, price = read_recorded(file), read_origin(file), engine.price(engine.profile)
    found = replay(recorded, origin.capacity, lambda offers: origin.scheduler(offers, price),
                   max_in_flight=origin.max_in_flight)
    assert found.difference == "" and found.num_equal == found.num_steps > 6
    assert main(["simulate", "--replay", str(file)]) == 2
    assert "under slo, which sizes steps by their prices" in capsys.readouterr().err


def test_the_command_replays_a_recorded_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 0 while all plans are the record's; the first that differs is told, and 1 returned."""
    file = tmp_path / "trace.jsonl"
    engine = tiny_engine(tmp_path, RingTrace(), trace_file=str(file), trace_texts=True)
    run(engine)
    engine.close()
    assert main(["simulate", "--replay", str(file)]) == 0
    assert "are those of the record, step by step" in capsys.readouterr().out
    assert main(["simulate", "smollm2-135m", "--gpu", "h100", "--replay", str(file), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_equal"] == told["num_steps"] and set(told["latencies"]) == {"ttft", "tpot", "e2e"}
    text = file.read_text()
    file.write_text(text.replace('"max_step_tokens": 512', '"max_step_tokens": 16'))
    assert file.read_text() != text
    assert main(["simulate", "--replay", str(file)]) == 1
    assert "the first 0 are those of the record; step 0 had" in capsys.readouterr().out


@pytest.mark.parametrize(("was", "becomes", "message"), [
    ('"overload": "queue"', '"overload": "shed"', "recorded with --overload shed"),
    ('"num_host_pages": 0', '"num_host_pages": 9', "recorded with --host-kv-bytes"),
    ('"watermark_bytes": 0, ', "", "does not say how its engine was made"),
])
def test_what_hangs_on_the_machine_is_not_replayed(was: str, becomes: str, message: str, tmp_path: Path,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trace.jsonl"
    engine = tiny_engine(tmp_path, RingTrace(), trace_file=str(file), ttft_s=9.0)
    run(engine)
    engine.close()
    text = file.read_text()
    assert was in text
    file.write_text(text.replace(was, becomes))
    assert main(["simulate", "--replay", str(file)]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_records_say_how_many_experts_were_read_and_expected(tmp_path: Path) -> None:
    """Two layers of 8 experts, 2 a token: one token reads 4, and more tokens no more than there are."""
    trace = RingTrace()
    mixture = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    folder = tiny_folder(tmp_path / "mixture", tokenizer=False, **mixture)
    engine = build_engine(EngineConfig(model=str(folder), load_format="dummy", max_num_seqs=4, threads=1,
                                       kv_cache_bytes=1_000_000, progress=False), trace=trace)
    run(engine)
    engine.close()
    for step in trace.steps:
        assert step.experts_expected == pytest.approx(2 * 8 * (1 - (1 - 2 / 8) ** step.num_tokens))
        assert 4 <= step.experts_read <= min(16, 4 * step.num_tokens)
        assert step.num_tokens > 1 or step.experts_read == step.experts_expected
    read, expected = (sum(getattr(step, f"experts_{name}") for step in trace.steps)
                      for name in ("read", "expected"))
    assert 0.6 < read / expected < 1.3  # a router with random weights has favourites


def test_the_profile_is_measured_once_and_said(tmp_path: Path) -> None:
    first = tiny_engine(tmp_path, RingTrace())
    path = profile_path(profile_name(1))
    assert f"measured now, saved as {path}" in first.info["startup"]["choices"]["profile"]["why"]
    assert load_profile(profile_name(1)) == first.profile and first.profile.threads == 1
    first.close()
    second = tiny_engine(tmp_path, RingTrace())
    second.close()
    assert f"from {path}" in second.info["startup"]["choices"]["profile"]["why"]
    assert second.profile == first.profile
    said = second.info["profile"]
    assert said["read_bytes_per_s"] == first.profile.read_bytes_per_s
    assert 0 < said["decode_read_bytes"] <= second.info["weights_bytes"] + 1000
    assert said["decode_floor_s"] >= said["decode_read_bytes"] / said["read_bytes_per_s"]


def test_a_step_table_makes_a_plan(tmp_path: Path) -> None:
    """The profile of this machine with this model's steps: the records say what was expected."""
    first = tiny_engine(tmp_path, RingTrace())
    first.close()
    key = step_key(first.spec, first.numerics, first.price(first.profile))
    save_profile(first.profile.with_table(key, TABLE))
    trace = RingTrace()
    engine = tiny_engine(tmp_path, trace)
    run(engine, num_prompt=1)
    engine.close()
    planned = {step.num_decodes: step.planned_s for step in trace.steps if not step.num_chunks}
    assert planned[3] == pytest.approx(5.0, abs=0.01)


def test_a_broken_profile_is_measured_again_and_an_unwritable_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = profile_path(profile_name(1))
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    startup = Startup(WallClock())
    profile = machine_profile(1, startup)
    assert "not a machine profile" in startup.choices["profile"][1] and load_profile(profile.name) == profile
    monkeypatch.setenv("RIDGELINE_CACHE", str(path))
    startup = Startup(WallClock())
    assert machine_profile(1, startup).read_bytes_per_s > 0
    assert "not saved" in startup.choices["profile"][1]


def test_a_trace_file_that_cannot_be_written_is_a_mistake_of_the_user_s(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trace_file cannot be written.*nowhere"):
        tiny_engine(tmp_path, RingTrace(), trace_file=str(tmp_path / "nowhere" / "trace.jsonl"))
