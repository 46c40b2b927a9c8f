"""C-16 to C-19: prefix reuse at block borders, windows, salts, requests that can never fit, 8-bit caches."""

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.cases.near import ASK, same
from tests.server.process import Server, serving
from tests.server.tiny import tiny_folder

BLOCK = 16
MODEL = "SmolLM2-135M-Instruct"


def _ids(length: int, start: int = 0) -> list[int]:
    return [(7 * i + start) % 250 for i in range(length)]


# ---- C-16


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """A small model with its prefix cache on, and the same without any cache."""
    folder = str(tiny_folder(tmp_path_factory.mktemp("cached")))
    words = (folder, "--load-format", "dummy", "--dtype", "float32")
    with serving(*words, "--kv-cache-bytes", "8MB") as on, serving(*words, "--no-cache") as off:
        yield on, off


@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_c16_prompts_of_whole_blocks(cached: tuple[Server, Server], blocks: int, extra: int) -> None:
    on, off = cached
    length = blocks * BLOCK + extra
    body: dict[str, Any] = {"prompt": _ids(length, 11 * length), "max_tokens": 12, "ignore_eos": True, **ASK}
    expected = off.complete(**body)
    answers = [on.complete(**body) for _ in range(3)]
    with ThreadPoolExecutor(4) as pool:
        answers += [f.result() for f in [pool.submit(on.complete, **body) for _ in range(4)]]
    reused = [a["usage"]["prompt_tokens_details"]["cached_tokens"] for a in answers]
    assert reused[0] == 0 and all(r <= length - 1 for r in reused)
    assert all(r >= (length - 1) // BLOCK * BLOCK for r in reused[1:])
    for answer in answers:
        same(answer, expected)
    on.idle()


def test_c16_an_answer_is_a_prefix_too(cached: tuple[Server, Server]) -> None:
    """The next turn finds the last answer's blocks."""
    on, off = cached
    first = on.complete(_ids(40, 3), max_tokens=24, ignore_eos=True, **ASK)
    turn: dict[str, Any] = {
        "prompt": [*_ids(40, 3), *first["choices"][0]["token_ids"], 9], "max_tokens": 8, "ignore_eos": True,
        **ASK,
    }  # fmt: skip
    second = on.complete(**turn)
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] >= 48
    same(second, off.complete(**turn))


def test_c16_past_the_window(tmp_path: Path) -> None:
    """A sliding-window model whose output runs far past the window, against recomputing all at every step."""
    window = 32
    folder = str(tiny_folder(
        tmp_path, architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=window
    ))  # fmt: skip
    words = (folder, "--load-format", "dummy", "--dtype", "float32", "--max-model-len", "512")
    body: dict[str, Any] = {"max_tokens": 3 * window, "ignore_eos": True, **ASK}
    with serving(*words, "--kv-cache-bytes", "4MB") as on, serving(*words, "--no-cache") as off:
        for prompt in (_ids(5), _ids(100, 4)):
            expected = off.complete(prompt, **body)
            for _ in range(2):
                same(on.complete(prompt, **body), expected)
        on.idle()


# ---- C-17


def test_c17_salts_are_kept_apart(server: Server) -> None:
    prompt = [1000 + i for i in range(200)]
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, **ASK}
    answers = {}
    for turn, salt in enumerate(("x", "y", "x", None, "y")):
        answer = server.complete(**body if salt is None else body | {"cache_salt": salt})
        answers[turn] = (answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer)
    reused = [answers[turn][0] for turn in range(5)]
    assert reused[0] == reused[1] == reused[3] == 0 and min(reused[2], reused[4]) >= 192
    for _, answer in answers.values():
        same(answer, answers[0][1])


