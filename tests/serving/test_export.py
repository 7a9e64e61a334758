"""Timelines and traces: totals must be those of the run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.scheduling import CountingPool, VllmConfig, VllmScheduler
from roofline.serving.export import chrome_trace, request_rows, timeline
from roofline.serving.routers import RoundRobin
from roofline.serving.simulator import simulate, simulate_replicas
from roofline.serving.workloads import Workload, open_loop, uniform_length
from tests.serving.affine import AffineTimer


@pytest.fixture(scope="module")
def result():
    schedulers = [VllmScheduler(VllmConfig(256, 16), CountingPool(300)) for _ in range(2)]
    workload = open_loop(120, 12.0, uniform_length(1, 500), uniform_length(1, 200), seed=8)
    return simulate_replicas(workload, schedulers, AffineTimer(), router=RoundRobin())


def test_rates_integrate_to_the_tokens(result):
    series = timeline(result, 73)
    width = series["t_s"][1] - series["t_s"][0]
    log = result.stretches
    assert series["prefill_tokens_per_s"].sum() * width == pytest.approx(log[:, 4].sum())
    assert series["output_tokens_per_s"].sum() * width == pytest.approx((log[:, 2] * log[:, 3]).sum() + len(result.workload))


def test_gauges_are_those_of_the_steps(result):
    series = timeline(result, 11)
    log = result.stretches
    for number, moment in enumerate(series["t_s"]):
        running = 0
        for engine in (0, 1):
            mine = [row for row in log if row[8] == engine and row[0] < moment]
            running += mine[-1][5] if mine else 0
        assert series["running"][number] == running
    assert (series["kv_usage"] <= 1).all()


def test_a_timeline_of_nothing_is_zero():
    workload = Workload(np.zeros(1), np.array([10_000]), np.array([1]))
    series = timeline(simulate(workload, VllmScheduler(VllmConfig(), CountingPool(10)), AffineTimer()), 5)
    assert (series["running"] == 0).all()
    with pytest.raises(InputError):
        timeline(simulate(workload, VllmScheduler(VllmConfig(), CountingPool(10)), AffineTimer()), 0)


def test_a_row_per_request(result):
    rows = request_rows(result)
    assert [row["request"] for row in rows] == list(range(120))
    assert sum(row["output_tokens"] for row in rows) == result.workload.output_tokens.sum()
    assert rows[3]["ttft_s"] == pytest.approx(rows[3]["first_token_s"] - rows[3]["sent_s"])


def test_the_trace_holds_every_step_and_request_in_microseconds(result):
    trace = json.loads(json.dumps(chrome_trace(result)))
    events = trace["traceEvents"]
    steps = [event for event in events if event["ph"] == "X" and event["pid"] < 2]
    assert sum(event["args"]["steps"] for event in steps) == result.stretches[:, 2].sum()
    spans = [event for event in events if event["ph"] == "X" and event["pid"] == 1_000_000]
    assert len(spans) == 240
    assert sum(event["dur"] for event in spans) == pytest.approx(result.e2el_s.sum() * 1e6)
    short = chrome_trace(result, limit=10)
    assert short["otherData"]["requests_left_out"] == 110
