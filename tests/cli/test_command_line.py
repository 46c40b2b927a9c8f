"""Protects the command line: its frozen flags, its file, its speed, and errors of one line."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.cli import build_parser, main
from ridgeline.commands.flags import engine_config

ENGINE = {
    "--tokenizer", "--chat-template", "--revision", "--load-format", "--dtype", "--hf-overrides",
    "--quantization", "--max-model-len", "--kv-cache-bytes", "--host-kv-bytes",
    "--lora", "--max-loras", "--max-lora-rank", "--kv-watermark-bytes", "--kv-cache-dtype", "--block-tokens",
    "--max-num-seqs", "--max-num-batched-tokens", "--no-prefix-caching", "--no-cache", "--policy",
    "--speculate", "--speculate-max", "--no-jump-ahead", "--device", "--ttft", "--tpot", "--overload",
    "--threads", "--seed", "--deterministic", "--trace-file", "--trace-texts", "--no-progress",
}  # fmt: skip
KEY = {"--name", "--priority", "--requests-per-minute", "--tokens-per-minute", "--max-concurrent",
       "--thinking-budget", "--admin"}  # fmt: skip
SAMPLING = {"--max-tokens", "--temperature", "--top-p"}
FLAGS = {
    "serve": ENGINE | {
        "--host", "--port", "--api-key", "--api-key-file", "--allowed-origin", "--served-model-name",
        "--shutdown-timeout", "--stall-timeout", "--otlp-endpoint", "--config",
        "--enable-sleep-mode",
        "--ssl-certfile", "--ssl-keyfile", "--log-format", "--log-prompts", "--max-body-bytes",
        "--max-nesting", "--max-choices",
    },
    "chat": ENGINE | SAMPLING | {"--url", "--api-key", "--system"},
    "complete": ENGINE | SAMPLING,
    "run-batch": ENGINE,
    "plan": {
        "--gpu", "--gpus", "--tp", "--pp", "--ep", "--dp", "--weights", "--weight-only", "--kv", "--memory",
        "--workspace", "--price", "--set", "--prompt", "--output", "--batch", "--rate", "--concurrency",
        "--arrivals", "--ttft", "--tpot", "--images", "--tiles", "--vision-encoder", "--pooling",
        "--text-tokens", "--shared-prefix", "--read-prefix-once", "--prefix-hit", "--prompt-logprobs",
        "--speculate", "--disaggregate", "--link", "--skew", "--explain", "--compare", "--plot", "--json",
        "--profile", "--max-loras", "--max-lora-rank",
    },
    "simulate": {
        "--gpu", "--tp", "--pp", "--ep", "--weights", "--kv-cache-dtype", "--memory", "--price", "--profile",
        "--reading", "--kv", "--example", "--policy", "--compare", "--ttft", "--tpot", "--max-num-seqs",
        "--max-num-batched-tokens",
        "--no-prefix-caching", "--trace", "--lengths", "--rate", "--arrival", "--rate-scale",
        "--num-requests", "--duration", "--length-scale", "--seed", "--attainment", "--json",
        "--replicas", "--prefill", "--decode", "--router", "--link", "--html", "--replay",
        "--host-kv-bytes", "--patience",
    },
    "bench": set(),
    **{f"bench {what}": ENGINE | {
        "--prompt-tokens", "--output-tokens", "--concurrency", "--num-requests", "--json", "--profile",
        "--tune", "--batch", "--context",
    } for what in ("latency", "throughput", "probe", "speculate", "structured", "kernels", "startup", "steps",
                   "simulated")},
    "bench serve": {
        "--url", "--model", "--api-key", "--endpoint", "--no-ignore-eos", "--timeout", "--dataset", "--rate",
        "--arrival", "--rate-scale", "--length-scale", "--num-prompts", "--duration", "--max-concurrency",
        "--warmup", "--patience", "--seed", "--goodput", "--percentiles", "--save", "--html", "--json",
        "--no-progress", "--compare", "--max-failed",
    },
    "labs": {"--host", "--port"},
    "calibrate": {"--profile", "--device", "--threads"},
    "key": set(),
    "key new": KEY,
    "key hash": KEY,
    "doctor": ENGINE,
    "verify": ENGINE | {"--json"},
    "version": set(),
}  # fmt: skip


def _commands(parser: argparse.ArgumentParser | None = None,
              before: str = "") -> dict[str, argparse.ArgumentParser]:
    """Every parser by its words: "serve", "bench serve"."""
    found: dict[str, argparse.ArgumentParser] = {}
    for action in (parser or build_parser())._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                found |= {before + name: sub, **_commands(sub, f"{before}{name} ")}
    return found


def test_the_list_of_flags_is_frozen() -> None:
    """A flag is a promise: adding one is a decision that this list records."""
    found = {
        name: {flag for a in parser._actions for flag in a.option_strings} - {"-h", "--help"}
        for name, parser in _commands().items()
    }
    assert found == FLAGS


def test_every_flag_explains_itself() -> None:
    bare = [
        f"{name} {action.option_strings}"
        for name, parser in _commands().items()
        for action in parser._actions
        if not action.help and action.choices is None
    ]
    assert not bare, bare


def test_flags_become_the_engines_settings() -> None:
    config = engine_config(build_parser().parse_args([
        "serve", "some/model", "--kv-cache-bytes", "2GiB", "--max-model-len", "32k", "--no-prefix-caching",
        "--hf-overrides", '{"rope_scaling": null}', "--no-progress", "--threads", "3",
    ]))  # fmt: skip
    assert (
        config.model == "some/model" and config.kv_cache_bytes == 2 * 2**30 and config.max_model_len == 32768
    )
    assert not config.prefix_caching and not config.progress and config.threads == 3
    assert config.hf_overrides == {"rope_scaling": None}
    assert engine_config(build_parser().parse_args(["serve"])) == EngineConfig(), "doctor tells these"


@pytest.mark.parametrize(
    "words",
    [
        ["--max-num-seqs", "0"],
        ["--kv-cache-bytes", "lots"],
        ["--kv-cache", "1GB"],
        ["--no-such-flag"],
        ["--dtype", "int3"],
        ["--hf-overrides", "[]"],
        ["--stall-timeout", "-1"],
        ["--api-key", ""],
    ],
)
def test_wrong_flags_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", *words])
    assert left.value.code == 2 and words[0] in capsys.readouterr().err


def test_a_flag_that_is_nearly_right_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["serve", "--max-num-sequence=5", "--nothing-like-it"])
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--max-num-sequence=5 --nothing-like-it; did you mean --max-num-seqs?" in said


@pytest.mark.parametrize(("words", "says"), [
    (["--trace-texts"], "--trace-file"), (["--speculate-max", "2"], "--speculate"),
    ([str(Path(__file__)), "--revision", "main"], "--revision"), (["--ssl-keyfile", "x"], "--ssl-certfile"),
    (["--max-nesting", "129"], "128"), (["--revision", "main"], "no model is named"),
    (["--no-cache", "--no-prefix-caching"], "--no-prefix-caching"),
])  # fmt: skip
def test_a_flag_that_would_do_nothing_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", *words]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("words", "says"), [
    (["complete", "a", "--lora", "b=c"], "--lora"),
    (["complete", "a", "--chat-template", "b"], "--chat-template"),
    (["chat", "--api-key", "a"], "--api-key"), (["chat", "--overload", "shed"], "--overload"),
    (["chat", "--url", "http://a", "--threads", "2"], "--threads"),
    (["chat", "--url", "http://a", "b"], "model"),
])  # fmt: skip
def test_what_a_terminal_command_leaves_without_effect_is_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert says in said and "leave it out" in said


def _parsed(
    tmp_path: Path, text: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> argparse.Namespace:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    seen: list[argparse.Namespace] = []
    monkeypatch.setattr("ridgeline.commands.serve.run", lambda args: seen.append(args) or 0)
    assert main(["serve", "--config", str(file), *words]) == 0
    return seen[0]


def test_the_file_gives_flags_and_the_command_line_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "model: file-model\nport: 9\nmax_num_seqs: 7\nkv-cache-bytes: 1GiB\nno-prefix-caching: true\n"
        "no-cache: false\napi-key: [a, b]\nserved-model-name: -dash\n"
    )
    args = _parsed(tmp_path, text, ["--port", "10"], monkeypatch)
    assert args.model == "file-model" and args.port == 10 and args.max_num_seqs == 7
    assert args.kv_cache_bytes == 2**30 and not args.prefix_caching and args.cache
    assert args.api_key == ["a", "b"] and args.served_model_name == "-dash"
    assert _parsed(tmp_path, text, ["cli-model"], monkeypatch).model == "cli-model"
    assert _parsed(tmp_path, text, ["--api-key", "c"], monkeypatch).api_key == ["c"], "no sum of two lists"


def test_the_file_gives_texts_as_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """YAML alone would read the numbers 3.1, 83 and 2.0 here."""
    text = "model: 3.10\napi-key: [0123, 1_000]\nserved-model-name: 2.00\nseed: -7\n"
    args = _parsed(tmp_path, text, ["--port", "10"], monkeypatch)
    assert (args.model, args.api_key, args.served_model_name) == ("3.10", ["0123", "1_000"], "2.00")
    assert args.seed == -7 and args.port == 10


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max-num-sequences: 5", "did you mean 'max-num-seqs'"),
        ("config: other.yaml", "no flag"),
        ("port: 1\nhost: a\nport: 2", "port stands there twice"),
        ("max-num-seqs: 1\nmax_num_seqs: 2", "max-num-seqs stands there twice"),
        ("", "expected lines"),
        ("no-cache: 5", "true or false"),
        ("port: true", "cannot be"),
        ("port: {a: 1}", "cannot be"),
        ("port: [1, 2]", "cannot be"),
        ("model:", "model cannot be"),
        ("model: [a]", "model cannot be"),
        ("- a\n- b", "expected lines"),
        ("a: [", "while parsing"),
    ],
)
def test_mistakes_in_the_file_are_errors(
    tmp_path: Path, text: str, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    assert main(["serve", "--config", str(file)]) == 2
    message = capsys.readouterr().err
    assert says in message and str(file) in message and message.count("\n") == 1


@pytest.mark.parametrize("words, says", [
    (["--allowed-origin", "chat.example"], "https://chat.example"), (["--served-model-name", ""], "is empty"),
    (["--allowed-origin", "https://chat.example/"], "https://chat.example"), (["--host", ""], "is empty"),
    (["--seed", str(2**63)], "64 bits"),
])  # fmt: skip
def test_values_that_no_client_could_meet_are_errors(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["serve", *words])
    assert says in capsys.readouterr().err


def test_a_missing_file_is_an_error_of_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--config", "/nowhere.yaml"]) == 2
    assert capsys.readouterr().err.startswith("ridgeline serve: error: --config /nowhere.yaml")


def test_a_mistake_is_one_line_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(args: argparse.Namespace) -> int:
        raise ConfigError("that cannot be")

    monkeypatch.setattr("ridgeline.commands.doctor.run", fail)
    assert main(["doctor"]) == 2
    assert capsys.readouterr().err == "ridgeline doctor: error: that cannot be\n"


@pytest.mark.parametrize("words", [["--help"], ["version"], ["serve", "--help"]])
def test_no_command_loads_torch_to_say_what_it_is(words: list[str]) -> None:
    script = (
        f"import sys; from ridgeline.cli import main\n"
        f"try: main({words!r})\n"
        f"finally: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
