"""How many tokens a step may hold: what the executor takes, and less for a while after memory lacked.

A step that lacks memory halves the limit, below its own tokens; each run of good steps gives an eighth back.
So the limit settles a little below what there is room for, and follows it when that changes.
"""

import logging

GOOD_STEPS = 16  # for an eighth more
_log = logging.getLogger("ridgeline.engine")


class StepSize:
    """The limit, which starts at `most` and never falls below `least` tokens: what cannot be had in less.

    num_short: steps that lacked memory; num_undone: rows of these that are computed again.
    """

    def __init__(self, most: int, least: int = 1) -> None:
        self.most, self.least = most, least
        self.tokens = most
        self.num_short = self.num_undone = 0
        self._num_good = 0

    def lacked(self, num_tokens: int) -> None:
        """A step of so many tokens was too large. Said in the log when it is the first for a while."""
        if self.tokens == self.most:
            _log.warning("a step of %d tokens lacked memory: steps are smaller for a while", num_tokens)
        self.num_short += 1
        self._num_good = 0
        self.tokens = max(self.least, min(self.tokens, num_tokens // 2))

    def went_well(self) -> None:
        """A step had room."""
        if self.tokens == self.most:
            return
        self._num_good += 1
        if self._num_good == GOOD_STEPS:
            self._num_good = 0
            self.tokens = min(self.most, self.tokens + max(1, self.tokens // 8))

    def stats(self) -> dict[str, int]:
        return {"num_short_steps": self.num_short, "num_undone": self.num_undone,
                "step_token_limit": self.tokens}
