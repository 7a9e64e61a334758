"""Latency statistics by exact definition, from the recorded times of a simulation.

ttft = first token − sent; e2el = last token − sent; tpot = (last − first token)/(output tokens − 1), of requests with two or more;
itl = the gap between two outputs of one request (with speculation an output may be several tokens). All in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.errors import InputError
from roofline.serving.recorder import GAP_FIELDS, STALLED, STRETCH_FIELDS, Recorder
from roofline.serving.workloads import Workload

Floats = NDArray[np.float64]
SERVICE_LEVELS = ("ttft", "tpot", "e2el")
_FEW = 40  # requests that say nothing about a trend


@dataclass(frozen=True)
class Summary:
    """Mean, median and upper percentiles (linear between order statistics); NaN of nothing."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Floats) -> Summary:
        """Of plain samples, NaNs left out."""
        values = values[~np.isnan(values)]
        if not len(values):
            return cls(np.nan, np.nan, np.nan, np.nan)
        return cls(float(values.mean()), *(float(q) for q in np.percentile(values, [50, 90, 99])))

    def to_json(self) -> dict[str, float | None]:
        """Keys mean, p50, p90, p99; None for unknown."""
        return {key: None if np.isnan(value) else value for key, value in vars(self).items()}


@dataclass(frozen=True, eq=False)
class Result:
    """What became of a workload. Arrays run over the requests, NaN for those that were rejected; cpu_s: CPU time of the simulation."""

    workload: Workload
    recorder: Recorder
    cpu_s: float

    @cached_property
    def sent_s(self) -> Floats:
        """When each request was sent."""
        return np.array(self.recorder.sent_s)

    @cached_property
    def ended_s(self) -> Floats:
        """When each request's last token came out."""
        return np.array(self.recorder.end_s)

    @cached_property
    def completed(self) -> NDArray[np.bool_]:
        """Who was served to the end."""
        return ~np.isnan(self.ended_s)

    @property
    def stalled(self) -> int:
        """Requests that were accepted and never ended, because the engine had stopped."""
        return sum(reason == STALLED for reason in self.recorder.rejected.values())

    @cached_property
    def output_tokens(self) -> NDArray[np.int64]:
        """Tokens that each request generated."""
        return np.array(self.recorder.generated_tokens)

    @cached_property
    def ttft_s(self) -> Floats:
        """Time to first token of each request."""
        return np.array(self.recorder.first_token_s) - self.sent_s

    @cached_property
    def queue_s(self) -> Floats:
        """Time from being sent to the start of the first step that computes anything of it."""
        return np.array(self.recorder.scheduled_s) - self.sent_s

    @cached_property
    def e2el_s(self) -> Floats:
        """End-to-end latency of each request."""
        return self.ended_s - self.sent_s

    @cached_property
    def tpot_s(self) -> Floats:
        """Time per output token after the first, of each request with at least two; NaN for the others."""
        tokens = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        tpot: Floats = (self.ended_s - np.array(self.recorder.first_token_s)) / tokens
        return tpot

    @cached_property
    def makespan_s(self) -> float:
        """From the first request sent to the last token; 0 if nothing was served."""
        return float(np.nanmax(self.ended_s) - np.nanmin(self.sent_s)) if self.completed.any() else 0.0

    @property
    def mean_in_system(self) -> float:
        """Requests in the system, averaged over the makespan (Little: throughput · mean latency)."""
        return float(np.nansum(self.e2el_s)) / self.makespan_s if self.makespan_s else 0.0

    def in_system(self, begin_s: float, end_s: float) -> float:
        """Requests in the system, averaged over a stretch of time; those that were rejected are in none."""
        inside = np.minimum(self.ended_s, end_s) - np.maximum(self.sent_s, begin_s)
        return float(np.nansum(np.maximum(inside, 0.0))) / (end_s - begin_s)

    @cached_property
    def filling(self) -> tuple[float, float] | None:
        """Requests in the system in the second and in the last quarter of the time in which requests were sent, if they still grew.

        None where they did not grow by more than chance has it (a quarter and two square roots), where each request waits for the
        end of another, and below 40 requests.
        """
        if self.workload.reactive or len(self.workload) < _FEW:
            return None
        begin, end = float(np.nanmin(self.sent_s)), float(np.nanmax(self.sent_s))
        if end <= begin:
            return None
        quarter = (end - begin) / 4
        early, late = self.in_system(begin + quarter, begin + 2 * quarter), self.in_system(end - quarter, end)
        return (early, late) if late > 1.25 * early + 2 * early**0.5 + 1 else None

    @cached_property
    def steady_output_tokens_per_s(self) -> float:
        """Output tokens of those that ended in the last three quarters of the time in which requests were sent, per second.

        Neither filling up nor draining is in it. Over the makespan where fewer than 40 ended in that time.
        """
        if not self.completed.any():
            return 0.0
        first, last = float(np.nanmin(self.sent_s)), float(np.nanmax(self.sent_s))
        begin = first + (last - first) / 4
        inside = (self.ended_s > begin) & (self.ended_s <= last)
        if inside.sum() < _FEW:
            return float(self.output_tokens.sum()) / self.makespan_s
        return float(self.output_tokens[inside].sum()) / (last - begin)

    @property
    def itl(self) -> Summary:
        """Gaps between outputs, over all requests; percentiles are the smallest gap that so many do not exceed."""
        return _summary_of_lines(np.frombuffer(self.recorder.gaps).reshape(-1, len(GAP_FIELDS)))

    @property
    def prefix_cache_hit_rate(self) -> float:
        """Prompt tokens found in the prefix cache at first admission / prompt tokens, of all served requests."""
        prompts = int(self.workload.input_tokens[self.completed].sum())
        return float(np.array(self.recorder.cached_tokens)[self.completed].sum()) / prompts if prompts else 0.0

    @property
    def stretches(self) -> Floats:
        """The log of steps, a row per stretch with the columns of STRETCH_FIELDS."""
        return np.array(self.recorder.stretches).reshape(-1, len(STRETCH_FIELDS))

    def good(self, levels: Mapping[str, float]) -> NDArray[np.bool_]:
        """Who met every service level; levels: upper limits in seconds by ttft, tpot, e2el. A single token has no tpot to miss."""
        unknown = set(levels) - set(SERVICE_LEVELS)
        if unknown:
            raise InputError(f"service level {', '.join(sorted(unknown))}: known are {', '.join(SERVICE_LEVELS)}")
        good = self.completed.copy()
        for name, limit in levels.items():
            values = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2el": self.e2el_s}[name]
            good &= ~(values > limit)
        return good

    def goodput(self, levels: Mapping[str, float]) -> float:
        """Requests per second that met every service level, over the makespan."""
        return float(self.good(levels).sum()) / self.makespan_s if self.makespan_s else 0.0

    def to_json(self, levels: Mapping[str, float] | None = None) -> dict[str, Any]:
        """The keys of `roofline simulate`, SI units."""
        served = self.completed
        span = self.makespan_s or np.nan
        per_s = {
            "requests_per_s": float(served.sum()) / span,
            "input_tokens_per_s": float(self.workload.input_tokens[served].sum()) / span,
            "output_tokens_per_s": float(self.output_tokens.sum()) / span,
        }
        result: dict[str, Any] = {
            "requests": len(self.workload),
            "requests_completed": int(served.sum()),
            "requests_rejected": len(self.recorder.rejected),
            "rejected": {str(index): reason for index, reason in list(self.recorder.rejected.items())[:20]},
            "makespan_s": self.makespan_s,
            "ttft_s": Summary.of(self.ttft_s).to_json(),
            "tpot_s": Summary.of(self.tpot_s).to_json(),
            "itl_s": self.itl.to_json(),
            "e2el_s": Summary.of(self.e2el_s).to_json(),
            "queue_s": Summary.of(self.queue_s).to_json(),
            "mean_in_system": self.mean_in_system,
            "preemptions": int(sum(self.recorder.preemptions)),
            "prefix_cache_hit_rate": self.prefix_cache_hit_rate,
            **{key: None if np.isnan(value) else value for key, value in per_s.items()},
            "cpu_s": self.cpu_s,
        }
        if self.workload.classes is not None:
            result["classes"] = self._by_class(levels)
        if self.recorder.drafted_tokens:
            result["draft_acceptance"] = self.recorder.accepted_tokens / self.recorder.drafted_tokens
        if levels:
            result["goodput"] = {"levels_s": dict(levels), "requests_per_s": self.goodput(levels), "share": float(self.good(levels).mean())}
        return result

    def _by_class(self, levels: Mapping[str, float] | None) -> dict[str, Any]:
        """Latencies of each traffic class, and the share of it that met every level."""
        found = {}
        for name in dict.fromkeys(self.workload.classes or ()):
            mine = np.array([each == name for each in self.workload.classes or ()])
            times = {key: Summary.of(getattr(self, key)[mine]).to_json() for key in ("ttft_s", "tpot_s", "e2el_s")}
            share = {"share": float(self.good(levels)[mine].mean())} if levels else {}
            found[name] = {"requests": int(mine.sum()), **times, **share}
        return found


