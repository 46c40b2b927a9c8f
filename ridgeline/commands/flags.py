"""Flags that several commands share, the file behind --config, and the frozen settings that they become."""

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError
from ridgeline.base.table import Table
from ridgeline.base.units import parse_bytes, parse_count
from ridgeline.planner.ask import parse_target


def positive(read: Callable[[str], float]) -> Callable[[str], Any]:
    """A reader whose values must be above 0; argparse shows the text of what it raises."""

    def read_positive(text: str) -> float:
        try:
            value = read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    return read_positive


def zero_or(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader that takes 0 too."""
    return lambda text: 0 if text.strip() == "0" else read(text)


count = positive(parse_count)
size = positive(parse_bytes)
seconds = positive(float)
target = positive(parse_target)


def seed(text: str) -> int:
    """A whole number of 64 bits with its sign."""
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 64 bits")
    return value


# Of EngineConfig, what has no effect where one free text of the base model is asked at a time.
OF_SERVERS = ("lora", "max_loras", "max_lora_rank", "jump_ahead", "overload")


def refuse(args: argparse.Namespace, parser: argparse.ArgumentParser, what: str,
           names: Iterable[str]) -> None:
    """ConfigError for the first of these flags that was given though `what` leaves it without effect."""
    flags = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    left_out = parser.parse_args(["-" for action in parser._actions if action.required])
    for name in names:
        if getattr(args, name) != getattr(left_out, name):
            raise ConfigError(f"{what} takes no {flags[name]}: leave it out")


def share(text: str) -> float:
    """Above 0 and at most 1."""
    value = positive(float)(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share: it is above 0 and at most 1")
    return float(value)


def word(text: str) -> str:
    """A text that is not empty."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def named_path(text: str) -> tuple[str, str]:
    """NAME=PATH."""
    name, _, path = text.partition("=")
    if not name or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER")
    return name, path


def json_object(text: str) -> dict[str, Any]:
    """A JSON object; argparse shows the text of what is raised."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """The model and how it runs. Each dest is a field of EngineConfig."""
    parser.add_argument(
        "model", nargs="?", help="local folder, GGUF file or Hub id; default: SmolLM2-135M-Instruct"
    )
    _add_model_flags(parser.add_argument_group("model"))
    _add_adapter_flags(parser.add_argument_group("adapters"))
    memory = parser.add_argument_group("memory and batching")
    _add_memory_flags(memory)
    _add_ahead_flags(memory)
    _add_target_flags(parser.add_argument_group("latency targets"))
    _add_machine_flags(parser.add_argument_group("machine"))


def _add_model_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--tokenizer", metavar="PATH", help="take the tokenizer from here instead of from the model"
    )
    group.add_argument(
        "--chat-template", metavar="FILE", help="a Jinja file used instead of the model's own template"
    )
    group.add_argument("--revision", help="branch, tag or commit of a Hub id")
    group.add_argument(
        "--load-format",
        choices=("auto", "dummy"),
        default="auto",
        help="dummy: random weights for a config folder or a published shape name",
    )
    group.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16"),
        default="auto",
        help="auto: the fast path of the device; float32: the reference numerics",
    )
    group.add_argument(
        "--hf-overrides",
        type=json_object,
        metavar="JSON",
        help="fields that replace those of the checkpoint's config; null drops one",
    )
    group.add_argument("--quantization", help="weight scheme; default: the checkpoint's own")


def _add_adapter_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--lora",
        type=named_path,
        action="append",
        metavar="NAME=FOLDER",
        default=[],
        help="a LoRA adapter as PEFT saves it, served as the model NAME; may be given several times",
    )
    group.add_argument(
        "--max-loras",
        type=count,
        metavar="N",
        help="most adapters at once; with it they may be loaded and unloaded while serving (those of --lora)",
    )
    group.add_argument(
        "--max-lora-rank", type=count, metavar="RANK", help="largest rank of an adapter (16)"
    )


def _add_memory_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--max-model-len", type=count, metavar="TOKENS", help="prompt and output together; 32k is 32768"
    )
    group.add_argument(
        "--kv-cache-bytes", type=size, metavar="BYTES", help="size of the KV cache, such as 512MB or 2GiB"
    )
    group.add_argument(
        "--host-kv-bytes",
        type=zero_or(size),
        default=0,
        metavar="BYTES",
        help="host memory for preempted requests and evicted prefixes of a GPU's cache, such as 8GB; pinned "
        "at the start (0: none)",
    )
    group.add_argument(
        "--kv-watermark-bytes",
        type=zero_or(size),
        default=0,
        metavar="BYTES",
        help="of the KV cache, left free when a request starts beside others (0)",
    )
    group.add_argument("--kv-cache-dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    group.add_argument(
        "--block-tokens", type=count, metavar="TOKENS", help="tokens of a KV block (16; 64 on a GPU)"
    )
    group.add_argument(
        "--max-num-seqs", type=count, default=64, metavar="N", help="most sequences in a step (64)"
    )
    group.add_argument("--max-num-batched-tokens", type=count, metavar="TOKENS", help="most tokens in a step")
    group.add_argument(
        "--no-prefix-caching",
        dest="prefix_caching",
        action="store_false",
        help="compute every prompt from its first token",
    )
    group.add_argument(
        "--no-cache",
        dest="cache",
        action="store_false",
        help="recompute the whole context at every step: a slow twin for comparison",
    )
    group.add_argument(
        "--policy",
        default="fcfs",
        metavar="NAME[:SETTING]",
        help="who runs when: fcfs, static, prefill, chunked:N, slo, priority, fair, shortest, reuse or "
        "throughput (fcfs)",
    )


def _add_ahead_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--speculate",
        metavar="ngram|draft:MODEL",
        help="draft tokens from the text itself or by a smaller model, and verify several in a step",
    )
    group.add_argument(
        "--speculate-max", type=count, default=4, metavar="N", help="most drafts of a sequence in a step (4)"
    )
    group.add_argument(
        "--no-jump-ahead",
        dest="jump_ahead",
        action="store_false",
        help="a step for each token, also where a grammar leaves no choice: a slow twin for comparison",
    )


def _add_target_flags(group: argparse._ActionsContainer) -> None:
    for name, what in (("ttft", "the first token, from arrival"), ("tpot", "each token after it, in mean")):
        group.add_argument(
            f"--{name}", type=target, metavar="TIME", dest=f"{name}_s", help=f"for {what}, such as 500ms"
        )
    group.add_argument(
        "--overload",
        choices=("queue", "shed", "degrade"),
        default="queue",
        help="what becomes of a request that certainly misses --ttft, by the floor of the work before it: it "
        "waits on, is refused (429 with Retry-After), or ranks behind all others (queue)",
    )


def _add_machine_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto: a GPU where there is one"
    )
    group.add_argument("--threads", type=count, metavar="N", help="compute threads")
    group.add_argument("--seed", type=seed, default=0, help="of requests that bring no seed (0)")
    group.add_argument("--deterministic", action="store_true",
                       help="the same request gives the same logits to the bit, alone or beside others, in "
                       "chunks or whole, from the cache or computed; slower")
    group.add_argument("--trace-file", metavar="FILE", help="write a JSON line for each step and request")
    group.add_argument("--trace-texts", action="store_true",
                       help="token ids in the trace file too, so that it replays exactly")
    group.add_argument("--no-progress", dest="progress", action="store_false", help="no progress bars")


def add_sampling_flags(group: argparse._ActionsContainer) -> None:
    """How the terminal commands sample; what is left out is the model's own default."""
    group.add_argument("--max-tokens", type=count, metavar="TOKENS", help="most tokens of an answer")
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the likeliest tokens that sum to P"
    )


