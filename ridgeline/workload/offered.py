"""What a workload is made of: requests as they are offered, with lengths instead of texts."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """One request of a workload.

    arrived_s: from the workload's start. num_prompt, num_output: tokens. prefix: an id for each full block of
    `block_tokens` prompt tokens from the start; equal ids at equal places after equal ids are equal text
    (Mooncake's hash ids); () shares nothing. num_tiles: image tiles whose visual tokens num_prompt counts.
    patience_s: the client goes away so long after arrival; None: never. predicted_output: tokens expected of
    the answer, for policies that ask; None: nobody expects any. row: of its source, for messages.
    """

    arrived_s: float
    num_prompt: int
    num_output: int
    tenant: str = ""
    priority: int = 0
    prefix: tuple[int, ...] = ()
    block_tokens: int = 512
    num_tiles: int = 0
    patience_s: float | None = None
    predicted_output: int | None = None
    row: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Requests in order of arrival. about: one line that says where they come from.

    num_at_a_time: closed arrivals, so many in the system at a time: all arrived_s are 0 and the next request
    arrives when one ends; None: each arrives at its own time.
    """

    requests: Sequence[Offered]
    about: str
    num_at_a_time: int | None = None
