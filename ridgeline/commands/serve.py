"""`ridgeline serve`."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.base.logs import FORMATS
from ridgeline.commands.flags import (
    add_config_flag,
    add_engine_flags,
    count,
    engine_config,
    seconds,
    size,
    word,
)

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from ridgeline.server.keys import Key

HELP = "serve a model over an OpenAI-compatible HTTP API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("server")
    group.add_argument(
        "--host", type=word, default="127.0.0.1", help="address to listen on (127.0.0.1); 0.0.0.0 for all"
    )
    group.add_argument("--port", type=int, default=8000, help="0 takes a free one (8000)")
    group.add_argument("--served-model-name", type=word, metavar="NAME", help="the model's name in the API")
    group.add_argument(
        "--shutdown-timeout", type=seconds, default=30.0, metavar="SECONDS",
        help="how long requests may finish after SIGTERM (30)",
    )
    group.add_argument(
        "--stall-timeout", type=seconds, default=60.0, metavar="SECONDS",
        help="how long work may wait without a finished step until the engine is given up (60)",
    )
    group.add_argument(
        "--enable-sleep-mode", action="store_true",
        help="admins may put the engine to sleep, wake it, and give it other weights",
    )
    add_config_flag(group)
    _add_access_flags(parser.add_argument_group("who may call, and with what"))
    _add_log_flags(parser.add_argument_group("logs"))
    add_engine_flags(parser)


def _origin(text: str) -> str:
    if text != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/?#\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not what a browser sends, as https://chat.example")
    return text


def _add_access_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--api-key", type=word, action="append", metavar="KEY", default=[],
        help="may be given several times; $RIDGELINE_API_KEY keeps it out of the process list",
    )
    group.add_argument(
        "--api-key-file", type=Path, metavar="FILE",
        help="keys or digests, each with its limits: TOML, as `ridgeline key new` writes it, or one a line "
        "with its priority after it",
    )
    group.add_argument(
        "--allowed-origin", type=_origin, action="append", metavar="ORIGIN", default=[],
        help="a browser origin that may call, * for any; default: none",
    )
    group.add_argument("--ssl-certfile", type=Path, metavar="FILE", help="a certificate in PEM: HTTPS alone")
    group.add_argument("--ssl-keyfile", type=Path, metavar="FILE", help="its key, if not in the same file")
    group.add_argument(
        "--max-body-bytes", type=size, metavar="BYTES", help="of a request's body, such as 1MB (8MiB)"
    )
    group.add_argument(
        "--max-nesting", type=count, metavar="N",
        help="arrays and objects inside one another in a body, at most 128 (128)",
    )
    group.add_argument(
        "--max-choices", type=count, metavar="N", help="answers to one request: its prompts times n (1024)"
    )


def _add_log_flags(group: argparse._ActionsContainer) -> None:
    group.add_argument(
        "--log-format", choices=FORMATS, default="text", help="json: an object a line, all of it (text)"
    )
    group.add_argument(
        "--log-prompts", action="store_true",
        help="bodies of requests, and what exceptions say, in the log too; otherwise neither",
    )
    group.add_argument(
        "--otlp-endpoint", metavar="URL",
        help="where OpenTelemetry spans of requests go, as http://localhost:4318 (needs the extra otel)",
    )


def run(args: argparse.Namespace) -> int:
    from ridgeline.api.limits import limits_of
    from ridgeline.base.logs import LogStyle, configure
    from ridgeline.server.config import ServerConfig
    from ridgeline.server.serve import serve

    logs = LogStyle(format=args.log_format, prompts=args.log_prompts)
    configure(logs)
    settings = ServerConfig(
        host=args.host,
        port=args.port,
        api_keys=keys_of(args),
        reread_keys=None if args.api_key_file is None else partial(keys_of, args),
        allowed_origins=tuple(args.allowed_origin),
        served_name=args.served_model_name,
        shutdown_s=args.shutdown_timeout,
        stall_s=args.stall_timeout,
        otlp_endpoint=args.otlp_endpoint,
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
        logs=logs,
        sleep_mode=args.enable_sleep_mode,
        limits=limits_of(
            body_bytes=args.max_body_bytes, depth=args.max_nesting, choices=args.max_choices
        ),
    )
    config = engine_config(args)
    return serve(config if logs.format == "text" else replace(config, progress=False), settings, _pages)


def keys_of(args: argparse.Namespace) -> "tuple[Key, ...]":
    """Of the flags, the environment and, before those, the file; one that is alone in all is the operator's.
    """
    from ridgeline.base.config import api_keys
    from ridgeline.server.keys import plain, read_keys

    filed = [] if args.api_key_file is None else read_keys(args.api_key_file)
    given = [plain(key) for key in (*args.api_key, *api_keys())]
    keys = tuple({key.digest: key for key in (*given, *filed)}.values())
    return keys if filed or len(keys) != 1 else (replace(keys[0], admin=True),)


def _pages() -> "Sequence[BaseRoute]":
    """The labs and the live page beside the API: the server knows them as routes alone."""
    from ridgeline.planner.labs import load_labs
    from ridgeline.web.app import labs_routes, live_routes

    return [*labs_routes(load_labs), *live_routes()]
