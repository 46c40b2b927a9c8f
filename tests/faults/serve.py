"""`python -m tests.faults.serve ENGINE ...`: `ridgeline serve ...` with another module as its engine process.
"""

import sys
from functools import partial

from ridgeline import cli
from ridgeline.server import serve

if __name__ == "__main__":
    module, *words = sys.argv[1:]
    serve.serve = partial(serve.serve, engine=module)  # type: ignore[assignment]
    sys.exit(cli.main(["serve", *words]))
