"""Protects the readers of traces: the numbers of each format, and bad rows named by their number."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.base.trace import JsonlTrace, RequestRecord
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.make import make_workload
from ridgeline.workload.offered import Offered

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:59:59.9500000,374,44
2023-11-16 19:00:00.0500001,396,109
2023-11-16 19:00:02,879,55
"""
SESSIONS = """suite,session,call_index,prompt_tokens,completion_tokens,num_messages
shop,a,0,100,10,1
shop,a,1,140,10,3
shop,a,2,50,10,1
shop,b,0,96,10,1
"""
RATES = """client,window_start_s,rate_rps,cv,pattern,pattern_arg1,pattern_arg2
0,0,2.0,1.0,Gamma,1.0,0.5
1,0,0.5,2.0,Weibull,0.6,1.0
0,600,4.0,1.0,Gamma,0.5,0.5
"""


def _read(tmp_path: Path, text: str, name: str = "trace.csv", prefix: str = "",
          **ask: float | str) -> list[Offered]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return list(make_workload(WorkloadAsk(trace=prefix + str(path), **ask)).requests)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefix", ["", "azure:"])
def test_azure_keeps_fractions_of_a_second(tmp_path: Path, prefix: str) -> None:
    requests = _read(tmp_path, AZURE, prefix=prefix)
    assert [r.arrived_s for r in requests] == pytest.approx([0.0, 0.1000001, 2.05], abs=1e-6)
    assert [(r.num_prompt, r.num_output) for r in requests] == [(374, 44), (396, 109), (879, 55)]
    assert [r.row for r in requests] == [1, 2, 3]


def test_a_scale_presses_arrivals_together(tmp_path: Path) -> None:
    requests = _read(tmp_path, AZURE, rate_scale=4.0)
    assert [r.arrived_s for r in requests] == pytest.approx([0.0, 0.025, 0.5125], abs=1e-6)
    assert len(_read(tmp_path, AZURE, rate_scale=4.0, duration_s=0.5)) == 2


def test_a_rate_takes_the_place_of_a_traces_arrivals(tmp_path: Path) -> None:
    requests = _read(tmp_path, AZURE, rate=100.0)
    assert [r.num_prompt for r in requests] == [374, 396, 879] and 0 < requests[-1].arrived_s < 0.5


def test_lengths_without_arrivals_need_a_rate(tmp_path: Path) -> None:
    text = "num_prefill_tokens,num_decode_tokens\n74,918\n290,905\n"
    assert [(r.num_prompt, r.num_output) for r in _read(tmp_path, text, rate=2.0)] == [(74, 918), (290, 905)]
    with pytest.raises(ConfigError, match="brings no arrivals"):
        _read(tmp_path, text)


def _mooncake(*rows: tuple[float, int, int, list[int]]) -> str:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    return "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)


def test_mooncake_spreads_a_stamp_and_keeps_full_blocks(tmp_path: Path) -> None:
    text = _mooncake((0, 1500, 5, [0, 1, 2]), (0, 1024, 5, [0, 9]), (0, 10, 5, [4]), (2000, 600, 5, [0, 3]))
    requests = _read(tmp_path, text, "trace.jsonl")
    assert [r.prefix for r in requests] == [(0, 1), (0, 9), (), (0,)]
    assert 0 < requests[0].arrived_s < requests[1].arrived_s < requests[2].arrived_s < 2
    assert requests[3].arrived_s == 2.0
    half = _read(tmp_path, text, "trace.jsonl", length_scale=0.5)
    assert [(r.num_prompt, r.prefix, r.block_tokens) for r in half[:2]] == [
        (750, (0, 1), 256), (512, (0, 9), 256)]


def test_sessions_share_their_own_text_and_their_suites_instructions(tmp_path: Path) -> None:
    requests = {r.row: r for r in _read(tmp_path, SESSIONS, rate=1.0)}
    first, longer, other, second = (requests[row].prefix for row in (1, 2, 3, 4))
    assert longer[:6] == first and len(longer) == 8
    assert second[:5] == first[:5] and second[5] != first[5]  # 96 tokens are 6 blocks, the last is not shared
    assert not set(other) & set(longer)
    order = [r.row for r in _read(tmp_path, SESSIONS, rate=1.0)]
    assert order.index(1) < order.index(2) < order.index(3)


