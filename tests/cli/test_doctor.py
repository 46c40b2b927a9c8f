"""Protects the ledger of a start: no second without a name, at any level."""

import pytest

from ridgeline.commands.doctor_ledger import Part, start_ledger

SECONDS = {"imports": 0.5, "open": 0.1, "text": 0.3, "engine": 2.0, "total": 2.6}
STARTUP = {"imports_s": 1.2, "ready_s": 1.9, "phases_s": {"open": 0.1, "weights": 0.4}}
TTFT = {"tokenise": 0.01, "prefill": 0.2}


def _check(part: Part) -> None:
    if part.inside:
        assert sum(one.seconds for one in part.inside) == pytest.approx(part.seconds, abs=1e-12)
    for one in part.inside:
        _check(one)


def test_every_level_sums_to_the_one_above() -> None:
    ledger = start_ledger(SECONDS, STARTUP, asked_s=2.65, told_s=2.9, ttft_parts_s=TTFT)
    _check(ledger)
    found = {line.split(" s  ")[1]: float(line.split()[0]) for line in ledger.lines()}
    assert found["from exec to the first token"] == 2.9 and found["first request"] == 0.25
    assert found["its launch and its word that it serves"] == 0.1
    assert found["scheduler, tables and the rest"] == 0.2 and found["endpoints and the rest"] == 0.05
    assert found["reading it and writing the answer"] == 0.04
    indents = [len(line) - len(line.lstrip()) for line in ledger.lines()]
    assert indents[0] < indents[1] and max(indents) == indents[0] + 6