@pytest.mark.parametrize("salt", ["", 5, [], {}, True, "x" * 300])
def test_c17_a_salt_is_a_string(server: Server, salt: Any) -> None:
    for path, body in (
        ("completions", {"prompt": "a"}),
        ("chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
    ):
        assert server.refused(f"/v1/{path}", body | {"cache_salt": salt})["param"] == "cache_salt"


# ---- C-18


@pytest.fixture(scope="module")
def tight() -> Iterator[Server]:
    """The default model with a KV cache of about 512 tokens and a context of 2048."""
    bytes_per_token = 30 * 2 * 3 * 64 * 2
    words = ("--max-model-len", "2048", "--kv-cache-bytes", str(33 * BLOCK * bytes_per_token))
    with serving(*words, "--kv-cache-dtype", "bfloat16") as server:
        yield server


def test_c18_the_start_names_the_largest_request(tight: Server) -> None:
    (line,) = (line for line in tight.output if "tokens of prompt and output" in line)
    assert "512" in line and "2,048" in line


def test_c18_what_can_never_fit_delays_nobody(tight: Server) -> None:
    began = time.monotonic()
    with ThreadPoolExecutor(7) as pool:
        too_long = pool.submit(tight.post, "/v1/completions", {"prompt": [5] * 600, "max_tokens": 4})
        cut = pool.submit(
            tight.complete, list(range(300, 600)), max_tokens=400, ignore_eos=True, stream=False
        )
        short = [pool.submit(tight.chat, f"Say {i}.", max_tokens=8) for i in range(5)]
        refused = too_long.result()
        assert refused.status_code == 400 and refused.json()["error"]["code"] == "kv_cache_exceeded"
        assert "600" in refused.text and "512" in refused.text
        assert all(future.result()["usage"]["completion_tokens"] for future in short)
        answer = cut.result()
    assert time.monotonic() - began < 30
    assert (
        answer["choices"][0]["finish_reason"] == "length"
        and 200 <= answer["usage"]["completion_tokens"] <= 212
    )
    tight.idle()


def test_c18_neighbours_at_the_border(tight: Server) -> None:
    """One token less fits, alone and as a second prompt; one more is refused on every route, by the name that
    the field has there, and takes nothing from the prompts that came with it."""
    most = [7] * 511
    for prompt in (most, [[5], most]):
        answer = tight.complete(prompt, max_tokens=4, ignore_eos=True)
        assert answer["choices"][-1]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == (1 if prompt is most else 5)
    text = "word " * 600
    turn = [{"role": "user", "content": text}]
    for path, body, param in (
        ("/v1/completions", {"prompt": [7] * 512}, "prompt"),
        ("/v1/completions", {"prompt": [[5], [7] * 512], "stream": True}, "prompt"),
        ("/v1/chat/completions", {"messages": turn, "stream": True}, "messages"),
        ("/v1/messages", {"model": "m", "messages": turn, "max_tokens": 4}, "messages"),
        ("/v1/responses", {"input": text}, "input"),
        ("/v1/embeddings", {"input": text}, "input"),
        ("/v1/score", {"pairs": [{"context": "a", "continuation": " b"},
                                 {"context": text, "continuation": "a"}]}, "pairs[1]"),
    ):  # fmt: skip
        began = time.monotonic()
        error = tight.post(path, body | ({"model": MODEL} if "model" in body else {})).json()["error"]
        assert error["code"] == "kv_cache_exceeded" and "512" in error["message"], (path, error)
        assert error["param"].startswith(param) and time.monotonic() - began < 2
    tight.idle()


@pytest.mark.soak
def test_c18_choices_that_fit_alone_and_not_together(tight: Server) -> None:
    """Four choices of one prompt need more than there is: each has all its tokens, others are served too."""
    with ThreadPoolExecutor(2) as pool:
        wide = pool.submit(tight.complete, _ids(200), n=4, max_tokens=120, ignore_eos=True, temperature=1.0,
                           seed=1)
        assert tight.chat("Say 1.", max_tokens=4)["usage"]["completion_tokens"]
        assert wide.result()["usage"]["completion_tokens"] == 4 * 120
    tight.idle()


# ---- C-19


@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_c19_an_8_bit_cache_is_refused_at_the_start(kind: str, tmp_path: Path) -> None:
    """There is none here, and so no scales: the start says what there is, before anything is loaded."""
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"kv-cache-dtype: {kind}\n")
    for words in (["--kv-cache-dtype", kind], ["--config", str(settings)]):
        ended = subprocess.run([sys.executable, "-m", "ridgeline", "serve", "--port", "0", *words],
                               capture_output=True, text=True, timeout=30)  # fmt: skip
        assert ended.returncode == 2 and "http://" not in ended.stdout + ended.stderr
        assert kind in ended.stderr and "bfloat16" in ended.stderr and "Traceback" not in ended.stderr
