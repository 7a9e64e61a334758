"""Latency statistics against the same figures from every single token."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.errors import InputError
from roofline.scheduling import CountingPool, VllmConfig, VllmScheduler
from roofline.serving.recorder import STRETCH_FIELDS, Recorder
from roofline.serving.simulator import simulate
from roofline.serving.statistics import Result, _summary_of_lines
from roofline.serving.workloads import Workload, open_loop, uniform_length
from tests.serving.affine import AffineTimer


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1), st.integers(1, 30), st.integers(1, 5)), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_percentiles_of_lines_are_those_of_the_samples(rows):
    samples = np.sort(np.concatenate([np.repeat(np.linspace(first, last, steps), weight) for first, last, steps, weight in rows]))
    rows = [(first, last if steps > 1 else first, steps, weight) for first, last, steps, weight in rows]
    summary = _summary_of_lines(np.array(rows, dtype=float))
    assert summary.mean == pytest.approx(samples.mean(), rel=1e-9)
    for share, value in ((0.5, summary.p50), (0.9, summary.p90), (0.99, summary.p99)):
        below = np.count_nonzero(samples <= value * (1 + 1e-9))
        under = np.count_nonzero(samples < value * (1 - 1e-9))
        assert under < share * len(samples) + 1e-6
        assert below >= share * len(samples) - 1e-6


def test_definitions_on_three_requests():
    recorder = Recorder(3)
    for index, (sent, first, end, tokens) in enumerate([(0.0, 1.0, 3.0, 5), (1.0, 1.5, 1.5, 1), (2.0, 6.0, 8.0, 2)]):
        recorder.sent_s[index], recorder.first_token_s[index], recorder.end_s[index] = sent, first, end
        recorder.generated_tokens[index] = tokens
    result = Result(Workload(np.zeros(3), np.full(3, 10), np.array([5, 1, 2])), recorder, 0.0)
    np.testing.assert_allclose(result.ttft_s, [1, 0.5, 4])
    np.testing.assert_allclose(result.e2el_s, [3, 0.5, 6])
    np.testing.assert_allclose(result.tpot_s, [0.5, np.nan, 2])
    assert result.makespan_s == 8
    assert result.goodput({"ttft": 1.0}) == pytest.approx(2 / 8)
    assert result.goodput({"ttft": 1.0, "tpot": 0.4}) == pytest.approx(1 / 8)
    assert result.goodput({"tpot": 3.0, "e2el": 3.0}) == pytest.approx(2 / 8)
    with pytest.raises(InputError, match="service level itl"):
        result.goodput({"itl": 1.0})


def test_the_document_has_the_promised_keys():
    workload = open_loop(30, 5.0, uniform_length(1, 100), uniform_length(1, 50))
    document = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(500)), AffineTimer()).to_json({"ttft": 0.5})
    assert document["requests"] == 30
    for key in ("ttft_s", "tpot_s", "e2el_s", "itl_s"):
        assert set(document[key]) == {"mean", "p50", "p90", "p99"}
    assert {"makespan_s", "preemptions", "prefix_cache_hit_rate", "output_tokens_per_s", "cpu_s", "goodput"} <= set(document)
    assert document["goodput"]["share"] == 1.0


def test_gaps_add_up_to_the_time_between_first_and_last_token():
    workload = open_loop(80, 20.0, uniform_length(1, 300), uniform_length(1, 150), seed=9)
    for asynchronous in (False, True):
        result = simulate(workload, VllmScheduler(VllmConfig(128, 16), CountingPool(60)), AffineTimer(), asynchronous=asynchronous)
        assert sum(result.recorder.preemptions) > 0
        gaps = np.array(result.recorder.gaps).reshape(-1, 4)
        total = ((gaps[:, 0] + gaps[:, 1]) / 2 * gaps[:, 2] * gaps[:, 3]).sum()
        first = np.array(result.recorder.first_token_s)
        assert total == pytest.approx((result.ended_s - first).sum(), rel=1e-9)
        assert (gaps[:, 2] * gaps[:, 3]).sum() == (workload.output_tokens - 1).sum()


def test_stretches_cover_the_run_in_order():
    workload = open_loop(50, 5.0, uniform_length(1, 300), uniform_length(1, 150))
    result = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(500)), AffineTimer())
    steps = result.stretches
    assert steps.shape[1] == len(STRETCH_FIELDS)
    assert (np.diff(steps[:, 0]) >= 0).all()
    assert (steps[1:, 0] >= steps[:-1, 1] - 1e-12).all()
    assert steps[-1, 1] == result.ended_s.max()


@pytest.mark.parametrize(("count", "expected"), [(1000, 50.0), (30, 30 * 5 / 12.9)])
def test_steady_tokens_leave_out_filling_up_and_draining(count, expected):
    """Ten requests a second of five tokens, each gone after ten seconds: 50 tokens/s; too few of them give the whole run's."""
    recorder = Recorder(count)
    for index in range(count):
        recorder.sent_s[index], recorder.end_s[index] = 0.1 * index, 0.1 * index + 10.0
        recorder.generated_tokens[index] = 5
    result = Result(open_loop(count, 10.0, uniform_length(1, 2), uniform_length(5, 5)), recorder, 0.0)
    assert result.steady_output_tokens_per_s == pytest.approx(expected, rel=0.01)
    assert Result(result.workload, Recorder(count), 0.0).steady_output_tokens_per_s == 0
