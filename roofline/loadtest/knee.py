"""Where more concurrency stops to pay: three answers, each with an interval, from the latencies of a ladder.

By Little's law a closed loop of N streams has the throughput X = N / R(N), with R the mean end-to-end latency. So the ladder's
latencies alone give everything: the throughput that R's slope leads to (dR/dN → 1/X_max once the server is full, on a curve
with a corner and on a smooth one alike), N* = X_max · R(1) where the asymptotes of an idle and a full server cross, and the N
with the most throughput per latency. Source: Little 1961; Lazowska et al., Quantitative System Performance, asymptotic bounds;
Kleinrock 1979 (power).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.loadtest.statistics import wilson

Floats = NDArray[np.float64]
RESAMPLES = 400
LEAST_RISE = 0.2
"""Elasticity dlnR/dlnN at the top of the ladder below which the server still scales and no knee is in sight."""
ATTAINMENT = 0.95


@dataclass(frozen=True)
class Rung:
    """One stage of a ladder. e2el_s: latencies of its steady requests; met, total: requests within the service levels, and all."""

    concurrency: int
    e2el_s: Floats
    met: int = 0
    total: int = 0


def find(rungs: Sequence[Rung], *, service_levels: bool = False, seed: int = 0) -> dict[str, Any]:
    """The keys of `knee`: concurrency (N*), best_power and, with service levels, slo_capacity; each with `ci` (95 %).

    Intervals of the first two come from resampling requests within stages; streams are whole, so they are rounded outwards. An
    answer is null where the ladder does not reach far enough; `reason` says so.
    """
    usable = sorted((rung for rung in rungs if len(rung.e2el_s)), key=lambda rung: rung.concurrency)
    result: dict[str, Any] = {"concurrency": None, "ci": None, "best_power": None, "best_power_ci": None, "max_requests_per_s": None}
    if len(usable) < 2:
        return result | {"reason": "a knee needs at least two stages with good requests"} | _capacity(rungs, service_levels)
    n = np.array([rung.concurrency for rung in usable], dtype=np.float64)
    means = np.array([rung.e2el_s.mean() for rung in usable])
    if not _saturated(n, means):
        reason = f"throughput still grows at {usable[-1].concurrency} streams: climb higher"
        return result | {"reason": reason} | _capacity(rungs, service_levels)
    rng = np.random.default_rng(seed)
    samples = np.stack([_resampled_means(rung.e2el_s, rng) for rung in usable], axis=1)
    stars = [crossing(n, row) for row in samples]
    powers = [best_power(n, row) for row in samples]
    result |= {
        "concurrency": crossing(n, means),
        "ci": _whole(stars),
        "best_power": best_power(n, means),
        "best_power_ci": _bracket(n, powers),
        "max_requests_per_s": max_throughput(n, means),
        "max_requests_per_s_measured": float((n / means).max()),
        "lowest_stage_e2el_s": float(means[0]),
        "reason": "",
    }
    return result | _capacity(rungs, service_levels)


def max_throughput(n: Floats, latency_s: Floats) -> float:
    """Requests/s of a full server: the best measured N/R, or 1 / (slope of R over N) between the last two stages if that is more."""
    slope = (latency_s[-1] - latency_s[-2]) / (n[-1] - n[-2])
    best = float((n / latency_s).max())
    return max(best, 1 / slope) if slope > 0 else best


def crossing(n: Floats, latency_s: Floats) -> float:
    """N* = X_max · R of the lowest stage. A ladder should begin at 1."""
    return max_throughput(n, latency_s) * float(latency_s[0])


def best_power(n: Floats, latency_s: Floats) -> float:
    """N with the most X/R = N/R², R being linear between stages: on R = a + bN the optimum is a/b if the stretch contains it."""
    best, found = -math.inf, float(n[0])
    for at in range(len(n) - 1):
        slope = (latency_s[at + 1] - latency_s[at]) / (n[at + 1] - n[at])
        intercept = latency_s[at] - slope * n[at]
        inside = intercept / slope if slope > 0 else math.inf
        for candidate in {float(n[at]), float(n[at + 1]), float(min(max(inside, n[at]), n[at + 1]))}:
            power = candidate / (intercept + slope * candidate) ** 2
            if power > best * (1 + 1e-12):
                best, found = power, candidate
    return found


def _saturated(n: Floats, latency_s: Floats) -> bool:
    rise = math.log(latency_s[-1] / latency_s[-2]) / math.log(n[-1] / n[-2])
    return rise >= LEAST_RISE


def _resampled_means(values: Floats, rng: np.random.Generator) -> Floats:
    picks = rng.integers(0, len(values), (RESAMPLES, len(values)))
    means: Floats = values[picks].mean(axis=1)
    return means


def _whole(values: Sequence[float]) -> list[int]:
    low, high = np.percentile(values, [2.5, 97.5])
    return [math.floor(low), math.ceil(high)]


def _bracket(n: Floats, values: Sequence[float]) -> list[int]:
    """The resampled interval, widened to the neighbouring stages: between them nothing was measured."""
    low, high = _whole(values)
    below, above = n[n < low], n[n > high]
    return [int(below[-1]) if len(below) else low, int(above[0]) if len(above) else high]


def _capacity(rungs: Sequence[Rung], wanted: bool) -> dict[str, Any]:
    """The largest stage at which, and below which, ATTAINMENT of the requests meet the service levels."""
    if not wanted:
        return {}
    ladder = sorted(rungs, key=lambda rung: rung.concurrency)
    bands = [wilson(rung.met, rung.total) for rung in ladder]
    sure = _last(ladder, [low >= ATTAINMENT for low, _ in bands])
    likely = _last(ladder, [rung.total > 0 and rung.met / rung.total >= ATTAINMENT for rung in ladder])
    possible = _last(ladder, [high >= ATTAINMENT for _, high in bands])
    return {"slo_capacity": likely, "slo_capacity_ci": [sure, possible], "slo_attainment": ATTAINMENT}


def _last(ladder: Sequence[Rung], good: Sequence[bool]) -> int:
    """Concurrency of the last stage before the first that is not good; 0 if the first is not."""
    reached = 0
    for rung, fine in zip(ladder, good, strict=True):
        if not fine:
            break
        reached = rung.concurrency
    return reached
