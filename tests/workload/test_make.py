"""Protects workloads drawn at random: their sums, their rate, and that a seed gives the same again."""

from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import default_rng

from docs.lengths import measure
from ridgeline.base.errors import ConfigError
from ridgeline.workload.arrivals import arrival_times
from ridgeline.workload.ask import WorkloadAsk
from ridgeline.workload.lengths import draw_lengths
from ridgeline.workload.make import make_workload
from ridgeline.workload.measured import MEASURED, load_measured

# Means of the public traces: tokens of prompts and of outputs, counted on all rows
MEANS = {"arxiv": (2588.1, 291.4), "azure-code": (2047.8, 27.9), "azure-conv": (1154.7, 211.1),
         "sharegpt": (2340.0, 438.7)}
# Their medians and 99th percentiles
PLACES = {"arxiv": ((2730, 3933), (167, 3271)), "azure-code": ((1469, 7436), (13, 251)),
          "azure-conv": ((1020, 4142), (129, 601)), "sharegpt": ((1730, 7434), (415, 998))}


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), num=st.integers(1, 500), scale=st.floats(0.01, 2.0),
       arrival=st.sampled_from(["poisson", "gamma:0.3", "gamma:4"]), lengths=st.sampled_from(MEASURED))
def test_a_seed_gives_the_same_requests_in_order(seed: int, num: int, scale: float, arrival: str,
                                                 lengths: str) -> None:
    ask = WorkloadAsk(lengths=lengths, arrival=arrival, rate=3.0, num_requests=num, length_scale=scale,
                      seed=seed)
    requests = make_workload(ask).requests
    assert len(requests) == num and requests == make_workload(ask).requests
    assert all(a.arrived_s <= b.arrived_s for a, b in pairwise(requests)) and requests[0].arrived_s > 0
    assert all(r.num_prompt >= 1 and r.num_output >= 1 for r in requests)


def test_a_higher_rate_brings_the_same_requests_sooner() -> None:
    """Rates are compared with the same requests: only the time between them shrinks."""
    slow, fast = (make_workload(WorkloadAsk(lengths="sharegpt", rate=rate, num_requests=100)).requests
                  for rate in (2.0, 8.0))
    assert [(r.num_prompt, r.num_output) for r in slow] == [(r.num_prompt, r.num_output) for r in fast]
    assert [r.arrived_s for r in slow] == pytest.approx([4 * r.arrived_s for r in fast])
    fewer = make_workload(WorkloadAsk(lengths="sharegpt", rate=2.0, num_requests=40)).requests
    assert fewer == slow[:40]


