"""Protects how engines beside one another are written."""

from dataclasses import replace

import pytest

from ridgeline.base.errors import ConfigError
from ridgeline.planner.ask import Ask
from ridgeline.planner.fleet import Pool, parse_pool, topology_of
from tests.sim.helpers_sim import machine

ASK = Ask(model="llama-3-8b", gpu="h100", tp=2, price_usd_per_hour=5.0)


def test_a_pool_says_how_many_on_what() -> None:
    assert parse_pool("4") == Pool(num=4)
    assert parse_pool("4@h20,tp=2,ep=1") == Pool(num=4, gpu="h20", tp=2, ep=1)
    assert parse_pool("4").ask(ASK) == ASK
    assert parse_pool("4@h20,tp=1").ask(ASK) == replace(ASK, gpu="h20", tp=1, price_usd_per_hour=None)


@pytest.mark.parametrize("text", ["", "h100", "0@h100", "2@h100,dp=2", "2,tp=0", "2,tp", "two@h100"])
def test_a_wrong_pool_says_how_to_write_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r"2@h100|tp=N"):
        parse_pool(text)


def test_a_split_needs_both_sides_and_no_replicas() -> None:
    asked: list[Ask] = []

    def build(ask: Ask):  # type: ignore[no-untyped-def]
        asked.append(ask)
        return machine()

    split = topology_of(ASK, build, prefill=Pool(num=2), decode=Pool(num=3, gpu="h20"))
    assert (len(split.engines), len(split.decode)) == (2, 3) and [one.gpu for one in asked] == ["h100", "h20"]
    assert len(topology_of(ASK, build, replicas=3).engines) == 3
    for given in ({"prefill": Pool(num=1)}, {"decode": Pool(num=1)},
                  {"prefill": Pool(num=1), "decode": Pool(num=1), "replicas": 2}):
        with pytest.raises(ConfigError, match="--"):
            topology_of(ASK, build, **given)
