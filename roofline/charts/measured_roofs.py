"""The roofline of a machine as its microbenchmarks found it: measured roofs, and each case where it landed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.errors import InputError

RIGHT = 0.83  # names of the roofs stand beside the axes
_KINDS = ("gemm", "prefill_attention", "decode_attention", "naive_attention")


def measured_roofs(
    device: str, rows: Sequence[Mapping[str, Any]], peaks: Mapping[str, float], bandwidth: float, source: str, command: str
) -> Chart:
    """Cases with FLOPs as points: FLOP per byte across, FLOP/s of the median up; filled cold, hollow hot.

    rows: of microbench.summary. peaks: FLOP/s by type; bandwidth: B/s; source: where these roofs come from. Raises InputError
    when no case has FLOPs.
    """
    points = [row for row in rows if row["op"] in _KINDS and row["flop_per_s"] and row["bytes_per_s"]]
    if not points or not peaks:
        raise InputError("a roofline needs matrix products and a stream out of memory: run the groups stream and gemm as well")
    data = [
        {
            "op": row["op"], "shape": row["shape"], "dtype": row["dtype"], "operands": row["operands"],
            "intensity": row["flop_per_s"] / row["bytes_per_s"], "flop_per_s": row["flop_per_s"], "median_s": row["median_s"],
        }
        for row in points
    ]  # fmt: skip

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure, right=RIGHT)[0]
        xs = [row["intensity"] for row in data]
        axes.set(xscale="log", yscale="log", xlim=style.log_span([*xs, *(p / bandwidth for p in peaks.values())]))
        axes.set_ylim(*style.log_span([*(row["flop_per_s"] for row in data), *peaks.values()]))
        unit, name = (1e12, "TFLOP/s") if max(peaks.values()) >= 1e13 else (1e9, "GFLOP/s")
        axes.set(xlabel="arithmetic intensity (FLOP/B)", ylabel=f"rate ({name})")
        _paint_roofs(axes, peaks, bandwidth)
        _paint_points(axes, data)
        style.plain_numbers(axes.xaxis)
        style.plain_numbers(axes.yaxis, unit)

    best = max(peaks, key=lambda name: peaks[name])
    return Chart(
        kind="measured-roofs",
        title=f"{units.format(bandwidth, 'bandwidth')} of memory and {units.format(peaks[best], 'flop_rate')} in {best}: "
        f"{units.format(peaks[best] / bandwidth, 'intensity')} before arithmetic is what limits",
        subtitle=f"{device} · {len(data)} cases · roofs {source} · filled: operands from memory, hollow: from cache",
        rows=tuple(data),
        paint=paint,
        request=Request(None, command=command),
    )


def _paint_roofs(axes: Axes, peaks: Mapping[str, float], bandwidth: float) -> None:
    low, high = axes.get_xlim()
    shown: list[float] = []
    for name, peak in sorted(peaks.items(), key=lambda item: item[1]):
        x = np.array([low, peak / bandwidth, high])
        axes.plot(x, np.minimum(peak, x * bandwidth), color=style.INK, lw=2.0, alpha=0.8, gid=f"roof:{name}")
        height = max(peak, shown[-1] * 1.35 if shown else 0.0)  # names of close roofs stand above each other
        shown.append(height)
        axes.annotate(
            f"{name} {units.format(peak, 'flop_rate')}", (high, height), (5, 0), textcoords="offset points", size=style.TINY + 0.5,
            va="center", annotation_clip=False,
        )  # fmt: skip


def _paint_points(axes: Axes, data: Sequence[Mapping[str, Any]]) -> None:
    sizes = Counter((row["op"], row["dtype"]) for row in data)
    groups = sorted(sizes)
    for number, (op, dtype) in enumerate(groups):
        colour, marker = style.SERIES[number % 6][0], "osD^vPX*"[number % 8]
        for operands, fill in (("cold", colour), ("hot", "none")):
            own = [row for row in data if (row["op"], row["dtype"], row["operands"]) == (op, dtype, operands)]
            if own:
                label = f"{op.replace('_', ' ')} {dtype}" if operands == "cold" or len(own) == sizes[op, dtype] else None
                axes.plot(
                    [row["intensity"] for row in own], [row["flop_per_s"] for row in own], marker=marker, ms=5, ls="none", color=colour,
                    mfc=fill, alpha=0.85, gid=f"{op}:{dtype}:{operands}", label=label,
                )  # fmt: skip
    axes.legend(loc="lower right", borderaxespad=0.2, fontsize=style.TINY)
