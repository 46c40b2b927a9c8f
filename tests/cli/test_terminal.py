"""Protects the terminal commands against a real server and a real engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.process import Server
from tests.server.tiny import tiny_folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("tiny")))


def _run(*words: str, stdin: str = "", timeout_s: float = 60.0) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ridgeline", *words],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def test_chat_with_a_server_remembers_the_conversation(server: Server) -> None:
    words = ("chat", "--url", server.url, "--temperature", "0", "--max-tokens", "16")
    done = _run(*words, stdin="My name is Ada.\nWhat is my name?\n/reset\nMy name is Ada.\n")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    first = server.chat("My name is Ada.", max_tokens=16)["choices"][0]["message"]["content"]
    assert done.stdout.startswith(first) and done.stdout.endswith(first + "\n") and len(lines) >= 3


def test_a_server_that_is_not_there_is_one_line() -> None:
    done = _run("chat", "--url", "http://127.0.0.1:9", stdin="Hi\n")
    assert done.returncode == 2 and "cannot reach" in done.stderr and done.stderr.count("\n") == 1


def test_a_servers_refusal_is_shown(server: Server) -> None:
    done = _run("chat", "--url", server.url + "/v1", "--temperature", "-1", stdin="Hi\n")
    assert done.returncode == 2 and "temperature" in done.stderr


def test_complete_with_an_engine_of_its_own(tiny: str) -> None:
    words = ("--load-format", "dummy", "--no-progress", "--max-tokens", "4", "--temperature", "0")
    done = _run("complete", "-", tiny, *words, stdin="abc")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n")


def test_run_batch_and_again(tiny: str, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asks = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "ab", "max_tokens": 3}}
    lines = [{"custom_id": f"r{i}", **asks} for i in range(20)]
    source.write_text("\n".join(map(json.dumps, lines)))
    words = ("run-batch", str(source), str(target), tiny, "--load-format", "dummy", "--no-progress")
    done = _run(*words)
    assert done.returncode == 0 and "20 of 20" in done.stderr, done.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert {a["custom_id"] for a in answers} == {line["custom_id"] for line in lines}
    assert all(a["response"]["status_code"] == 200 for a in answers)
    assert "all requests are answered" in _run(*words).stderr


def test_doctor_accounts_for_the_start(tiny: str) -> None:
    done = _run("doctor", tiny, "--load-format", "dummy", "--no-progress")
    assert done.returncode == 0, done.stderr
    assert "isa" in done.stdout and "chosen" in done.stdout and "threads = " in done.stdout
    assert "  attention = C kernel: " in done.stdout or "  attention = torch: no C compiler" in done.stdout
    assert "  profile = " in done.stdout and "floor      one sequence reads" in done.stdout
    assert "given      model = " in done.stdout and "load_format = dummy" in done.stdout
    rows = [line.split(" s  ") for line in done.stdout.partition("\nstart\n")[2].splitlines()]
    assert len(rows) > 12 and {"weights", "prefill", "endpoints and the rest"} <= {name for _, name in rows}
    assert all(float(seconds) <= float(rows[0][0]) for seconds, _ in rows)
