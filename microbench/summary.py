"""What records say: rates, shares of the roofs, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microbench.sweep import drift
from roofline.profiles.hardware import Hardware
from roofline.records import Measurement


@dataclass(frozen=True)
class Roofs:
    """The lines that times are compared with: FLOP/s by compute type, B/s of memory. source: datasheet or measured."""

    peaks: dict[str, float]
    bandwidth: float | None
    source: str

    def bound_s(self, flops: float, moved: float, compute: str) -> float | None:
        """max(FLOPs / peak, bytes / bandwidth); None when a roof that it needs is unknown."""
        if (flops and compute and compute not in self.peaks) or not self.bandwidth:
            return None
        return max(flops / self.peaks[compute] if flops and compute else 0.0, moved / self.bandwidth)


def measured_roofs(measurements: Sequence[Measurement]) -> Roofs:
    """The best that this run saw: GEMM FLOP/s by type and cold stream B/s, each from the fastest sample."""
    peaks: dict[str, float] = {}
    bandwidth = 0.0
    for m in measurements:
        if m.op == "gemm" and m.dtype not in ("w8a16", "int4"):
            peaks[m.notes["compute"]] = max(peaks.get(m.notes["compute"], 0.0), m.notes["flops"] / m.minimum_s)
        if m.op == "stream" and m.shape["level"] == "memory":
            bandwidth = max(bandwidth, m.notes["bytes"] / m.minimum_s)
    return Roofs(peaks, bandwidth or None, "measured in this run")


def roofs(measurements: Sequence[Measurement], profile: Hardware | None) -> Roofs:
    """Those of the datasheet, or the measured ones where there is none."""
    return Roofs(dict(profile.peaks), profile.memory_bandwidth, profile.id) if profile else measured_roofs(measurements)


def interval(m: Measurement, machine_drift: float = 0.0) -> tuple[float, float]:
    """Seconds between which the median of another run should lie: the 10 % and 90 % quantiles of the samples, widened by how
    much the sentinel moved (samples taken within a second do not see the machine change over minutes)."""
    low, high = np.quantile(m.samples_s, [0.1, 0.9])
    return float(low) / (1 + machine_drift), float(high) * (1 + machine_drift)


def sustained(m: Measurement) -> float | None:
    """Median of the last quarter of the samples / that of the first: above 1 the device slows down under load. None below 20."""
    quarter = len(m.samples_s) // 4
    return float(np.median(m.samples_s[-quarter:]) / np.median(m.samples_s[:quarter])) if quarter >= 5 else None


def rows(measurements: Sequence[Measurement], against: Roofs) -> list[dict[str, Any]]:
    """One row per measurement, sentinels left out, in the order of kind and shape; SI units."""
    moved = drift(measurements)
    found = []
    for m in measurements:
        if m.notes.get("sentinel"):
            continue
        flops, size = float(m.notes["flops"]), float(m.notes["bytes"])
        bound = against.bound_s(flops, size, str(m.notes["compute"])) if m.op not in ("launch", "transfer", "collective") else None
        low, high = interval(m, moved)
        found.append({
            "op": m.op, "shape": " ".join(f"{k}={v}" for k, v in m.shape.items()), "dtype": m.dtype,
            "operands": {True: "cold", False: "hot", None: ""}[m.cold], "median_s": m.median_s, "minimum_s": m.minimum_s,
            "low_s": low, "high_s": high, "samples": len(m.samples_s), "spread": m.spread, "sustained": sustained(m),
            "flop_per_s": flops / m.median_s if flops else None, "bytes_per_s": size / m.median_s if size else None,
            "bound_s": bound, "of_bound": bound / m.median_s if bound else None, "stop": m.notes.get("stop", ""), "notes": _remarks(m),
        })  # fmt: skip
    return sorted(found, key=lambda row: (row["op"], row["dtype"], row["operands"], row["shape"]))


def _remarks(m: Measurement) -> str:
    notes = m.notes
    found = [f"{len(notes['outliers'])} outliers"] if notes.get("outliers") else []
    found += ["noisy"] if notes.get("noisy") else []
    found += ["not cold"] if notes.get("not_cold") else []
    found += ["few samples"] if notes.get("few_samples") else []
    throttled = {text for when in ("before", "after") for text in notes.get(when, {}).get("throttled", ())}
    return ", ".join([*found, *sorted(throttled)])
