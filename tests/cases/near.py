"""The near-tie rule: two runs may differ only where the model itself hardly prefers one token."""

from typing import Any

NEAR_NATS = 0.05
ASK: dict[str, Any] = {"logprobs": 5, "return_token_ids": True}  # what `same` needs of a completion


def same(one: Any, other: Any, *, index: int = 0) -> bool:
    """True when two completions (asked with ASK) agree up to a near tie. AssertionError tells where not.

    Returns False, for counting, when a near tie excused a difference.
    """
    a, b = one["choices"][index], other["choices"][index]
    for position, (left, right) in enumerate(zip(a["token_ids"], b["token_ids"], strict=False)):
        if left == right:
            continue
        for choice in (a, b):
            top = choice["logprobs"]["top_logprobs"][position]
            values = sorted(top.values(), reverse=True)
            both = [_value(choice, position), _other(choice, position, a, b)]
            assert None not in both, (position, left, right, values)
            assert abs(both[0] - both[1]) <= NEAR_NATS, (position, left, right, values)
        return False
    assert len(a["token_ids"]) == len(b["token_ids"])
    return True


def _value(choice: Any, position: int) -> float:
    return float(choice["logprobs"]["token_logprobs"][position])


def _other(choice: Any, position: int, a: Any, b: Any) -> float | None:
    """The log-probability, in this run, of the token that the other run took."""
    taken = (b if choice is a else a)["logprobs"]["tokens"][position]
    return choice["logprobs"]["top_logprobs"][position].get(taken)
