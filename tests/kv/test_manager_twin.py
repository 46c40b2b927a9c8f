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


@pytest.mark.parametrize("name", LAYOUTS)
def test_histories_agree_over_two_tiers(name: str) -> None:
    """With a host's arena of half the device's size behind it: what is evicted or put away is found there,
    and comes back before it is read, whatever is preempted, lost or in flight."""
    for seed in range(2):
        run_history(LAYOUTS[name], PAGES[name], seed, 100, num_host_pages=PAGES[name] // 2)


def test_both_tiers_serve() -> None:
    """The histories do put pages away, evict them to the host and find them there."""
    stats = [run_history(LAYOUTS["mixed"], 26, seed, 150, num_host_pages=40).manager.stats
             for seed in range(4)]
    assert sum(one.num_host_hit_tokens for one in stats) > 0
    assert sum(one.num_out_pages for one in stats) > sum(one.num_back_pages for one in stats) > 0


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LAYOUTS)
def test_many_histories_agree(name: str) -> None:
    """The same at length."""
    for seed in range(1000, 1100):
        run_history(LAYOUTS[name], PAGES[name] + seed % 7, seed, 400)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LAYOUTS)
def test_many_histories_agree_over_two_tiers(name: str) -> None:
    for seed in range(2000, 2100):
        pages = PAGES[name] + seed % 7
        run_history(LAYOUTS[name], pages, seed, 400, num_host_pages=2 + pages * (seed % 5) // 3)
