"""`ridgeline verify`: a good model passes, and what is broken on purpose fails in its own line."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from ridgeline.base.config import EngineConfig
from ridgeline.cli import main
from ridgeline.engine.alike import (
    EXACT,
    FAIL,
    NOT_RUN,
    OK,
    SAME_NUMBERS,
    Finding,
    Said,
    compare_distributions,
    compare_texts,
)
from ridgeline.engine.verify import verify
from ridgeline.schedule.executor import Capacity, Executor
from ridgeline.schedule.plan import RowLogprobs, StepPlan
from tests.engine.tiny import tiny_folder

PATHS = ["batched = alone", "chunked = whole", "cached = computed", "token by token = whole",
         "speculated = plain", "preempted = not"]  # fmt: skip


class WrongCache:
    """An executor that, where a row begins behind a cached prefix, reads another page in its place."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.max_in_flight = executor.max_in_flight
        self.ready_at, self.finish = executor.ready_at, executor.finish

    def capacity(self) -> Capacity:
        return self._executor.capacity()

    def begin(self, plan: StepPlan, now: float) -> int:
        new = [start.row for start in plan.row_starts]
        found = [row for row, start in zip(plan.row.tolist(), plan.start.tolist()) if start and row in new]
        tables = tuple(structs.replace(table, page=np.where(
            np.isin(table.row, found) & (table.index == 0), table.page[-1], table.page).astype(np.int32))
            if len(table.page) else table for table in plan.tables)
        return self._executor.begin(structs.replace(plan, tables=tables), now)


def config(folder: Path) -> EngineConfig:
    return EngineConfig(model=str(folder), load_format="dummy", kv_cache_bytes=4 << 20, threads=1,
                        block_tokens=8, max_num_seqs=8, progress=False)


def test_a_model_passes_and_a_wrong_cache_does_not(tmp_path: Path) -> None:
    """Of everything compared, what reads the cache of another request fails, and only that."""
    folder = tiny_folder(tmp_path / "model")
    told: list[str] = []
    found = {one.what: one for one in verify(config(folder), tell=told.append)}
    for name in PATHS:
        assert found[name].verdict == OK and found[name].positions >= 24, found[name]
    assert found["quantized = float32"].verdict == found["float32 = transformers"].verdict == NOT_RUN
    assert told[0] == "loading the model" and "batched = alone: ok" in told
    broken = {one.what: one.verdict for one in verify(config(folder), around=WrongCache)}
    assert [name for name, verdict in broken.items() if verdict == FAIL] == ["cached = computed"]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A table, or JSON; exit code 1 when something failed."""
    found = [Finding(what="batched = alone", verdict=OK, positions=144, largest_nat=1e-6),
             Finding(what="packed = float32", verdict=FAIL, positions=9, kl_nat=0.5, top1=0.25, note="why")]
    monkeypatch.setattr("ridgeline.engine.verify.verify", lambda config, *, tell: found)
    assert main(["verify", "some"]) == 1
    out = capsys.readouterr().out
    assert "144        1e-06         0  ok" in out
    assert "FAIL (KL 0.5 nat, 25.0% equal best tokens; why)" in out
    assert "1 of 2 failed: packed = float32" in out
    assert main(["verify", "some", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False and [one["verdict"] for one in said["findings"]] == [OK, FAIL]
    found.pop()
    assert main(["verify", "some", "--json"]) == 0
    for idle in (["--policy", "fair"], ["--no-prefix-caching"], ["--lora", "a=b"], ["--trace-file", "x"]):
        assert main(["verify", "some", *idle]) == 2
        assert f"verify takes no {idle[0]}: leave it out" in capsys.readouterr().err


def said(*places: tuple[int, float, int, float]) -> Said:
    """An answer of places (token, its log-probability, the runner-up, its own)."""
    return Said(prompt=(1,), tokens=[token for token, *_ in places], logprobs=[
        RowLogprobs(token_ids=np.array([a, a, b], np.int32), logprobs=np.array([x, x, y], np.float32), rank=0)
        for a, x, b, y in places])


def test_near_ties_are_counted_and_no_more_than_that() -> None:
    many = [(5, -0.5, 6, -2.0)] * 99
    tie, other = (7, -1.0, 8, -1.0004), (8, -1.0, 7, -1.0004)
    near = compare_texts("x", [said(*many, tie)], [said(*many, other)], SAME_NUMBERS)
    assert (near.verdict, near.positions, near.near_ties) == (OK, 100, 1)
    assert compare_texts("x", [said(*many, tie)], [said(*many, other)], EXACT).verdict == FAIL
    far = compare_texts("x", [said(*many, tie)], [said(*many, (8, -0.9, 7, -1.1))], SAME_NUMBERS)
    assert far.verdict == FAIL and far.note == "answer 1 says 8 for 7 at token 100"
    often = compare_texts("x", [said(tie)] * 2, [said(other)] * 2, SAME_NUMBERS)
    assert often.verdict == FAIL and "near ties" in often.note
    off = compare_texts("x", [said((5, -0.5, 6, -2.0))], [said((5, -0.55, 6, -2.0))], SAME_NUMBERS)
    assert off.verdict == FAIL and off.largest_nat == pytest.approx(0.05)
    short = compare_texts("x", [said(*many)], [said(*many[1:])], SAME_NUMBERS)
    assert short.verdict == FAIL and "98 tokens for 99" in short.note


def test_distributions_by_divergence_and_best_tokens() -> None:
    full = np.log(np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], np.float32))
    bounds = {"near_nat": 1e-3, "kl_nat": 0.01, "top1": 0.95}
    same = compare_distributions("x", full, full, **bounds)
    assert same.verdict == OK and same.kl_nat == 0.0 and same.top1 == 1.0
    other = np.log(np.array([[0.3, 0.5, 0.2], [0.1, 0.2, 0.7]], np.float32))
    wrong = compare_distributions("x", full, other, **bounds)
    assert wrong.verdict == FAIL and wrong.top1 == 0.5
    assert wrong.kl_nat == pytest.approx((0.5 * np.log(5 / 3) + 0.3 * np.log(3 / 5)) / 2, rel=1e-5)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_default_model(capsys: pytest.CaptureFixture[str]) -> None:
    """The packed default: every path, and its numbers against the same weights in float32."""
    assert main(["verify", "--json", "--no-progress"]) == 0
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["packed = float32"]["kl_nat"] < 1e-3 and found["packed = float32"]["top1"] > 0.98
    assert all(found[name]["verdict"] == OK for name in PATHS)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_against_the_reference(tmp_path: Path) -> None:
    """A folder of safetensors in float32."""
    transformers = pytest.importorskip("transformers")
    reference = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=300, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512))
    reference.save_pretrained(tmp_path / "model")
    found = {one.what: one for one in verify(replace(config(tmp_path / "model"), load_format="auto"))}
    parity = found["float32 = transformers"]
    assert parity.verdict == OK and parity.positions > 100 and parity.largest_nat < 1e-3
