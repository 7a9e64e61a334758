"""What records say: rates, shares of the roofs, intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from microbench.sweep import drift
from microbench.visits import against_rival, apart, interval, split
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


def sustained(m: Measurement) -> float | None:
    """Median of the last quarter of the first visit's samples / that of its first quarter: above 1 the device slows down under load.
    None below 20 samples."""
    samples = split(m)[0]
    quarter = len(samples) // 4
    return float(np.median(samples[-quarter:]) / np.median(samples[:quarter])) if quarter >= 5 else None


def rows(measurements: Sequence[Measurement], against: Roofs) -> list[dict[str, Any]]:
    """One row per measurement (visits merged), sentinels left out, in the order of kind and shape; SI units."""
    moved = drift(measurements)
    usual = apart(measurements)
    found = []
    for m in sorted((m for m in measurements if not m.notes.get("sentinel")), key=_place):
        flops, size = float(m.notes["flops"]), float(m.notes["bytes"])
        level = _cache_level(m)
        roofed = m.op not in ("launch", "transfer", "collective") and not level
        bound = against.bound_s(flops, size, str(m.notes["compute"])) if roofed else None
        low, high = interval(m, moved, usual)
        found.append({
            "op": m.op, "shape": _shape_text(m), "dtype": m.dtype, "level": level,
            "operands": {True: "cold", False: "hot", None: ""}[m.cold], "median_s": m.median_s, "minimum_s": m.minimum_s,
            "low_s": low, "high_s": high, "samples": len(m.samples_s), "visits": len(split(m)),
            "spread": m.spread, "sustained": sustained(m),
            "flop_per_s": flops / m.median_s if flops else None, "bytes_per_s": size / m.median_s if size else None,
            "bound_s": bound, "of_bound": bound / m.median_s if bound else None, "stop": m.notes.get("stop", ""), "notes": _remarks(m),
        })  # fmt: skip
    return found


def _cache_level(m: Measurement) -> str:
    """The cache that a stream stays in, which no roof of memory bounds; empty for everything else."""
    level = str(m.shape.get("level", "memory"))
    return "" if m.op != "stream" or level == "memory" else level


def _place(m: Measurement) -> tuple[Any, ...]:
    """Where a row stands: by kind, then by the numbers of its shape."""
    return (
        m.op,
        m.dtype,
        not m.cold,
        [value for value in m.shape.values() if isinstance(value, str)],
        [value for value in m.shape.values() if not isinstance(value, str)],
    )


def _shape_text(m: Measurement) -> str:
    """The sizes in words, without what says nothing."""
    return " ".join(f"{k}={v}" for k, v in m.shape.items() if (k, v) not in (("window", 0), ("past_tokens", 0)) and k != "kv_dtype")


TABLE = (
    "op", "hardware", "software", "software_version", "kernel", "dtype", "kv_dtype", "m", "n", "k", "batch", "new_tokens", "past_tokens",
    "context", "heads", "kv_heads", "head_dim", "window", "collective", "ranks", "bytes", "operands", "seconds",
)  # fmt: skip
_TABLE_OPS = ("gemm", "prefill_attention", "decode_attention", "collective")


def kernel_rows(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The rows of a kernel table (columns TABLE, median seconds), as `calibrate`, `predict` and `score` read it."""
    return [
        {
            "op": m.op, "hardware": m.device, "software": "torch", "software_version": m.software.get("torch", ""), "dtype": m.dtype,
            "operands": "cold" if m.cold else "hot", "seconds": m.median_s, **m.shape,
        }
        for m in measurements
        if m.op in _TABLE_OPS and not m.notes.get("sentinel") and m.shape.get("causal", 1) == 1
    ]  # fmt: skip


def _remarks(m: Measurement) -> str:
    notes = m.notes
    found = [f"{len(notes['outliers'])} outliers"] if notes.get("outliers") else []
    found += ["noisy"] if notes.get("noisy") else []
    found += ["not cold"] if notes.get("not_cold") else []
    found += ["few samples"] if notes.get("few_samples") else []
    ratio = against_rival(m)
    found += [f"{ratio:.2f} × the rate of {notes['rival']['name']}"] if ratio else []
    throttled = {text for when in ("before", "after") for text in notes.get(when, {}).get("throttled", ())}
    return ", ".join([*found, *sorted(throttled)])
