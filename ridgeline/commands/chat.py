"""`ridgeline chat`: a conversation in the terminal."""

import argparse
import sys
import time
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from ridgeline.base.config import EngineConfig
from ridgeline.base.errors import ConfigError, RidgelineError
from ridgeline.commands.flags import (
    OF_SERVERS,
    add_engine_flags,
    add_sampling_flags,
    engine_config,
    refuse,
    sampling_fields,
)

if TYPE_CHECKING:
    from ridgeline.commands.talk import Talk

HELP = "talk to a model in the terminal"
_INTRO = "Type a message; /reset forgets the conversation, Ctrl-C stops an answer, Ctrl-D ends."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    group.add_argument("--url", help="talk to this server instead of loading a model")
    group.add_argument("--api-key", metavar="KEY", help="of that server; default: $RIDGELINE_API_KEY")
    group.add_argument("--system", metavar="TEXT", help="instructions that open the conversation")
    add_sampling_flags(group)
    add_engine_flags(parser)


def run(args: argparse.Namespace) -> int:
    from ridgeline.base.config import api_keys
    from ridgeline.commands.talk import RemoteTalk, local_talk

    if args.url:
        refuse(args, args.parser, "a talk to --url, whose model is there,",
               [one.name for one in fields(EngineConfig) if one.name != "model"])
        if args.model is not None:
            raise ConfigError("a talk to --url takes no model: leave it out")
        _converse(RemoteTalk(args.url, args.api_key or next(iter(api_keys()), None)), args)
        return 0
    refuse(args, args.parser, "a talk without --url", ("api_key", *OF_SERVERS))
    with local_talk(engine_config(args)) as talk:
        _converse(talk, args)
    return 0


def _converse(talk: "Talk", args: argparse.Namespace) -> None:
    opening = [{"role": "system", "content": args.system}] if args.system else []
    messages: list[dict[str, Any]] = list(opening)
    shown = sys.stdin.isatty()
    if shown:
        print(_INTRO)
    while True:
        try:
            text = input("\n> " if shown else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            continue
        if text.strip() == "/reset":
            messages = list(opening)
        elif text.strip():
            messages.append({"role": "user", "content": text})
            try:
                answer = _answer(talk, {"messages": messages, **sampling_fields(args)}, shown)
            except RidgelineError as error:
                if not shown:
                    raise
                print(f"error: {error}", file=sys.stderr)
                messages.pop()
            else:
                messages.append({"role": "assistant", "content": answer})


def _answer(talk: "Talk", body: dict[str, Any], shown: bool) -> str:
    """Print an answer as it comes; Ctrl-C keeps what there is."""
    parts: list[str] = []
    begun, usage = time.monotonic(), None
    events = talk.stream("/v1/chat/completions", body)
    try:
        for event in events:
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                parts.append(choice["delta"].get("content") or "")
                print(parts[-1], end="", flush=True)
    except KeyboardInterrupt:
        print(" [stopped]", end="")
    print()
    if shown and usage:
        count, spent = usage["completion_tokens"], time.monotonic() - begun
        print(f"[{count} tokens, {count / spent:.1f} tokens/s, the wait for the first one included]")
    return "".join(parts)
