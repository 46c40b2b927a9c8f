"""`python -m ridgeline` is `ridgeline`."""

import sys

from ridgeline.cli import main

sys.exit(main())
