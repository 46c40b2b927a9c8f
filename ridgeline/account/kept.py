"""What became of each of the newest requests, for whoever made it: queued for what, reused, preempted, floor
against measured.

Kept in memory, oldest forgotten first. Knows no HTTP.
"""

from collections import OrderedDict
from typing import Any

from ridgeline.account.caller import Caller
from ridgeline.account.clocks import ChoiceTimes, RequestClock
from ridgeline.base.errors import RequestError

MOST_REQUESTS, MOST_CHOICES = 4096, 16384


class Accounts:
    """The newest requests by API key and request id; a key reads its own alone."""

    def __init__(self, most_requests: int = MOST_REQUESTS, most_choices: int = MOST_CHOICES) -> None:
        self._most_requests, self._most_choices = most_requests, most_choices
        self._clocks: OrderedDict[tuple[str, str], RequestClock] = OrderedDict()
        self._sizes: dict[tuple[str, str], int] = {}
        self._num_choices = 0

    def add(self, clock: RequestClock, num_choices: int) -> None:
        """Keep a request that is about to start; an id that its caller used before now means this one."""
        key = (clock.caller.tenant, clock.caller.request_id)
        self._drop(key)
        self._clocks[key], self._sizes[key] = clock, num_choices
        self._num_choices += num_choices
        while len(self._clocks) > self._most_requests or (
            self._num_choices > self._most_choices and len(self._clocks) > 1
        ):
            self._drop(next(iter(self._clocks)))

    def account(self, caller: Caller, request_id: str) -> dict[str, Any]:
        """The account, as far as it is known by now. Raises RequestError, status 404, for an id that this
        caller did not use, or not lately."""
        clock = self._clocks.get((caller.tenant, request_id))
        if clock is None:
            raise RequestError(
                f"this API key made no request {request_id!r:.140} among the last {self._most_requests}; the "
                "id of one stands in the x-request-id header of its answer", code="request_not_found",
                status=404,
            )  # fmt: skip
        return _account(clock)

    def _drop(self, key: tuple[str, str]) -> None:
        if self._clocks.pop(key, None) is not None:
            self._num_choices -= self._sizes.pop(key)


def _account(clock: RequestClock) -> dict[str, Any]:
    over = all(choice.finish is not None for choice in clock.choices)
    return {
        "id": clock.caller.request_id, "object": "ridgeline.request", "created": int(clock.created_s),
        "status": "ended" if clock.choices and over else "running",
        "choices": [_choice(index, choice) for index, choice in enumerate(clock.choices)],
    }  # fmt: skip


def _choice(index: int, choice: ChoiceTimes) -> dict[str, Any]:
    """waited_s: for what, and how long, from the hand-over to the engine on and after preemptions.
    measured_s: from its first step's start to its end; floor_s: what that must take alone on the machine."""
    account = dict(choice.account)
    waited = {name: account.pop(name) for name in list(account) if name.startswith("waited_")}
    times = choice.times_s
    measured_s = None
    if "finished" in times and "first_started" in times:
        measured_s = times["finished"] - times["first_started"]
    return {
        "index": index, "prompt": choice.prompt, "finish_reason": choice.finish,
        "num_prompt_tokens": choice.num_prompt, "num_cached_tokens": choice.num_cached,
        "num_output_tokens": choice.num_output,
        "ttft_s": choice.ttft_s, "ttft_parts_s": dict(choice.parts_s), "tpot_s": choice.tpot_s,
        "e2e_s": choice.e2e_s,
        "waited_s": {name[len("waited_"):-len("_s")]: spent for name, spent in waited.items()},
        "measured_s": measured_s, "floor_s": account.pop("floor_s", None), **account,
    }  # fmt: skip
