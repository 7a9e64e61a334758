"""The simulator against the engine on the same trace: the scheduler is the same, so what differs is the time of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ledger import Precision
from roofline.profiles.model import Model
from roofline.scheduling import Scheduler
from roofline.serving.export import request_rows
from roofline.serving.simulator import simulate
from roofline.serving.workloads import Workload
from roofline.timing.step_timer import StepTimer
from roofline.validation.predictions import Basis, LineTimer, Prediction, StepConstants
from roofline.validation.verdicts import Measured

METRICS = ("ttft", "tpot")
STATISTICS = ("mean", "p50", "p90")
_RESAMPLES = 400
LOAD = 0.5  # of the rate that all requests at once are served with; see docs/how-to/validate.md on what that does to an error


def timer(model: Model, precision: Precision, basis: Basis, tokens: int) -> LineTimer:
    """Step times of the engine by the constants of a basis."""
    longest = min(model.max_position_embeddings or 4096, 4096)
    kernels = StepTimer(model, basis.hardware, precision=precision, engine="reference", max_tokens=tokens, max_context=longest)
    return LineTimer(kernels, basis.step)


def scaled(constants: StepConstants, factor: float) -> StepConstants:
    """Constants of an engine that takes `factor` × as long for each step."""
    return StepConstants(
        factor * constants.fixed_s,
        factor * constants.per_token_s,
        factor * constants.scale,
        factor * constants.per_cached_s,
        factor * constants.per_group_s,
        constants.spread,
    )


def makespan(workload: Workload, scheduler: Scheduler, timer: LineTimer) -> float:
    """Simulated seconds until the last token."""
    return float(simulate(workload, scheduler, timer).to_json()["makespan_s"])


def timeline(workload: Workload, scheduler: Scheduler, timer: LineTimer) -> list[dict[str, Any]]:
    """When each request is simulated to be sent, to give its first token and its last, and how many: the keys of its record."""
    kept = {"request": "index", "sent_s": "start_s", "first_token_s": "first_token_s", "end_s": "last_token_s"}
    rows = request_rows(simulate(workload, scheduler, timer))
    return [
        {mine: row[theirs] for theirs, mine in kept.items()} | {"output_tokens": row["output_tokens"], "first_chunk_tokens": 1}
        for row in rows
    ]


def statistics(requests: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by "ttft/mean" and so on, of served or simulated requests."""
    values = {metric: np.array([_values(metric, requests)]) for metric in METRICS}
    return {f"{metric}/{name}": float(_statistic(values[metric], name)[0]) for metric in METRICS for name in STATISTICS}


def predictions(simulated: Sequence[Mapping[str, Any]]) -> list[Prediction]:
    """One per metric and statistic of each basis, from what was stated for all requests. The bound is not stated: a queue has none."""
    found = []
    for basis in dict.fromkeys(row["basis"] for row in simulated):
        mine = {
            edge: statistics([r for r in simulated if (r["basis"], r["edge"]) == (basis, edge)]) for edge in ("expected", "low", "high")
        }
        for name, expected in mine["expected"].items():
            low, high = min(mine["low"][name], expected), max(mine["high"][name], expected)
            found.append(Prediction(f"trace/{name}", name.split("/")[0], basis, 0.0, expected, low, high))
    return found


def measured(requests: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Measured]:
    """Statistics of served requests (records of kind request) with 80 % bootstrap intervals over the requests."""
    rng = np.random.default_rng(seed)
    found = {}
    for metric in METRICS:
        data = np.array(_values(metric, requests))
        draws = data[rng.integers(0, len(data), (_RESAMPLES, len(data)))]
        for statistic in STATISTICS:
            low, high = np.quantile(_statistic(draws, statistic), (0.1, 0.9))
            found[f"trace/{metric}/{statistic}"] = Measured(
                float(_statistic(data[None, :], statistic)[0]), float(low), float(high), len(data)
            )
    return found


def _values(metric: str, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    if metric == "ttft":
        return [r["first_token_s"] - r["start_s"] for r in requests]
    more = [r for r in requests if r["output_tokens"] > 1]
    return [(r["last_token_s"] - r["first_token_s"]) / (r["output_tokens"] - r["first_chunk_tokens"]) for r in more]


def _statistic(rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    return np.asarray(rows.mean(axis=1) if name == "mean" else np.percentile(rows, float(name[1:]), axis=1))
