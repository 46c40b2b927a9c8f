"""`python -m ridgeline.engine`: the engine process. What is imported lives as long as it does, so that nobody
looks for garbage in it: that took a tenth of a start."""

import gc
import sys

gc.disable()
from ridgeline.engine.process import main  # noqa: E402  after the line above it

gc.freeze()
gc.enable()
if __name__ == "__main__":
    sys.exit(main())
