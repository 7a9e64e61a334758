"""A prediction beside a measurement: `roofline plan --json` or `roofline simulate --json` against the stages of a load test."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.errors import RecordError, well_formed

_SIMULATED = (("ttft_s", "p50"), ("ttft_s", "p99"), ("tpot_s", "p50"), ("tpot_s", "p99"), ("e2el_s", "p50"), ("e2el_s", "p99"))


def load_prediction(path: Path) -> dict[str, Any]:
    """The JSON document of plan or simulate. Raises RecordError for anything else."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path}: not JSON: {error}") from None
    command = document.get("command") if isinstance(document, dict) else None
    if command not in ("plan", "simulate"):
        raise RecordError(f"{path}:command: {command!r}; --compare takes the --json output of roofline plan or roofline simulate")
    if command == "plan" and not document.get("curve"):
        raise RecordError(f"{path}:curve: missing or empty; the plan has nothing over concurrency")
    return dict(document)


def compare(prediction: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row per stage and metric: stage, metric, statistic, measured, expected, low, high (None: not told), error (expected /
    measured − 1) and inside (low ≤ measured ≤ high; None without an interval).

    A plan's TPOT is a mean step; it stands beside the median. Between the batches of its curve it is interpolated along the
    logarithm of the batch; outside of them there is no row. A simulation stands beside the stage of its own load if it
    names one, else beside every stage.
    """
    command = prediction["command"]
    with well_formed("the prediction", f"roofline {command} --json"):
        rows = _planned(prediction, stages) if command == "plan" else _simulated(prediction, stages)
    return [row for row in rows if row["measured"] is not None and row["expected"] is not None]


def _planned(plan: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for stage in stages:
        streams = stage["concurrency"]
        if not streams:
            continue
        for metric, statistic in (("ttft_s", "p50"), ("tpot_s", "p50"), ("output_tokens_per_s", "steady")):
            points = [(float(row["batch"]), _estimate(row[metric])) for row in plan["curve"] if row.get(metric) is not None]
            measured = stage.get("steady_output_tokens_per_s") if statistic == "steady" else stage[metric][statistic]
            rows.append(_row(stage, metric, statistic, measured, _between(sorted(points, key=lambda point: point[0]), float(streams))))
    return rows


def _simulated(result: Mapping[str, Any], stages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    inputs = result.get("inputs") or {}
    own = [
        stage
        for stage in stages
        if (stage["request_rate"] is not None and stage["request_rate"] == inputs.get("request_rate"))
        or (stage["concurrency"] is not None and stage["concurrency"] in (inputs.get("concurrency"), inputs.get("max_concurrency")))
    ]
    rows = []
    for stage in own or stages:
        for metric, statistic in _SIMULATED:
            expected = (result.get(metric) or {}).get(statistic)
            rows.append(_row(stage, metric, statistic, stage[metric][statistic], _estimate(expected)))
        throughput = _estimate(result.get("output_tokens_per_s"))
        rows.append(_row(stage, "output_tokens_per_s", "", stage["output_tokens_per_s"], throughput))
    return rows


def _estimate(value: Any) -> dict[str, float | None]:
    """expected, low and high of a number or an {bound, expected, low, high}."""
    if isinstance(value, Mapping):
        return {key: value.get(key) for key in ("expected", "low", "high")}
    return {"expected": value, "low": None, "high": None}


def _between(points: list[tuple[float, dict[str, float | None]]], at: float) -> dict[str, float | None]:
    nothing: dict[str, float | None] = {"expected": None, "low": None, "high": None}
    below = [point for point in points if point[0] <= at]
    above = [point for point in points if point[0] >= at]
    if not below or not above:
        return nothing
    (x0, first), (x1, second) = below[-1], above[0]
    share = math.log(at / x0) / math.log(x1 / x0) if x1 > x0 else 0.0
    result = dict(nothing)
    for key in nothing:
        a, b = first[key], second[key]
        result[key] = None if a is None or b is None else a + share * (b - a)
    return result


def _row(
    stage: Mapping[str, Any], metric: str, statistic: str, measured: float | None, estimate: Mapping[str, float | None]
) -> dict[str, Any]:
    expected, low, high = estimate["expected"], estimate["low"], estimate["high"]
    known = measured is not None and low is not None and high is not None
    return {
        "stage": stage["title"],
        "metric": metric,
        "statistic": statistic,
        "measured": measured,
        "expected": expected,
        "low": low,
        "high": high,
        "error": expected / measured - 1 if expected is not None and measured else None,
        "inside": low <= measured <= high if known else None,  # type: ignore[operator]  # known says so
    }
