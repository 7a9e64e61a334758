"""Latency statistics against explicit loops and published values."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from roofline.loadtest.statistics import describe, met, quantile_interval, summary, wilson
from tests.loadtest.builders import record, stage


def percentile_by_hand(values: list[float], share: float) -> float:
    """Linear between order statistics, as numpy and Excel's PERCENTILE.INC do: rank (n − 1)·share."""
    ordered = sorted(values)
    rank = (len(ordered) - 1) * share
    low = int(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (rank - low) * (ordered[high] - ordered[low])


@pytest.mark.parametrize("n", [1, 2, 30, 999])
def test_percentiles(n: int) -> None:
    rng = random.Random(n)
    values = [rng.lognormvariate(0, 1) for _ in range(n)]
    found = summary(np.array(values), tail=True)
    for name, share in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}.items():
        assert found[name] == pytest.approx(percentile_by_hand(values, share))
    assert (found["n"], found["min"], found["max"]) == (n, min(values), max(values))
    assert found["mean"] == pytest.approx(math.fsum(values) / n)


def test_p99_of_thirty_is_not_the_second_largest() -> None:
    values = np.arange(1.0, 31.0)
    assert summary(values)["p99"] == pytest.approx(29.71)
    assert summary(values)["p99_ci"][1] is None  # thirty samples cannot bound a p99 from above


def test_nothing_is_null() -> None:
    found = summary(np.array([math.nan]))
    assert found.pop("n") == 0
    assert set(found.values()) == {None}


def test_quantile_intervals_cover() -> None:
    """Of many samples of 300 from a known distribution, about 95 % of the intervals contain the true quantile."""
    rng = np.random.default_rng(1)
    for share in (0.5, 0.9):
        truth = -math.log(1 - share)
        inside = 0
        for _ in range(1000):
            low, high = quantile_interval(np.sort(rng.exponential(size=300)), share)
            assert low is not None
            assert high is not None
            inside += low <= truth <= high
        assert 930 <= inside <= 985


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson(hits: int, n: int, low: float, high: float) -> None:
    """Source: Newcombe 1998, Statistics in Medicine 17, table I, method 3 (score method)."""
    assert wilson(hits, n) == pytest.approx((low, high), abs=6e-5)


def test_describe() -> None:
    records = [record(k, start=k * 1.0, ttft=0.1 * (k + 1), tokens=5) for k in range(4)] + [record(4, start=1.0, error="503")]
    found = describe(stage(records), 2, {"ttft": 0.25})
    assert (found["requests_ok"], found["requests_failed"], found["errors"]) == (4, 1, {"503": 1})
    assert found["ttft_s"]["mean"] == pytest.approx(0.25)
    assert found["tpot_s"]["p50"] == pytest.approx(0.02)
    assert found["duration_s"] == pytest.approx(3 + 0.4 + 0.08)
    assert found["output_tokens_per_s"] == pytest.approx(20 / 3.48)
    assert found["steady_requests_per_s"] == pytest.approx(2 / (0.35 + 0.08))  # requests 2 and 3: the first wave is left out
    assert found["goodput"]["met"] == 2
    assert found["goodput"]["attainment"] == pytest.approx(2 / 5)
    assert found["output_tokens"] == {"requested_mean": 5, "mean": 5, "total": 20, "mismatched": 0}


def test_the_first_wave_is_left_out_of_steady_figures() -> None:
    def steady(n: int, streams: int) -> int:
        return int(stage(record(k) for k in range(n)).steady(streams).sum())

    assert (steady(8, 2), steady(4, 2), steady(3, 2), steady(2, 4)) == (6, 2, 3, 2)
    few = describe(stage(record(k) for k in range(3)), 4, {})
    assert "3 requests are fewer than 4 streams" in few["warnings"][-1]
    assert "steady_requests_per_s" not in few


def test_service_levels() -> None:
    data = stage(
        [record(0, ttft=0.1, gap=0.01), record(1, ttft=0.3, gap=0.01), record(2, ttft=0.1, gap=0.05), record(3, ttft=0.1, tokens=1)]
    )
    assert met(data, {"ttft": 0.2}) == 3
    assert met(data, {"ttft": 0.2, "tpot": 0.02}) == 2  # one token has no tpot to miss
    assert met(data, {"e2el": 0.12}) == 1
    assert met(data, {}) == 4


def test_warnings() -> None:
    def notes(**change: object) -> str:
        each = record()
        for name, value in change.items():
            setattr(each, name, value)
        return " | ".join(describe(stage([each]), None, {})["warnings"])

    assert notes() == ""
    assert "each chunk is taken as one token" in notes(tokens_source="chunks")
    assert "2.50 tokens on average" in notes(chunks=2)
    assert "another length than requested (5.0 for 9.0" in notes(requested_output_tokens=9)
    assert "prompts have 16.0 tokens" in notes(requested_input_tokens=10)
    batched = record(gap=0.0)
    assert "batched by the server or a proxy" in describe(stage([batched]), None, {})["warnings"][0]
