"""The pattern of a run over time, in words (S22)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from roofline import units
from roofline.serving.export import timeline
from roofline.serving.statistics import Result
from roofline.serving.waiting import FULL_POOL

_PARTS = 60


def pattern(result: Result) -> tuple[str, str]:
    """(name, sentence): overload, kv-pressure, burst, ramp or steady. The first that fits, in this order.

    overload: the queue is longer in the second half of the arrivals than in the first and does not empty before they end.
    kv-pressure: requests lost their blocks to others. burst: at some time the queue is far longer than on average, and is gone
    again. ramp: TPOT rises with the number of running requests, while requests arrive: what drains afterwards is no load.
    steady: none of these.
    """
    if not result.completed.any():
        return "nothing", "no request was served"
    series = timeline(result, _PARTS)
    arriving = series["t_s"] <= max(float(np.nanmax(result.sent_s)), series["t_s"][0])
    waiting = series["waiting"][arriving]
    half = len(waiting) // 2
    early, late = (float(part.mean()) if len(part) else 0.0 for part in (waiting[:half], waiting[half:]))
    if half > 2 and late > 2 * early + 1 and waiting[-1] > 0.5 * waiting.max() > 1:
        worst = _time(float(np.nanmax(result.ttft_s)))
        return "overload", f"more arrives than is served; the queue grows to {waiting.max():.0f} requests and TTFT to {worst}"
    lost = sum(result.recorder.preemptions)
    if lost:
        full = float((series["kv_usage"] >= FULL_POOL).mean())
        return (
            "kv-pressure",
            f"{lost:,} times a request lost its KV to others; the pool is over {100 * FULL_POOL:.0f} % full {100 * full:.0f} % of the time",
        )
    if waiting.max(initial=0) > 5 and waiting.max(initial=0) > 4 * max(waiting.mean(), 0.25):
        return "burst", f"a burst makes up to {waiting.max():.0f} requests wait; afterwards the queue empties again"
    running, tpot_s = series["running"][arriving], series["tpot_s"][arriving]
    if _correlation(running, tpot_s) > 0.7 and np.nanmax(tpot_s) > 1.3 * np.nanmin(tpot_s):
        low, high = (_time(float(end(tpot_s))) for end in (np.nanmin, np.nanmax))
        return "ramp", f"TPOT follows the number of running requests, from {low} to {high}, and nobody waits long"
    return "steady", f"TTFT stays near {_time(float(np.nanmean(result.ttft_s)))}, TPOT near {_time(_mean(result.tpot_s))}"


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else 0.0


def _time(seconds: float) -> str:
    return units.format(seconds, "time")


def _correlation(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    good = np.isfinite(a) & np.isfinite(b)
    if good.sum() < 5 or a[good].std() == 0 or b[good].std() == 0:
        return 0.0
    return float(np.corrcoef(a[good], b[good])[0, 1])
