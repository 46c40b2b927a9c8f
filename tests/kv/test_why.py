"""Why a prompt reused no more: each reason in a scene of its own."""

from ridgeline.kv.why import LAST, OFF
from ridgeline.spec.cache import CacheGroup
from tests.kv.layouts import paged, state
from tests.kv.test_manager import A, Scene, make


def why(manager: Scene, tokens: list[int], salt: str = "") -> tuple[int, str]:
    hit = manager.open(99, tokens, salt)
    said = manager.why_not_more(99, tokens)
    manager.release(99)
    return hit, said


def warm(*groups: CacheGroup, pages: int = 50) -> Scene:
    manager = make(*(groups or (paged(4),)), pages=pages)
    manager.compute(0, A[:10])
    return manager


def test_each_reason() -> None:
    manager = warm()
    assert why(manager, A[:8]) == (7, LAST)
    assert why(manager, A[50:60]) == (0, "no block of this prefix was ever cached")
    assert why(manager, A[:20]) == (8, "no block after token 8 was ever cached")
    assert why(manager, [*A[:6], 1, 2, 3, 4]) == (6, "differs at token 6")
    assert why(manager, [*A[:4], 1, 2, 3, 4]) == (4, "differs at token 4")
    assert why(make(paged(4), caching=False), A[:20]) == (0, OFF)


def test_another_salt_is_not_told_apart_from_nothing() -> None:
    """Salts keep tenants from learning of one another's prompts; so does the reason."""
    assert why(warm(), A[:10], "mine") == (0, "no block of this prefix was ever cached")


def test_what_was_evicted_says_when() -> None:
    """Of a prefix whose end gave way to others: seconds since the step before."""
    manager = warm(pages=6)
    manager.release(0)
    manager.close_step(10, {}, 5.0)
    manager.step_finished(10)
    assert manager.open(1, A[50:65]) == 0 and manager.reserve(1, 15)
    manager.close_step(20, {}, 7.5)
    assert why(manager, A[:10]) == (4, "evicted 2.5 s ago")


def test_a_state_ends_a_hit_where_it_was_kept() -> None:
    manager = make(paged(4), state(1, 4))
    manager.open(0, A[:18])
    assert manager.reserve(0, 16)
    manager.run_step()
    manager.commit(0, 16, A[:18])
    manager.snapshot(0, 16, A[:18])
    assert manager.reserve(0, 18)
    manager.run_step()
    manager.commit(0, 18, A[:18])
    assert why(manager, [*A[:18], 1, 2]) == (16, "no block after token 16 was ever cached")
    assert why(manager, A[:14]) == (0, "no state snapshot of this prefix")