def test_servegen_draws_rates_lengths_and_images(tmp_path: Path) -> None:
    sets = {"text_tokens": "{90: 0.5, 94: 0.5}", "image_tokens": "{100: 1.0}",
            "image_count": "{1: 0.5, 3: 0.5}", "output_tokens": "{6: 0.25, 7: 0.75}", "reason_ratio": "{}"}
    (tmp_path / "lengths.json").write_text(json.dumps({"0": sets, "21600": {**sets, "output_tokens": "{}"}}))
    (tmp_path / "rates.csv").write_text(RATES)
    trace = f"servegen:{tmp_path}/rates.csv,{tmp_path}/lengths.json"
    requests = make_workload(WorkloadAsk(trace=trace)).requests
    assert all(a.arrived_s <= b.arrived_s for a, b in pairwise(requests))
    first = [r for r in requests if r.arrived_s < 600]
    assert len(first) == pytest.approx(1500, rel=0.1) and len(requests) == pytest.approx(3900, rel=0.1)
    assert sum(r.tenant == "client 1" for r in first) == pytest.approx(300, rel=0.25)
    assert {r.num_prompt - 100 * r.num_tiles for r in requests} == {90, 94}
    assert np.mean([r.num_tiles for r in requests]) == pytest.approx(2, rel=0.05)
    assert np.mean([r.num_output for r in requests]) == pytest.approx(6.75, rel=0.02)
    alone = make_workload(WorkloadAsk(trace=f"servegen:{tmp_path}/lengths.json", rate=3.0, num_requests=5))
    assert len(alone.requests) == 5
    with pytest.raises(ConfigError, match="servegen:RATES"):
        make_workload(WorkloadAsk(trace=f"servegen:{tmp_path}/rates.csv"))


def _record(number: int, arrived_s: float, num_output: int, choice: int = 0) -> RequestRecord:
    return RequestRecord(id=str(number), choice=choice, priority=number, tenant="key", num_prompt=10 * number,
                         num_cached=0, num_output=num_output, finish="stop", num_preemptions=0,
                         wasted_tokens=0, arrived_s=arrived_s, first_scheduled_s=None, first_token_s=None,
                         finished_s=99.0)


def test_our_own_trace_comes_back_in_order_of_arrival(tmp_path: Path) -> None:
    trace = JsonlTrace(tmp_path / "own.jsonl")
    for record in (_record(2, 50.5, 4), _record(1, 50.0, 3), _record(3, 51.0, 0),
                   _record(1, 50.0, 3, choice=1)):
        trace.add(record)
    trace.close()
    workload = make_workload(WorkloadAsk(trace=str(tmp_path / "own.jsonl")))
    assert [(r.arrived_s, r.num_prompt, r.num_output, r.priority) for r in workload.requests] == [
        (0.0, 10, 3, 1), (0.5, 20, 4, 2)]
    assert "2 unanswered or further choices left out" in workload.about


HEAD = "arrival_s,prompt_tokens,output_tokens\n0.5,7,3\n1.5,7,3\n"


@pytest.mark.parametrize(("text", "words"), [
    (HEAD + "1.0,7,3\n", r"row 3 \(line 4\): arrival_s goes back in time"),
    (HEAD + "2.0,0,3\n", r"row 3 \(line 4\): prompt_tokens is 0, a number from 1 up"),
    (HEAD + "\n2.0,7,0\n", r"row 3 \(line 5\): output_tokens is 0"),
    (HEAD + "2.0,nan,3\n", r"row 3 .*prompt_tokens is nan"),
    (HEAD + "nan,7,3\n", r"row 3 .*arrival_s is nan"),
    (HEAD + "2.0,7\n", r"row 3 .*output_tokens is missing"),
    (HEAD + "2.0,7,many\n", r"row 3 .*'many', which is no number"),
    (HEAD + "2.0,7.5,3\n", r"row 3 .*tokens are whole"),
    (HEAD + "2.0,1e30,3\n", r"row 3 .*prompt_tokens is 1e\+30, at most 16777216"),
    (AZURE + "soon: later,7,3\n", r"row 4 .*TIMESTAMP is 'soon: later', which is no time"),
    ("arrival_s,output_tokens\n", "has no column prompt_tokens"),
    ("when,much\n", "of no known trace format.*azure, lengths, mooncake"),
    (_mooncake((5, 9, 9, [])) + "\n{", r"row 2 \(line 2\): not JSON"),
    (_mooncake((5, 9, 9, []), (4, 9, 9, [])), r"row 2 .*goes back in time"),
    (_mooncake((5, 2000, 9, [1])), r"row 1 .*hash_ids"),
    (SESSIONS.replace("a,1", "a,0"), r"row 2 .*call_index does not grow"),
    ("", "of no known trace format"),
    (HEAD.splitlines()[0], "the workload is empty"),
])
def test_bad_rows_are_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        if text.startswith("suite"):
            _read(tmp_path, text, rate=1.0)
        else:
            _read(tmp_path, text)


def test_a_traces_own_arrivals_are_not_drawn_too(tmp_path: Path) -> None:
    for arrival, words in (("gamma:2", "needs a rate"), ("weekly", "no arrival named 'weekly'")):
        with pytest.raises(ConfigError, match=words):
            _read(tmp_path, HEAD, arrival=arrival)


def test_missing_files_columns_and_formats_are_told(tmp_path: Path) -> None:
    for trace, words in ((f"azure:{tmp_path}/none.csv", "no trace file"),
                         (f"azur:{tmp_path}/x", "did you mean"),
                         (f"{tmp_path}/none.csv", "cannot read the trace")):
        with pytest.raises(ConfigError, match=words):
            make_workload(WorkloadAsk(trace=trace))
    (tmp_path / "t.csv").write_text(HEAD)
    with pytest.raises(ConfigError, match="no column TIMESTAMP, ContextTokens, GeneratedTokens"):
        make_workload(WorkloadAsk(trace=f"azure:{tmp_path}/t.csv"))
