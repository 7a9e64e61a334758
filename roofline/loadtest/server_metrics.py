"""The server's own view: /metrics before and after a stage, and what it says about the time between server and client."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)")
_PREFIXES = ("vllm:", "sglang:", "")
_TIMES = {
    "ttft_s": ("time_to_first_token_seconds",),
    "e2el_s": ("e2e_request_latency_seconds", "e2e_request_latency"),
    "queue_s": ("request_queue_time_seconds", "queue_time_seconds"),
    "itl_s": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
}
_COUNTS = {
    "prompt_tokens": ("prompt_tokens_total",),
    "output_tokens": ("generation_tokens_total",),
    "preemptions": ("num_preemptions_total",),
}
NOTABLE_S = 0.01


def parse(text: str) -> dict[str, float]:
    """Sums over labels by sample name, of sums, counts, counters and gauges; buckets and unreadable lines are left out."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line)
        if not match or match[1].endswith("_bucket"):
            continue
        try:
            totals[match[1]] = totals.get(match[1], 0.0) + float(match[3])
        except ValueError:
            continue
    return totals


def difference(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Any]:
    """Mean times (s) and counts of what happened between two pages; only what the server exposes and what did happen."""
    result: dict[str, Any] = {}
    for key, names in _TIMES.items():
        for name in (prefix + name for name in names for prefix in _PREFIXES):
            count = after.get(f"{name}_count", 0.0) - before.get(f"{name}_count", 0.0)
            if count > 0:
                result[key] = {"mean": (after[f"{name}_sum"] - before.get(f"{name}_sum", 0.0)) / count, "n": int(count)}
                break
    for key, names in _COUNTS.items():
        for name in (prefix + name for name in names for prefix in _PREFIXES):
            if name in after:
                result[key] = after[name] - before.get(name, 0.0)
                break
    return result


def beside_client(server: Mapping[str, Any], stage: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Client's mean − server's mean per metric (s), and what a notable difference means."""
    gaps, notes = {}, []
    requests = stage["requests_ok"] + stage["requests_failed"]
    for key in ("ttft_s", "e2el_s"):
        mine, its = stage[key]["mean"], server.get(key)
        if mine is None or its is None:
            continue
        gap = mine - its["mean"]
        gaps[key] = gap
        foreign = its["n"] > 1.05 * requests + 1
        if foreign:
            notes.append(f"the server counted {its['n']} requests where this client sent {requests}: others use it too")
        elif gap > max(NOTABLE_S, 0.05 * mine):
            what = "before the first token leaves" if key == "ttft_s" else "on the way of the whole answer"
            both = f"{1e3 * mine:.0f} against {1e3 * its['mean']:.0f} ms"
            notes.append(
                f"the client sees {key[:-2]} {1e3 * gap:.0f} ms later than the server ({both}): "
                f"buffering or queueing {what}, in a gateway, the server's HTTP front end or the network"
            )
    return {key: value for key, value in gaps.items() if math.isfinite(value)}, notes
