"""A stage over time: concurrency, TTFT, TPOT and throughput in slices, and the pattern that they show, by name."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.loadtest.statistics import StageData

Floats = NDArray[np.float64]
SLICES = 40


def slices(data: StageData) -> list[dict[str, Any]]:
    """Up to SLICES rows: time_s (middle, from the stage's start), in_flight (mean), ttft_s and tpot_s (medians of the requests that
    began there; null without any), output_tokens_per_s (an answer's tokens spread evenly over its time)."""
    if not data.ok:
        return []
    start, e2el = data.column("start_s") - data.first_s, data.column("e2el_s")
    ttft, tpot, tokens = data.column("ttft_s"), data.column("tpot_s"), np.array(data.tokens["output"], dtype=np.float64)
    count = int(min(SLICES, max(4, data.ok // 4)))
    edges = np.linspace(0.0, float((start + e2el).max()), count + 1)
    width = edges[1] - edges[0]
    rows = []
    for low, high in pairwise(edges):
        here = (start >= low) & (start < high)
        present = np.clip(np.minimum(start + e2el, high) - np.maximum(start, low), 0, None)
        decoding = np.clip(np.minimum(start + e2el, high) - np.maximum(start + ttft, low), 0, None)
        rate = np.divide(tokens, e2el - ttft, out=np.zeros_like(tokens), where=e2el > ttft)
        rows.append({
            "time_s": float((low + high) / 2),
            "in_flight": float(present.sum() / width),
            "ttft_s": _median(ttft[here]),
            "tpot_s": _median(tpot[here]),
            "output_tokens_per_s": float((decoding * rate).sum() / width),
        })  # fmt: skip
    return rows


def patterns(data: StageData) -> list[dict[str, str]]:
    """What the course of the stage looks like: name and evidence each; `steady` if nothing stands out."""
    if data.ok < 16:
        return []
    order = np.argsort(data.column("start_s"))
    quarter = max(4, data.ok // 4)
    found = []
    for key, name, growing, falling in (
        ("ttft_s", "TTFT", "queue-grows", "warms-up"),
        ("tpot_s", "TPOT", "decode-slows", "decode-speeds-up"),
    ):
        values = data.column(key)[order]
        values = values[~np.isnan(values)]
        if len(values) < 16:
            continue
        first, last, whole = (float(np.median(part)) for part in (values[:quarter], values[-quarter:], values))
        if last > 1.5 * first and _rank_correlation(values) > 0.5:
            found.append(_pattern(growing, f"median {name} goes from {1e3 * first:.0f} to {1e3 * last:.0f} ms in the course of the stage"))
        elif first > 1.5 * last and first > 1.2 * whole:
            found.append(_pattern(falling, f"median {name} falls from {1e3 * first:.0f} to {1e3 * last:.0f} ms in the course of the stage"))
    gaps = np.array(data.gaps_s, dtype=np.float64)
    typical = float(np.median(gaps)) if len(gaps) else 0.0
    stalls = int((gaps > max(10 * typical, 0.1)).sum())
    if typical > 1e-3 and stalls:
        longest = float(gaps.max())
        found.append(_pattern("stalls", f"{stalls} gaps above 10 × the median of {1e3 * typical:.0f} ms, the longest {longest:.2f} s"))
    return found or [_pattern("steady", "TTFT and TPOT stay where they began")]


def _pattern(name: str, evidence: str) -> dict[str, str]:
    return {"name": name, "evidence": evidence}


def _median(values: Floats) -> float | None:
    values = values[~np.isnan(values)]
    return float(np.median(values)) if len(values) else None


def _rank_correlation(values: Floats) -> float:
    """Spearman's, of the values with their position."""
    ranks = np.argsort(np.argsort(values))
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])