def _summary_of_lines(lines: Floats) -> Summary:
    """Of samples given as lines (first, last, steps, weight): `steps` evenly spaced values, each `weight` times."""
    if not len(lines):
        return Summary(np.nan, np.nan, np.nan, np.nan)
    low, high = np.minimum(lines[:, 0], lines[:, 1]), np.maximum(lines[:, 0], lines[:, 1])
    steps, weight = lines[:, 2], lines[:, 3]
    total = float(steps @ weight)
    mean = float(((low + high) / 2 * steps) @ weight) / total
    gap = np.divide(high - low, steps - 1, out=np.ones_like(high), where=(steps > 1) & (high > low))

    def smallest(share: float) -> float:
        """The smallest value that `share` of the samples do not exceed, by bisection; lines that are settled drop out."""
        below, target, bottom, top = 0.0, share * total, float(low.min()), float(high.max())
        floor, ceiling, spacing, count, times = low, high, gap, steps, weight
        while top - bottom > 1e-12 * top:
            middle = (bottom + top) / 2
            upto = np.where(middle >= ceiling, count, np.where(middle < floor, 0.0, np.floor((middle - floor) / spacing) + 1))
            if below + float(upto @ times) >= target:
                top, open_ = middle, floor <= middle
            else:
                bottom, open_ = middle, ceiling > middle
                below += float(count[~open_] @ times[~open_])
            floor, ceiling, spacing, count, times = (column[open_] for column in (floor, ceiling, spacing, count, times))
        return top

    return Summary(mean, smallest(0.5), smallest(0.9), smallest(0.99))
