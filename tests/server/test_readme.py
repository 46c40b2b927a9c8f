"""Protects the README's examples: each runs as it stands, against a real server or the default model."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.server.process import Server

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
HOST = "http://127.0.0.1:8000"


def _example(language: str, word: str) -> str:
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [block for block in blocks if word in block]
    return found


def test_the_openai_example(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    code = _example("python", "OpenAI")
    assert HOST in code
    exec(compile(code.replace(HOST, server.url), "README.md", "exec"), {})
    assert len(capsys.readouterr().out) > 10


def test_the_curl_example(server: Server) -> None:
    words = shlex.split(_example("sh", "curl"))
    assert words[1] == f"{HOST}/v1/chat/completions"
    answer = server.post("/v1/chat/completions", words[words.index("-d") + 1].encode())
    assert answer.status_code == 200 and answer.json()["choices"][0]["message"]["content"]
    assert json.loads(words[words.index("-d") + 1])["model"] == answer.json()["model"]


def test_the_python_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(_example("python", "LLM"), "README.md", "exec"), {})
    assert len(capsys.readouterr().out.strip()) > 10