def sampling_fields(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of `add_sampling_flags` as fields of a request."""
    given = {name: getattr(args, name) for name in ("max_tokens", "temperature", "top_p")}
    return {name: value for name, value in given.items() if value is not None}


def engine_config(args: argparse.Namespace) -> EngineConfig:
    """The engine's part of the parsed flags. ConfigError for one that would have no effect."""
    given = {f.name: getattr(args, f.name) for f in fields(EngineConfig)}
    config = EngineConfig(**given | {"lora": tuple(args.lora)})
    if config.trace_texts and config.trace_file is None:
        raise ConfigError("--trace-texts does nothing alone: say where to by --trace-file")
    if config.speculate is None and config.speculate_max != EngineConfig().speculate_max:
        raise ConfigError("--speculate-max does nothing alone: choose what drafts by --speculate")
    if not config.cache and not config.prefix_caching:
        raise ConfigError("--no-prefix-caching does nothing beside --no-cache: leave it out")
    if config.revision is not None and (config.model is None or Path(config.model).expanduser().exists()):
        what = f"{config.model} is on this disk" if config.model else "no model is named"
        raise ConfigError(f"--revision belongs to a Hub id, and {what}: leave it out")
    return config


def add_config_flag(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--config",
        metavar="FILE.yaml",
        help="flags from a file, by their long names without dashes in front; the command line wins",
    )


def config_argv(path: str, parser: argparse.ArgumentParser) -> list[str]:
    """The file as command-line words for `parser`. Unknown names, and one that stands there twice, are
    ConfigErrors; the parser judges the values.
    """
    actions = {
        flag.removeprefix("--"): action for action in parser._actions for flag in action.option_strings
    }
    known = Table(
        f"flag in {path}", {name: a for name, a in actions.items() if a.dest not in ("help", "config")}
    )
    words: list[str] = []
    model: list[str] = []
    names: set[str] = set()
    for key, value in _pairs(path):
        name = str(key).replace("_", "-")
        if name in names:
            raise ConfigError(f"--config {path}: {name} stands there twice")
        names.add(name)
        if name == "model":
            model = _items(name, value, path, several=False)
        else:
            words += _words(f"--{name}", known[name], value, path)
    return [*words, *(["--", *model] if model else [])]


def _pairs(path: str) -> list[tuple[Any, Any]]:
    """The names and values of a YAML file, twice where they stand twice; numbers and dates as they are
    written: YAML would read the name 1.10 as 1.1, and the key 0123 as 83."""
    import yaml  # type: ignore[import-untyped]

    class AsWritten(yaml.SafeLoader):
        pass

    for tag in ("int", "float", "timestamp"):
        AsWritten.add_constructor(f"tag:yaml.org,2002:{tag}", AsWritten.construct_yaml_str)
    try:
        loader = AsWritten(Path(path).read_text())
        node = loader.get_single_node()
        if isinstance(node, yaml.MappingNode):
            return [(loader.construct_object(key, deep=True), loader.construct_object(value, deep=True))
                    for key, value in node.value]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--config {path}: {' '.join(str(error).split())}") from None
    raise ConfigError(f"--config {path}: expected lines like 'max-num-seqs: 16'")


def _words(flag: str, action: argparse.Action, value: Any, path: str) -> list[str]:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"--config {path}: {flag} is a switch, write true or false")
        return [flag] if value else []
    several = isinstance(action, argparse._AppendAction)
    return [f"{flag}={item}" for item in _items(flag, value, path, several=several)]


def _items(name: str, value: Any, path: str, *, several: bool) -> list[str]:
    """The texts of a value, which may be a list only where a flag may be given several times."""
    items = value if several and isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"--config {path}: {name} cannot be {value!r}")
    return items
