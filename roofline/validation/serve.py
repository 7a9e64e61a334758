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
LOAD = 0.5  # of the rate that all requests at once are served with


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


def latencies(workload: Workload, scheduler: Scheduler, timer: LineTimer) -> dict[str, float]:
    """Simulated seconds by "ttft/mean" and so on, and "makespan"."""
    result = simulate(workload, scheduler, timer)
    found = {f"{name}/{key}": value for name in METRICS for key, value in result.to_json()[f"{name}_s"].items() if key in STATISTICS}
    return {**found, "makespan": float(result.to_json()["makespan_s"])}


def timeline(workload: Workload, scheduler: Scheduler, timer: LineTimer) -> list[dict[str, Any]]:
    """When each request is simulated to be sent, to give its first token and its last: index, start_s, first_token_s, last_token_s."""
    kept = {"request": "index", "sent_s": "start_s", "first_token_s": "first_token_s", "end_s": "last_token_s"}
    return [{mine: row[theirs] for theirs, mine in kept.items()} for row in request_rows(simulate(workload, scheduler, timer))]


def predictions(basis: Basis, expected: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float]) -> list[Prediction]:
    """One prediction per metric and statistic. The bound is not stated: a queue has none."""
    names = [f"{metric}/{statistic}" for metric in METRICS for statistic in STATISTICS]
    return [
        Prediction(f"trace/{n}", n.split("/")[0], basis.name, 0.0, expected[n], min(low[n], expected[n]), max(high[n], expected[n]))
        for n in names
    ]


def middle(requests: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The requests of the repeat whose mean TTFT lies in the middle of all repeats."""
    repeats: dict[object, list[Mapping[str, Any]]] = {}
    for request in requests:
        repeats.setdefault(request.get("repeat"), []).append(request)
    ordered = sorted(repeats.values(), key=lambda rows: float(np.mean(_values("ttft", rows))))
    return ordered[(len(ordered) - 1) // 2] if ordered else []


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
