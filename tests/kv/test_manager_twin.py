"""The manager against its slow twin and a simulated arena, on random histories with check() after every
action."""

import pytest

from tests.kv.driver import run_history
from tests.kv.layouts import LAYOUTS

# an arena that holds about two of the longest sequences: eviction, refusals and take-overs all happen
PAGES = {"paged": 26, "paged-1": 90, "entries": 14, "two-paged": 50, "window": 14, "window-1": 14,
         "mixed": 34, "mixed-sizes": 42, "state": 30, "state-only": 16, "state-mixed": 70}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("seed", range(8))
def test_histories_agree(name: str, seed: int) -> None:
    """Hits, refusals, free pages and evictions are the twin's; every read finds its own token's history."""
    run_history(LAYOUTS[name], PAGES[name], seed, 150)


@pytest.mark.parametrize("name", ["paged", "mixed-sizes"])
def test_histories_agree_without_prefix_caching(name: str) -> None:
    """Without an index nothing is reused, but forks and copies work as before."""
    driver = run_history(LAYOUTS[name], PAGES[name], 1, 200, caching=False)
    assert driver.manager.stats.num_hit_tokens == driver.manager.stats.num_evicted_pages == 0
    assert driver.manager.stats.num_copied_pages > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LAYOUTS)
def test_many_histories_agree(name: str) -> None:
    """The same at length."""
    for seed in range(1000, 1100):
        run_history(LAYOUTS[name], PAGES[name] + seed % 7, seed, 400)
