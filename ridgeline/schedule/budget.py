"""One token budget a step, shared in serving order: decodes first, then chunks, then admissions."""

import numpy as np
from numpy.typing import NDArray

Long = NDArray[np.int64]


def share_tokens(wanted: Long, max_tokens: int, *, whole: bool = False) -> Long:
    """Tokens for each row of `wanted` [rows, in serving order]; the sum is at most max_tokens.

    Each gets what it wants or what is left; one less where just one would be missing, since a prompt's last
    token alone counts as a decode, and how it is computed must not hang on who else was served. whole: a row
    gets all that it wants or nothing, and nobody behind a row that got nothing is served (so that a long one
    is not passed over for ever).
    """
    left = max_tokens - (np.cumsum(wanted) - wanted)
    if whole:
        return np.where(wanted <= left, wanted, 0)
    shared = np.clip(left, 0, wanted)
    return shared - ((wanted - shared == 1) & (shared > 1))
