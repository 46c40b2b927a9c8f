"""A real `ridgeline serve` process for black-box tests: started, asked over HTTP, ended, and looked after."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI
from prometheus_client.parser import text_string_to_metric_families

START_S = 60.0
PROBE: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 8,
}  # fmt: skip


def strict_json(body: bytes) -> Any:
    """Strict UTF-8, no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} in {body!r}")

    return json.loads(body.decode("utf-8", "strict"), parse_constant=refuse)


class Server:
    """One running server. http: a client with the key, when there is one."""

    def __init__(
        self, process: "subprocess.Popen[str]", url: str, output: list[str], key: str | None
    ) -> None:
        self.process = process
        self.url = url
        self.output = output
        self.key = key
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, headers=headers, timeout=60)
        self._probe: str | None = None

    # ---- asking

    def openai(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=60)

    def async_openai(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=60)

    def post(self, path: str, body: Mapping[str, Any] | bytes) -> httpx.Response:
        """The answer, its body checked to be strict JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        answer = self.http.post(path, content=content, headers={"Content-Type": "application/json"})
        strict_json(answer.content)
        return answer

    def chat(self, content: Any = "Hi", **fields: Any) -> Any:
        """A chat that must succeed: one user turn, or messages=; temperature 0 unless said otherwise."""
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        answer = self.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def complete(self, prompt: Any, **fields: Any) -> Any:
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def events(self, path: str, body: Mapping[str, Any]) -> list[Any]:
        """Every event of a stream but the last, which must be [DONE]; each is checked by itself."""
        events: list[Any] = []
        with self.http.stream("POST", path, json={"temperature": 0, **body, "stream": True}) as answer:
            assert answer.status_code == 200, answer.read()
            assert answer.headers["content-type"].startswith("text/event-stream")
            raw = b"".join(answer.iter_bytes())
        parts = raw.split(b"\n\n")
        assert parts[-1] == b"" and parts[-2] == b"data: [DONE]", raw[-200:]
        for part in parts[:-2]:
            assert part.startswith(b"data: ")
            events.append(strict_json(part[6:]))
        return events

    def refused(self, path: str, body: Mapping[str, Any] | bytes, status: int = 400) -> Any:
        """The error of a request that must be refused in the right form, streamed or not."""
        answer = self.post(path, body)
        assert answer.status_code == status, (answer.status_code, answer.text)
        assert answer.headers["content-type"] == "application/json"
        error = answer.json()["error"]
        assert error["message"] and error["type"] and error["code"] and "param" in error
        return error

    def probe(self) -> None:
        """The server still answers a plain chat as it did the first time."""
        began = time.monotonic()
        text = self.chat(**PROBE)["choices"][0]["message"]["content"]
        assert time.monotonic() - began < 10
        self._probe = self._probe or text
        assert text == self._probe

    # ---- looking inside

    def metrics(self) -> dict[str, float]:
        """Samples by name, with the labels that matter: name|value."""
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(self.http.get("/metrics").text):
            for sample in family.samples:
                extra = [v for k, v in sample.labels.items() if k not in ("model_name", "engine")]
                found["|".join([sample.name, *extra])] = sample.value
        return found

    def idle(self, timeout_s: float = 5.0) -> None:
        """Nothing runs, nothing waits, and no live block is left."""
        deadline = time.monotonic() + timeout_s
        names = ("num_requests_running", "num_requests_waiting", "kv_blocks_live", "kv_cache_usage_perc")
        while True:
            now = self.metrics()
            left = {name: now[f"ridgeline:{name}"] for name in names if now[f"ridgeline:{name}"]}
            if not left:
                return
            assert time.monotonic() < deadline, left
            time.sleep(0.05)

    def children(self) -> list[int]:
        """Process ids that this server has started."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    # ---- ending

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 20.0) -> int:
        """End it by a signal; nothing may be left behind."""
        children = self.children()
        self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        self.http.close()
        deadline = time.monotonic() + 3
        while any(Path(f"/proc/{pid}").exists() for pid in children):
            assert time.monotonic() < deadline, "the engine process outlived the server"
            time.sleep(0.05)
        return code


@contextmanager
def serving(
    *words: str, key: str | None = None, sockets: Path | None = None, engine: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:  # fmt: skip
    """Run `ridgeline serve ...` on a free port for the length of the block, and end it by SIGTERM."""
    server = launch(*words, key=key, sockets=sockets, engine=engine, environment=environment)
    try:
        yield server
        if server.process.poll() is None:
            assert server.stop() == 0, "\n".join(server.output)
    except Exception:
        print("the server's last words:", *server.output[-40:], sep="\n")  # why it answered with a failure
        raise
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


def launch(
    *words: str, key: str | None = None, sockets: Path | None = None, engine: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Server:  # fmt: skip
    """Start a server and wait until it says where it listens. sockets: the folder for its temporary files.
    engine: the module that runs as its engine process. environment: beside what is there."""
    environment = os.environ | (environment or {})
    environment.pop("RIDGELINE_API_KEY", None)
    if key is not None:
        environment["RIDGELINE_API_KEY"] = key
    if sockets is not None:
        environment["TMPDIR"] = str(sockets)
    program = ("ridgeline", "serve") if engine is None else ("tests.faults.serve", engine)
    process = subprocess.Popen(
        [sys.executable, "-m", *program, "--port", "0", "--no-progress", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
    )  # fmt: skip
    output: list[str] = []
    found: list[str] = []
    ready = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            output.append(line.rstrip())
            if (match := re.search(r"on (http://\S+)/v1", line)) is not None:
                found.append(match[1])
                ready.set()
        ready.set()

    threading.Thread(target=read, daemon=True).start()
    if not ready.wait(START_S) or not found:
        process.kill()
        process.wait()
        raise AssertionError("the server did not start:\n" + "\n".join(output))
    return Server(process, found[0], output, key)