@pytest.mark.parametrize(("arrival", "deviation"), [("poisson", 1.0), ("gamma:0.25", 2.0), ("gamma:4", 0.5)])
def test_arrivals_keep_their_rate_and_burstiness(arrival: str, deviation: float) -> None:
    gaps = np.diff(list(islice(arrival_times(arrival, 5.0, default_rng(1)), 20_000)))
    assert gaps.mean() == pytest.approx(1 / 5.0, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize("name", MEASURED)
def test_measured_lengths_keep_their_source(name: str) -> None:
    """Quantile tables stand for traces that are not shipped."""
    drawn = load_measured(name).draw(default_rng(2), 40_000)
    for i in range(2):
        assert drawn[:, i].mean() == pytest.approx(MEANS[name][i], rel=0.03)
        assert np.percentile(drawn[:, i], (50, 99)) == pytest.approx(PLACES[name][i], rel=0.03)


def test_measuring_what_was_drawn_gives_the_table_again() -> None:
    """Outputs go with their prompts: arXiv's longest answers belong to its shortest prompts."""
    table = load_measured("arxiv")
    again = measure(table.draw(default_rng(3), 100_000), table.prompt_points, table.output_points)
    inner = slice(3, -3)
    assert again.prompts[inner] == pytest.approx(table.prompts[inner], rel=0.05)
    middle = len(table.output_points) // 2
    assert again.outputs[:, middle] == pytest.approx(table.outputs[:, middle], rel=0.05)


def test_formulas_mean_what_they_say() -> None:
    def drawn(name: str, num: int = 6_000) -> np.ndarray:
        requests = islice(draw_lengths(name, default_rng(4)).requests, num)
        return np.array([(r.num_prompt, r.num_output) for r in requests])

    assert (drawn("fixed:512,64", 10) == (512, 64)).all()
    even = drawn("uniform:10-20,30-40")
    assert even.min(axis=0).tolist() == [10, 30] and even.max(axis=0).tolist() == [20, 40]
    assert even.mean(axis=0) == pytest.approx([15, 35], rel=0.01)
    assert drawn("uniform:7-9").mean(axis=0) == pytest.approx([8, 8], rel=0.01)
    tailed = drawn("lognormal:800,1,200,0.5")
    assert tailed.mean(axis=0) == pytest.approx([800, 200], rel=0.08)
    assert np.log(tailed).std(axis=0) == pytest.approx([1, 0.5], rel=0.05)


def test_shared_prefixes_come_from_few_texts() -> None:
    requests = list(islice(draw_lengths("prefix:1000,50,20,4", default_rng(5)).requests, 200))
    assert {r.prefix for r in requests} == {(0,), (1,), (2,), (3,)}
    assert all(r.num_prompt == 1050 and r.block_tokens == 1000 and r.num_output == 20 for r in requests)


def test_closed_arrivals_have_a_number_and_no_times() -> None:
    workload = make_workload(WorkloadAsk(lengths="fixed:8,4", arrival="closed:3", num_requests=7))
    assert workload.num_at_a_time == 3 and [r.arrived_s for r in workload.requests] == [0.0] * 7


def test_a_duration_ends_a_workload() -> None:
    requests = make_workload(WorkloadAsk(lengths="fixed:8,4", rate=50.0, duration_s=10)).requests
    assert requests[-1].arrived_s < 10 and len(requests) == pytest.approx(500, rel=0.2)


@pytest.mark.parametrize(("ask", "words"), [
    (WorkloadAsk(rate=1.0, num_requests=1), "either a trace or the name"),
    (WorkloadAsk(lengths="sharegtp", rate=1.0, num_requests=1), "did you mean 'sharegpt'.*azure-conv"),
    (WorkloadAsk(lengths="sharegpt:8", rate=1.0, num_requests=1), "takes no setting"),
    (WorkloadAsk(lengths="lognormal:5", rate=1.0, num_requests=1), "PROMPT_MEAN,SIGMA,OUTPUT_MEAN,SIGMA"),
    (WorkloadAsk(lengths="uniform:9-3", rate=1.0, num_requests=1), "smaller number"),
    (WorkloadAsk(lengths="fixed:nan,3", rate=1.0, num_requests=1), "PROMPT,OUTPUT"),
    (WorkloadAsk(lengths="fixed:1e30,3", rate=1.0, num_requests=1), "at most 16777216"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0), "how many, or for how long"),
    (WorkloadAsk(lengths="sharegpt", arrival="closed:2", duration_s=5.0), "say how many"),
    (WorkloadAsk(lengths="sharegpt", num_requests=1), "give a rate"),
    (WorkloadAsk(lengths="sharegpt", rate=float("nan"), num_requests=1), "rate is nan"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0, num_requests=1, arrival="weekly"), "poisson, gamma:SHAPE"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0, num_requests=1, arrival="gamma:0"), "SHAPE"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0, num_requests=1, arrival="closed:2"), "has no rate"),
    (WorkloadAsk(lengths="sharegpt", num_requests=1, arrival="closed:2", rate_scale=2.0), "no times"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0, num_requests=1, arrival="trace"), "brings no arrivals"),
    (WorkloadAsk(lengths="sharegpt", rate=1.0, num_requests=1, rate_scale=2.0), "change the rate"),
])
def test_what_does_not_go_together_is_told(ask: WorkloadAsk, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_workload(ask)
