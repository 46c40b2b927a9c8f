"""How often recurrent states are kept along a sequence, and in how many bytes: decided once at a start, by
price."""

from collections.abc import Callable

import numpy as np

from ridgeline.base.units import format_bytes
from ridgeline.engine.startup import Startup
from ridgeline.ledger.memory import snapshot_bytes
from ridgeline.ledger.sums import StepShape
from ridgeline.schedule.executor import Capacity
from ridgeline.spec.cache import Paged

_COPY_SHARE = 0.05  # of the time that computing a stride takes, for copying the state at its end
_CHUNK_TOKENS = 512


class _Chunk:
    """A prompt chunk as a step."""

    start = np.zeros(1, np.int32)
    count = np.full(1, _CHUNK_TOKENS, np.int32)
    num_sampled = 0


def decide_snapshots(capacity: Capacity, price: Callable[[StepShape], float], bytes_per_s: float,
                     startup: Startup) -> tuple[int, int | None]:
    """(tokens between snapshots, their bytes), for the KV manager; (0, None) for a model without states.

    Snapshots cost little time beside the prompt that they save, and weigh no more than its keys and values.
    """
    layout = capacity.layout
    state_bytes = sum(group.state_pages for group in layout.groups) * layout.page_bytes
    if not state_bytes:
        return 0, None
    copied = 2 * state_bytes / bytes_per_s / (_COPY_SHARE * price(_Chunk()) / _CHUNK_TOKENS)
    token_bytes = sum(
        layout.page_bytes / group.tokens_per_page for group in layout.groups if group.kind is Paged)
    weighs = state_bytes / token_bytes if token_bytes else 0.0
    blocks = -(-max(copied, weighs) // layout.block_tokens)
    weight = f" and weighs as much as the keys and values of {weighs:.0f}" if token_bytes else ""
    stride = startup.choose(
        "snapshot_stride", max(1, int(blocks)) * layout.block_tokens,
        f"a state of {format_bytes(state_bytes)} is copied in a twentieth of the time of {copied:.0f} tokens"
        f"{weight}")
    num_bytes = snapshot_bytes(layout, capacity.num_pages)
    kept = startup.choose("snapshot_bytes", num_bytes, "a quarter of the cache")
    return stride, kept
