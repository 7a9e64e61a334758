"""Knees of curves whose knee is known."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.loadtest.knee import Rung, best_power, crossing, find

LADDER = (1, 2, 4, 8, 16, 32, 64, 128)


def hard(n: int, *, slots: int = 16, service: float = 0.82) -> float:
    """Mean latency with `slots` servers: what is above waits."""
    return service * max(1.0, n / slots)


def soft(n: int) -> float:
    """Mean latency where every stream slows every other: 1.46 s + 31.5 ms · n."""
    return 1.46 + 0.0315 * n


def rungs(curve: object, ladder: tuple[int, ...], *, noise: float = 0.02, seed: int = 0) -> list[Rung]:
    rng = np.random.default_rng(seed)
    return [Rung(n, curve(n) * rng.normal(1, noise, 40 + 4 * n)) for n in ladder]  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_knee(seed: int) -> None:
    found = find(rungs(hard, LADDER, seed=seed))
    assert found["ci"][0] <= 16 <= found["ci"][1]
    assert found["concurrency"] == pytest.approx(16, rel=0.05)
    assert found["best_power_ci"][0] <= 16 <= found["best_power_ci"][1]
    assert found["max_requests_per_s"] == pytest.approx(16 / 0.82, rel=0.05)


@pytest.mark.parametrize("seed", range(5))
def test_a_soft_knee(seed: int) -> None:
    """R = a + bN: asymptotes cross at (a + b)/b = 47.3, power peaks at a/b = 46.3."""
    found = find(rungs(soft, LADDER, seed=seed))
    assert found["ci"][0] <= 47.3 <= found["ci"][1]
    assert found["best_power_ci"][0] <= 46.3 <= found["best_power_ci"][1]
    assert found["max_requests_per_s"] == pytest.approx(1 / 0.0315, rel=0.1)


def test_exact_curves() -> None:
    n = np.array(LADDER, dtype=float)
    assert crossing(n, np.array([hard(k) for k in LADDER])) == pytest.approx(16)
    assert crossing(n, np.array([soft(k) for k in LADDER])) == pytest.approx(1.4915 / 0.0315)
    assert best_power(n, np.array([soft(k) for k in LADDER])) == pytest.approx(1.46 / 0.0315)
    assert best_power(n, np.array([hard(k) for k in LADDER])) == pytest.approx(16)


def test_a_knee_between_stages_is_bracketed() -> None:
    found = find(rungs(hard, (1, 10, 24, 48, 96)))
    assert found["ci"][0] <= 16 <= found["ci"][1]
    low, high = found["best_power_ci"]
    assert low <= 16 <= high


def test_throughput_that_falls_again() -> None:
    """Preemption makes latency grow faster than the load: the best measured throughput counts, not the slope."""
    thrash = [Rung(n, np.full(50, r)) for n, r in ((1, 1.0), (8, 1.0), (16, 2.0), (32, 8.0))]
    assert find(thrash)["concurrency"] == pytest.approx(8)


@pytest.mark.parametrize("ladder", [(1, 2, 4, 8), (4,), ()])
def test_a_ladder_that_is_too_low_says_so(ladder: tuple[int, ...]) -> None:
    found = find(rungs(hard, ladder))
    assert found["concurrency"] is None
    assert found["reason"]


def test_capacity_under_service_levels() -> None:
    ladder = [Rung(n, np.ones(1000), met=m, total=1000) for n, m in ((1, 1000), (2, 999), (4, 955), (8, 945), (16, 300), (32, 1000))]
    found = find(ladder, service_levels=True)
    assert found["slo_capacity"] == 4  # 32 does not count: 16 is below it and fails
    assert found["slo_capacity_ci"] == [2, 8]
    assert "slo_capacity" not in find(ladder)
