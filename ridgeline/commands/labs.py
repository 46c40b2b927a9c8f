"""`ridgeline labs`."""

import argparse

from ridgeline.commands.flags import word

HELP = "pages that compute what serving costs, on this machine and without a model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", type=word, default="127.0.0.1", help="address to listen on (127.0.0.1); 0.0.0.0 for all"
    )
    parser.add_argument("--port", type=int, default=8080, help="0 takes a free one (8080)")


def run(args: argparse.Namespace) -> int:
    import uvicorn

    from ridgeline.base.sockets import bound, url
    from ridgeline.planner.labs import load_labs
    from ridgeline.web.app import labs_app

    with bound(args.host, args.port) as listener:
        app = labs_app(load_labs)
        listener.listen()
        print(f"labs on {url(args.host, listener)}/labs", flush=True)
        options = uvicorn.Config(app, lifespan="off", log_level="warning", server_header=False)
        uvicorn.Server(options).run(sockets=[listener])
    return 0
