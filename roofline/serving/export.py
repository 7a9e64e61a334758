"""A simulation over time: series for charts, one row per request, and a trace for chrome://tracing or Perfetto."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.serving.recorder import STRETCH_FIELDS
from roofline.serving.statistics import Result

Floats = NDArray[np.float64]


def timeline(result: Result, points: int = 200) -> dict[str, Floats]:
    """Series over `points` equal intervals of the run.

    t_s: their ends; running, waiting: requests over all engines and kv_usage (0 … 1, mean over engines), as of the last step
    begun; output_tokens_per_s, prefill_tokens_per_s: what the steps that ended in the interval made;
    ttft_s, tpot_s: means over the requests whose first (last) token came in the interval, NaN if none.
    """
    if points < 1:
        raise InputError(f"{points} points: at least 1")
    log = result.stretches
    end = float(log[:, 1].max()) if len(log) else 0.0
    edges = np.linspace(0.0, end, points + 1)
    column = {name: log[:, at] for at, name in enumerate(STRETCH_FIELDS)}
    engines = np.unique(column["instance"])
    series: dict[str, Floats] = {"t_s": edges[1:]}
    for name in ("running", "waiting", "kv_usage"):
        states = [_as_of(column["start_s"], column[name], column["instance"] == engine, edges[1:]) for engine in engines]
        series[name] = np.sum(states, axis=0) if states else np.zeros(points)
    series["kv_usage"] = series["kv_usage"] / max(1, len(engines))
    width = max(end / points, np.finfo(float).tiny)
    emitted = _spread(column["start_s"], column["end_s"], column["decodes"] * column["steps"], edges)
    firsts = np.histogram(result.sent_s + result.ttft_s, edges)[0]
    series["output_tokens_per_s"] = (emitted + firsts) / width
    series["prefill_tokens_per_s"] = _spread(column["start_s"], column["end_s"], column["prefill_tokens"], edges) / width
    series["ttft_s"] = _mean_by(result.sent_s + result.ttft_s, result.ttft_s, edges)
    series["tpot_s"] = _mean_by(result.ended_s, result.tpot_s, edges)
    return series


def _as_of(times: Floats, values: Floats, mine: NDArray[np.bool_], at: Floats) -> Floats:
    """The last value of one engine that was set before each moment."""
    index = np.searchsorted(times[mine], at) - 1
    return np.where(index >= 0, values[mine][np.maximum(index, 0)], 0.0)


def _spread(start: Floats, end: Floats, amount: Floats, edges: Floats) -> Floats:
    """Amounts that come evenly between start and end, per interval."""
    order_start, order_end = np.argsort(start, kind="stable"), np.argsort(end, kind="stable")
    rate = amount / np.maximum(end - start, np.finfo(float).tiny)

    def came(order: NDArray[np.intp], times: Floats) -> Floats:
        """Σ rate · (edge − time) over the times before each edge."""
        sorted_times, sorted_rates = times[order], rate[order]
        cumulated = np.concatenate(([0.0], np.cumsum(sorted_rates)))
        moments = np.concatenate(([0.0], np.cumsum(sorted_rates * sorted_times)))
        at = np.searchsorted(sorted_times, edges)
        total: Floats = cumulated[at] * edges - moments[at]
        return total

    spread: Floats = np.diff(came(order_start, start) - came(order_end, end))
    return spread


def _mean_by(times: Floats, values: Floats, edges: Floats) -> Floats:
    good = np.isfinite(times) & np.isfinite(values)
    count = np.histogram(times[good], edges)[0]
    total = np.histogram(times[good], edges, weights=values[good])[0]
    mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


def request_rows(result: Result) -> list[dict[str, Any]]:
    """One row per request, in order: times in seconds from the start, counts of tokens; None where it was rejected."""
    columns: dict[str, Any] = {
        "sent_s": result.sent_s,
        "scheduled_s": np.array(result.recorder.scheduled_s),
        "first_token_s": np.array(result.recorder.first_token_s),
        "end_s": result.ended_s,
        "ttft_s": result.ttft_s,
        "tpot_s": result.tpot_s,
        "e2el_s": result.e2el_s,
    }
    counts = {
        "input_tokens": result.workload.input_tokens,
        "output_tokens": result.output_tokens,
        "cached_tokens": np.array(result.recorder.cached_tokens),
        "preemptions": np.array(result.recorder.preemptions),
        "instance": np.array(result.recorder.instance),
    }
    return [
        {"request": index}
        | {name: None if np.isnan(values[index]) else float(values[index]) for name, values in columns.items()}
        | {name: int(values[index]) for name, values in counts.items()}
        for index in range(len(result.workload))
    ]


def chrome_trace(result: Result, *, limit: int = 100_000) -> dict[str, Any]:
    """The run in Chrome's trace format (times in µs): a process per engine with its steps and gauges, one with a span per request.

    limit: most steps and most requests that are written; `otherData` tells what was left out.
    """
    events: list[dict[str, Any]] = []
    log = result.stretches
    for start, end, steps, decodes, prefill, running, waiting, kv_usage, engine in log[:limit].tolist():
        kind = "decode" if not prefill else "prefill" if not decodes else "mixed"
        detail = {"steps": int(steps), "decodes": int(decodes), "prefill_tokens": int(prefill)}
        place = {"pid": int(engine), "tid": 0, "ts": start * 1e6}
        events.append({"name": kind, "ph": "X", "dur": (end - start) * 1e6, "args": detail, **place})
        events.append({"name": "requests", "ph": "C", "args": {"running": int(running), "waiting": int(waiting)}, **place})
        events.append({"name": "kv", "ph": "C", "args": {"usage": kv_usage}, **place})
    first = np.array(result.recorder.first_token_s)
    for index in np.flatnonzero(result.completed)[:limit].tolist():
        place = {"pid": 1_000_000, "tid": index}
        spans = (("to first token", result.sent_s[index], first[index]), ("output", first[index], result.ended_s[index]))
        events += [{"name": name, "ph": "X", "ts": begin * 1e6, "dur": (end - begin) * 1e6, **place} for name, begin, end in spans]
    names = {int(engine): f"engine {int(engine)}" for engine in np.unique(log[:, 8])} | {1_000_000: "requests"}
    events += [{"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}} for pid, name in names.items()]
    left_out = {"steps_left_out": max(0, len(log) - limit), "requests_left_out": max(0, int(result.completed.sum()) - limit)}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": left_out}
