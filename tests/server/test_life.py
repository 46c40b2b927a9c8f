"""Protects a server's life: it says what it is, fails in one line, ends in order and leaves nothing behind.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.process import Server, launch, serving, strict_json
from tests.server.tiny import tiny_folder

LONG = {"prompt": [5, 6, 7], "max_tokens": 1500, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("tiny"))


def _words(tiny: Path) -> tuple[str, ...]:
    return (str(tiny), "--load-format", "dummy", "--kv-cache-bytes", "4MB")


@contextlib.contextmanager
def _stream(server: Server, **change: Any) -> Iterator[Iterator[bytes]]:
    with server.http.stream("POST", "/v1/completions", json=LONG | change) as answer:
        assert answer.status_code == 200
        lines = (line.encode() for line in answer.iter_lines() if line)
        next(lines)
        yield lines


def _fails(*words: str, timeout_s: float = 30.0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "serve", "--port", "0", "--no-progress", *words],
        capture_output=True, text=True, timeout=timeout_s,
    )  # fmt: skip
    assert done.returncode not in (0, None) and "Traceback" not in done.stderr, done.stderr
    assert "http://" not in done.stdout
    return done.stderr


def test_a_server_from_its_first_line_to_its_last(tiny: Path, tmp_path: Path) -> None:
    """The start says what is served; SIGTERM lets work finish, refuses new work, and leaves nothing behind.
    """
    server = launch(*_words(tiny), "--served-model-name", "small", sockets=tmp_path)
    text = "\n".join(server.output)
    assert "serves small" in text and "KV cache" in text and " bytes = " in text
    assert "tokens of prompt and output" in text
    _try_the_line_to_try(server)
    assert server.http.get("/v1/models").json()["data"][0]["root"] == str(tiny)
    assert server.http.get("/labs/api/kv-cache").json()["numbers"], "the labs stand beside the API"
    codes: list[int] = []
    with _stream(server) as lines:
        stopping = threading.Thread(target=lambda: codes.append(server.stop(timeout_s=40)))
        stopping.start()
        deadline = time.monotonic() + 5
        while httpx.get(f"{server.url}/ready").status_code != 503:
            assert time.monotonic() < deadline
        refused = httpx.post(f"{server.url}/v1/completions", json={"prompt": [5], "max_tokens": 1})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
        assert httpx.get(f"{server.url}/health").status_code == 200
        rest = list(lines)
    assert rest[-1] == b"data: [DONE]" and b'"finish_reason":"length"' in rest[-2]
    stopping.join(40)
    assert codes == [0] and not list(tmp_path.iterdir()), "the socket's folder is gone"


def _try_the_line_to_try(server: Server) -> None:
    def found() -> list[str]:
        return [line for line in server.output if line.startswith("try: curl")]

    deadline = time.monotonic() + 5
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    done = subprocess.run(found()[0].removeprefix("try: "), shell=True, capture_output=True, timeout=30)
    assert strict_json(done.stdout)["usage"]["completion_tokens"] > 0


def test_what_outlasts_the_deadline_is_ended_with_an_event(tiny: Path) -> None:
    """Ctrl-C does the same as SIGTERM, and a second one does not wait for the deadline."""
    server = launch(*_words(tiny), "--shutdown-timeout", "60")
    with _stream(server, n=8, max_tokens=2000) as lines:
        began = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        server.process.send_signal(signal.SIGINT)
        rest = list(lines)
    assert rest[-1] == b"data: [DONE]" and b"shutting_down" in rest[-2]
    assert server.process.wait(10) == 0 and time.monotonic() - began < 15
    server.http.close()


def test_the_engine_ends_with_its_server_even_by_sigkill(tiny: Path, tmp_path: Path) -> None:
    server = launch(*_words(tiny), sockets=tmp_path)
    assert server.children()
    server.stop(signal.SIGKILL)
    deadline = time.monotonic() + 3
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, "the socket's folder was left behind"
        time.sleep(0.05)


def test_a_killed_engine_is_told_and_started_again(tiny: Path, tmp_path: Path) -> None:
    """To clients at once, to /health meanwhile; the next engine answers as the first did, that leaves nothing
    behind."""
    server = launch(*_words(tiny), sockets=tmp_path)
    server.probe()
    (engine,) = server.children()
    with _stream(server) as lines:
        os.kill(engine, signal.SIGKILL)
        began = time.monotonic()
        rest = list(lines)
    assert rest[-1] == b"data: [DONE]" and b"engine_dead" in rest[-2] and time.monotonic() - began < 2
    answer = server.http.get("/health")
    assert answer.status_code == 503 and "SIGKILL" in answer.json()["status"]
    assert server.refused("/v1/completions", {"prompt": [5]}, 503)["code"] == "engine_dead"
    assert server.metrics()["ridgeline:engine_restarts_total"] == 0
    while server.http.get("/health").status_code != 200:
        assert time.monotonic() - began < 30
        time.sleep(0.05)
    server.probe()
    server.idle()
    assert server.metrics()["ridgeline:engine_restarts_total"] == 1 and len(list(tmp_path.iterdir())) == 1
    assert server.stop() == 0 and not list(tmp_path.iterdir())


def test_a_port_in_use_is_said_before_anything_loads(tiny: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-m", "ridgeline", "serve", *_words(tiny), "--port", str(port)],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
    assert done.returncode == 2 and str(port) in done.stderr and done.stderr.count("\n") == 1


def test_mistakes_are_one_line(tiny: Path, tmp_path: Path) -> None:
    """Of this process and of the engine's."""
    assert "nowhere" in _fails(str(tmp_path / "nowhere"))
    assert "template" in _fails(*_words(tiny), "--chat-template", str(tmp_path / "none.jinja"))
    assert "max_model_len" in _fails(*_words(tiny), "--max-model-len", "1M")


def test_a_model_without_a_tokenizer_serves_token_ids() -> None:
    words = ("smollm2-135m", "--load-format", "dummy", "--kv-cache-bytes", "64MB", "--dtype", "bfloat16",
             "--hf-overrides", '{"num_hidden_layers": 1}')
    with serving(*words) as server:
        answer = server.complete([5, 6], max_tokens=3, ignore_eos=True)
        assert len(answer["choices"][0]["token_ids"]) == 3
        assert server.refused("/v1/completions", {"prompt": "text"})["param"] == "prompt"
        assert server.refused("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
        server.idle()
