"""Protects `ridgeline plan`: its JSON keys, its words, its speed as a process, mistakes told in a line."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.cli import main

READING = {
    "fits", "weights_bytes", "kv_bytes_per_token", "kv_bytes_per_sequence", "b_star", "b_cross", "b_max",
    "ttft_s", "tpot_s", "e2e_s", "output_tok_s", "per_user_tok_s", "kv_share_of_step", "intensity",
    "intensity_ceiling", "throughput_ceiling_tok_s", "binding_limit", "cost_per_million_usd",
    "max_context_tokens",
}
PLAN = READING | {
    "feasible", "why", "remedy", "readings", "estimate", "nominal", "batch", "model", "device", "num_devices",
    "layout", "weights", "kv", "native_arithmetic", "memory_per_device_bytes", "marketed_bytes", "parameters",
    "usable_bytes", "kv_reserved_bytes_per_sequence", "max_context_at_batch_tokens", "goodput_batch",
    "tpot_mixed_s", "sustained_tok_s", "little", "slow_side", "vision", "efficiency", "choices", "notes",
}

START_S = 0.21  # of a start of Python with numpy, an idle core


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["plan", *words]) == 0
    return capsys.readouterr().out


def test_the_keys_of_the_json_are_frozen(capsys: pytest.CaptureFixture[str]) -> None:
    """Keys are a promise: exact at the top, the same ones of the estimate and of the closed forms."""
    found = json.loads(said(capsys, "llama-3-8b", "--gpu", "h100", "--batch", "16", "--json"))
    assert set(found) == PLAN and set(found["estimate"]) == set(found["nominal"]) == READING
    assert found["fits"] is True and found["memory_per_device_bytes"]["capacity"] == 80e9
    assert all(one["source"] == "assumed" for one in found["efficiency"].values())


def test_flags_reach_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(
        capsys, "llama-3-8b", "--gpu", "h100", "--gpus", "4", "--tp", "2", "--prompt", "4k",
        "--output", "100", "--concurrency", "8", "--weights", "fp8", "--kv", "fp8", "--memory", "64GiB",
        "--workspace", "0GB", "--price", "1.5", "--set", "num_kv_heads=4", "--ttft", "1s", "--tpot", "30ms",
        "--json"))
    assert found["layout"] == {"tp": 2, "pp": 1, "ep": 1, "dp": 2} and found["batch"] == 8
    assert found["kv_bytes_per_token"] == 32 * 2 * 4 * 128 and found["kv_bytes_per_sequence"] == 4196 * 32768
    assert found["memory_per_device_bytes"]["capacity"] == 64 * 2**30
    assert any("measure quality" in note for note in found["notes"]) and found["goodput_batch"] > 8


def test_the_text_names_units_readings_and_the_slow_side(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama-3-8b", "--gpu", "h100", "--batch", "16")
    for part in ("80 GB (74.51 GiB)", "floor", "estimate", "nominal", "(assumed)", "the slow side is decode",
                 "B_cross", "Little's law", "pages' rounding", "with prompts in between"):
        assert part in text, part


@pytest.mark.parametrize(("words", "says"), [
    (["llama-3-8b"], "--gpu is missing"), (["llama-3-8b", "--gpu", "h1000"], "did you mean"),
    (["llama-3-9b", "--gpu", "h100"], "llama-3-8b"), (["a", "b", "--gpu", "h100"], "one model at a time"),
    (["llama-3-8b", "--gpu", "h100", "--batch", "2", "--rate", "3"], "contradict one another"),
    (["llama-3-8b", "--gpu", "h100", "--tiles", "3"], "--tiles without --images"),
    (["molmo-7b-d", "--gpu", "h100", "--images", "1", "--prompt", "9"], "contradict one another"),
    (["llama-3-8b", "--gpu", "h100", "--plot", "x.svg"], "plan has no use for --plot"),
    (["search", "llama-3-8b", "--compare"], "plan search has no use for --compare"),
    (["search"], "plan search needs one more word: a model"),
    (["check-claim", "Llama-3-8B 3 tok/s on H100", "--tp", "2"], "plan check-claim has no use for --tp"),
    (["llama-3-8b", "--gpu", "h100", "--tp", "3"], "sizes that work are 1, 2, 4, 8, 16, 32"),
    (["llama-3-8b", "--gpu", "h100", "--memory", "80"], "write it like 80GB"),
    (["llama-3-8b", "--gpu", "h100", "--rate", "inf"], "--rate is inf"),
    (["llama-3-8b", "--gpu", "h100", "--set", "num_kv_heads=-8"], "at least 0"),
    (["mixtral-8x7b", "--gpu", "h100", "--set", "num_experts_per_tok=9"], "of only 8 experts"),
    (["llama-3-8b", "--gpu", "h100", "--set", "num_kv_heads=0"], "num_key_value_heads = 0 should be at"),
    (["llama-3-8b", "--gpu", "h100", "--set", "head_dim=0"], "head_dim = 0 should be at least 1"),
    (["llama-3-8b", "--gpu", "h100", "--set", "rope_theta=-3"], "must be above 0"),
    (["llama-3-8b", "--gpu", "h100", "--set", "num_kv_head=3"], "the nearest are num_kv_heads, num_heads"),
    (["llama-3-8b", "--gpu", "h100", "--rate", "3", "--arrivals", "waves"], "leave --rate and"),
    (["search", "llama-3-8b", "--arrivals", "waves"], "no use for --arrivals"),
    (["validate", "none.csv"], "no file none.csv"), (["llama-3-8b", "--gpu", ""], "--gpu is missing"),
    (["", "--gpu", "h100"], "no model"),
])
def test_a_mistake_is_told_in_one_line(words: list[str], says: str,
                                       capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *words]) == 2
    message = capsys.readouterr().err
    assert says in message and message.count("\n") == 1


def test_explain_and_compare_stand_below_the_plan_and_beside_it_in_json(
        capsys: pytest.CaptureFixture[str]) -> None:
    words = ("llama-3-8b", "--gpu", "h100", "--batch", "16", "--explain", "--compare")
    found = json.loads(said(capsys, *words, "--json"))
    assert {"key", "formula", "inputs", "source", "band"} <= set(found["explain"][0])
    assert {"knob", "sides", "measure_quality", "tokens_per_usd"} <= set(found["compare"][0])
    text = said(capsys, *words)
    assert "decode.attention.qkv" in text and "one change" in text and "tok/USD" in text


def test_an_infeasible_plan_says_no_and_names_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "llama-3-70b", "--gpu", "h100")
    assert "does NOT fit" in text and "the one change that makes it feasible: TP 2" in text


def test_the_other_doors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    claim = json.loads(said(capsys, "check-claim", "Llama-3-8B 300 tok/s on H100", "--json"))
    assert claim["possible"] is False and claim["explanations"]
    picture = tmp_path / "front.svg"
    words = ("search", "llama-3-8b", "--gpu", "h100,l40s", "--gpus", "2", "--tpot", "30ms",
             "--weights", "bf16")
    found = json.loads(said(capsys, *words, "--plot", str(picture), "--json"))
    assert found["best"][0]["usd_per_million"] > 0 and picture.read_text().startswith("<svg")
    assert "nothing is both cheaper and faster" in said(capsys, *words)


@pytest.mark.parametrize("words", [["--batch", "-3"], ["--memory", "80Gigs"], ["--memory", "-80GB"],
                                   ["--speculate", "gamma=none"], ["--ttft", "soon"], ["--link", "fast"],
                                   ["--set", "heads"]])
def test_a_value_that_cannot_be_read_names_its_flag(words: list[str],
                                                    capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plan", "llama-3-8b", "--gpu", "h100", *words])
    assert words[0] in capsys.readouterr().err


def test_a_plan_takes_half_a_second_as_a_whole_process(tmp_path: Path) -> None:
    """In units of a start of Python with what any plan needs of other packages, run in turns with it, since a
    busy machine stretches both; modules compiled. The quietest of a few pairs."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}

    def taken_s(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], check=True, capture_output=True, env=env, timeout=60)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    plan = ("-m", "ridgeline.cli", "plan", "llama-3-8b", "--gpu", "h100", "--json")
    start = ("-c", "import argparse, dataclasses, json, numpy, tomllib")
    taken_s(*plan)
    units = min(taken_s(*plan) / taken_s(*start) for _ in range(4))
    print(f"a plan: {units * START_S:.2f} s on an idle core")
    assert units * START_S < 0.5
