"""Protects a benchmark's figures: floors of the steps it saw, percentiles by name, one meaning for each."""

import json

import pytest

from ridgeline.bench.report import Report, StepOf, summarize
from ridgeline.ledger.price import Price
from ridgeline.ledger.profile import MachineProfile
from ridgeline.spec.hardware import hardware
from tests.bench.records import request, step
from tests.ledger.shapes import Step, decodes, shape, uniform

H100 = hardware("h100")
PRICE = Price(uniform(shape("smollm2-135m")), H100, flops_per_s=H100.peak_rate)
MACHINE = MachineProfile(name="this run", threads=2, memory_bytes=10**9, read_bytes_per_s=28e9,
                         flops_per_s={"float32": 84e9, "bfloat16": 191e9},
                         about={"processor": "any", "cores": "2", "torch": "2.13.0", "commit": "abc",
                                "load": "0.0"})


@pytest.mark.parametrize(("record", "same"), [
    (step(num_decodes=4, context_tokens=400, measured_s=1.0), decodes(4, 100)),
    (step(num_chunks=1, prefill_tokens=64, context_tokens=64, measured_s=1.0), Step([(0, 64)])),
    (step(num_chunks=1, prefill_tokens=64, context_tokens=192, measured_s=1.0, num_sampled=0),
     Step([(128, 64)], num_sampled=0))])
def test_a_record_prices_as_the_step_it_was(record: object, same: Step) -> None:
    found = StepOf(record)  # type: ignore[arg-type]
    assert PRICE(found) == pytest.approx(PRICE(same))
    assert PRICE.moved(found) == pytest.approx(PRICE.moved(same))


def test_the_share_of_the_floor_is_floor_over_measured() -> None:
    floor = PRICE(decodes(1, 10))
    seen = summarize([step(num_decodes=1, context_tokens=10, measured_s=floor * f) for f in (2, 4, 8)], PRICE)
    assert seen is not None and seen.num_steps == 3 and seen.tokens == 1
    assert seen.share == pytest.approx(0.25) and seen.tok_s == pytest.approx(1 / (4 * floor))
    assert summarize([], PRICE) is None


def test_json_and_text_say_the_same() -> None:
    records = [request(f"r{i}", first_s=0.1, tpot_s=0.01 * (i + 1), num_output=11) for i in range(3)]
    done = [step(num_decodes=1, context_tokens=20, measured_s=8e-3)]
    report = Report(what="latency", model="tiny", numerics="float32", concurrency=1, prompt_tokens=8,
                    output_tokens=11, wall_s=2.0, requests=records, decode=summarize(done, PRICE),
                    prefill=None, machine=MACHINE)
    found = json.loads(json.dumps(report.as_json(), allow_nan=False))
    assert found["output_tok_s"] == pytest.approx(33 / 2.0)
    assert found["total_tok_s"] == pytest.approx((33 + 24) / 2.0)
    assert found["tpot_s"]["p50"] == pytest.approx(0.02) and found["ttft_s"]["p99"] == pytest.approx(0.1)
    assert found["decode_step"]["share_of_floor"] == pytest.approx(PRICE(decodes(1, 20)) / 8e-3)
    assert found["prefill_step"] is None
    text = report.text()
    for said in ("16.5 tok/s", "TPOT   p50 20 ms", "2 of 2 cores", "      8 ms", "no step was of this"):
        assert said in text, text
