"""One record format: what is written is what is read, and a foreign line is named."""

from pathlib import Path

import pytest

from ridgeline.base.trace import JsonlTrace, RequestRecord, RingTrace, StepRecord, Tee, read_trace

STEP = StepRecord(
    step=3, num_decodes=2, num_chunks=1, prefill_tokens=30, num_sampled=2, context_tokens=90, running=3,
    waiting=1, used_pages=7, free_pages=20, num_copies=0,
    num_preemptions=0, num_failed=0, begun_s=1.0, started_s=1.25,
    finished_s=1.5, plan_s=0.001, commit_s=0.002, planned_s=None, measured_s=0.25, floor_s=0.125)
REQUEST = RequestRecord(
    id="a", choice=0, priority=0, tenant="t", num_prompt=5, num_cached=4, num_output=2, finish="stop",
    num_preemptions=0, wasted_tokens=1, arrived_s=0.5, first_scheduled_s=0.75, first_token_s=1.0,
    finished_s=2.0, token_times_s=(1.0, 2.0), tokenised_s=0.625, first_started_s=0.875,
    waits_s={"pages": 0.125})


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path, ring = tmp_path / "trace.jsonl", RingTrace(num_steps=1)
    trace = Tee(JsonlTrace(path, {"model": "tiny"}), ring)
    for record in (STEP, REQUEST, STEP):
        trace.add(record)
    trace.close()
    assert list(read_trace(path)) == [STEP, REQUEST, STEP]
    assert list(ring.steps) == [STEP] and list(ring.requests) == [REQUEST]
    assert STEP.num_tokens == 32
    assert '"model": "tiny"' in path.read_text().splitlines()[0]


@pytest.mark.parametrize(
    "line", ["{}", "nonsense", '{"kind": "step"}', '{"kind": "header", "format": 99}', "[]"])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"kind": "header", "format": 1}\n' + line + "\n")
    with pytest.raises(ValueError, match="line 2: not a trace record"):
        list(read_trace(path))
