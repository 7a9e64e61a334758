"""The simulator against the engine on the same trace: the scheduler is the same, so what differs is the time of steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ledger import Precision
from roofline.profiles.model import Model
from roofline.scheduling import Scheduler
from roofline.serving.simulator import simulate
from roofline.serving.workloads import Workload
from roofline.timing.step_timer import StepTimer
from roofline.validation.predictions import Basis, LineTimer, Prediction, StepConstants
from roofline.validation.verdicts import Measured

METRICS = ("ttft", "tpot")
STATISTICS = ("mean", "p50", "p90")
_RESAMPLES = 400
LOAD = 0.6  # of the rate that all requests at once are served with


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
        constants.spread,
    )


def latencies(workload: Workload, scheduler: Scheduler, timer: LineTimer) -> dict[str, float]:
    """Simulated seconds by "ttft/mean" and so on, and "makespan"."""
    result = simulate(workload, scheduler, timer)
    found = {f"{name}/{key}": value for name in METRICS for key, value in result.to_json()[f"{name}_s"].items() if key in STATISTICS}
    return {**found, "makespan": float(result.to_json()["makespan_s"])}


def predictions(basis: Basis, expected: Mapping[str, float], low: Mapping[str, float], high: Mapping[str, float]) -> list[Prediction]:
    """One prediction per metric and statistic. The bound is not stated: a queue has none."""
    names = [f"{metric}/{statistic}" for metric in METRICS for statistic in STATISTICS]
    return [
        Prediction(f"trace/{n}", n.split("/")[0], basis.name, 0.0, expected[n], min(low[n], expected[n]), max(high[n], expected[n]))
        for n in names
    ]


def measured(requests: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Measured]:
    """Statistics of served requests (records of kind request) with 80 % bootstrap intervals over the requests."""
    rng = np.random.default_rng(seed)
    values = {"ttft": [r["first_token_s"] - r["start_s"] for r in requests]}
    more = [r for r in requests if r["output_tokens"] > 1]
    values["tpot"] = [(r["last_token_s"] - r["first_token_s"]) / (r["output_tokens"] - r["first_chunk_tokens"]) for r in more]
    found = {}
    for metric, each in values.items():
        data = np.array(each)
        draws = data[rng.integers(0, len(data), (_RESAMPLES, len(data)))]
        for statistic in STATISTICS:
            low, high = np.quantile(_statistic(draws, statistic), (0.1, 0.9))
            found[f"trace/{metric}/{statistic}"] = Measured(
                float(_statistic(data[None, :], statistic)[0]), float(low), float(high), len(data)
            )
    return found


def _statistic(rows: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    return np.asarray(rows.mean(axis=1) if name == "mean" else np.percentile(rows, float(name[1:]), axis=1))
