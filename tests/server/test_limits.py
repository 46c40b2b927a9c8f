"""Protects the checks on raw bytes: hostile nesting is refused before a parser sees it, and quickly."""

import time

import pytest

from ridgeline.api.limits import LIMITS, check_depth, nesting
from ridgeline.base.errors import RequestError


@pytest.mark.parametrize(
    ("body", "depth"),
    [
        (b"", 0),
        (b"5", 0),
        (b"{}", 1),
        (b'{"a": [1, [2], {"b": 3}]}', 3),
        (b'{"a": "[[[[", "b": [1]}', 2),
        (rb'{"a": "\"[[[[", "b": [1]}', 2),
        (rb'{"a": "\\", "b": [[[1]]]}', 4),
        (rb'{"a": "\\\"[[[["}', 1),
        (b'{"a": "unterminated [[[[', 1),
    ],
)
def test_nesting_counts_brackets_outside_strings(body: bytes, depth: int) -> None:
    assert nesting(body) == depth


def test_deep_is_refused_and_wide_is_not() -> None:
    check_depth(b"[" + b"[],{}," * 10_000 + b"1]")
    with pytest.raises(RequestError) as refused:
        check_depth(b"[" * (LIMITS.depth + 1))
    assert refused.value.param == "body"
    check_depth(b"[" * LIMITS.depth)


@pytest.mark.parametrize("part", [b"[", b"[]", b'"\\""', b'"[', b"\\", b"{[\"'"])
def test_the_check_is_cheap_on_the_largest_body(part: bytes) -> None:
    """A body that is refused must not cost more than one that is served."""
    body = part * (LIMITS.body_bytes // len(part))
    started = time.process_time()
    nesting(body)
    assert time.process_time() - started < 1.5
