"""Figures of a validation: predicted against measured, operations on the measured roofs, and where the time of a step goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.errors import InputError

Rows = Sequence[Mapping[str, Any]]
NAMES = {"uncalibrated": "uncalibrated", "shipped": "shipped constants", "this_run": "constants of other shapes"}


def scatter(rows: Rows, device: str, command: str) -> Chart:
    """Measured time across, predicted up, one panel per basis; bars: 10 to 90 % of the samples and the predicted interval.

    rows: Row.to_json of a validation. Raises InputError without rows.
    """
    panels = [basis for basis in NAMES if any(row[f"{basis}_expected_s"] for row in rows)]
    if not panels:
        raise InputError("nothing was both predicted and measured")
    kinds = list(dict.fromkeys(row["group"] for row in rows))
    data = [{key: row[key] for key in ("group", "target", "measured_s", *(f"{basis}_expected_s" for basis in panels))} for row in rows]

    def paint(figure: FigureBase) -> None:
        times = [row[key] for row in data for key in ("measured_s", *(f"{basis}_expected_s" for basis in panels)) if row[key]]
        unit, name = style.time_unit(float(np.median(times)))
        span = style.log_span([t / unit for t in times])
        for axes, basis in zip(style.panels(figure, len(panels)), panels, strict=True):
            _bands(axes, span)
            _points(axes, rows, basis, kinds, unit)
            axes.set(xlabel=f"measured ({name})", ylabel=f"predicted ({name}): {NAMES[basis]}")
            axes.legend(loc="upper left", borderaxespad=0.2, fontsize=style.TINY)
            style.plain_numbers(axes.xaxis)
            style.plain_numbers(axes.yaxis)

    best = panels[-1]
    errors = [abs(row[f"{best}_error"]) for row in rows if row[f"{best}_error"] is not None]
    first = [abs(row[f"{panels[0]}_error"]) for row in rows if row[f"{panels[0]}_error"] is not None]
    title = f"{NAMES[best].capitalize()} predict {len(errors)} rows within {_percent(float(np.median(errors)))} (median)"
    if panels[0] != best:
        title += f", {NAMES[panels[0]]} within {_percent(float(np.median(first)))}"
    return Chart("validation-scatter", title, f"{device} · grey bands: ±10 % and ±25 %", tuple(data), paint, Request(None, command=command))


def _bands(axes: Axes, span: tuple[float, float]) -> None:
    axes.set(xscale="log", yscale="log", xlim=span, ylim=span)
    edge = np.array(span)
    for share, alpha in ((0.25, 0.10), (0.10, 0.16)):
        axes.fill_between(edge, edge * (1 - share), edge * (1 + share), color=style.INK, alpha=alpha, lw=0)
    axes.plot(edge, edge, color=style.INK, lw=1.0)


def _points(axes: Axes, rows: Rows, basis: str, kinds: Sequence[str], unit: float) -> None:
    for number, kind in enumerate(kinds):
        own = [row for row in rows if row["group"] == kind and row[f"{basis}_expected_s"]]
        if not own:
            continue
        colour, marker, _ = style.SERIES[number % len(style.SERIES)]
        x, y = (np.array([row[key] for row in own]) / unit for key in ("measured_s", f"{basis}_expected_s"))
        ends = np.array([[row["measured_s"] - row["measured_low_s"], row["measured_high_s"] - row["measured_s"]] for row in own]).T / unit
        error = _percent(float(np.median(np.abs(y / x - 1))))
        axes.errorbar(
            x,
            y,
            xerr=np.maximum(ends, 0),
            fmt=marker,
            ms=4,
            lw=0.7,
            color=colour,
            alpha=0.8,
            label=f"{kind}: {error}",
            gid=f"{basis}:{kind}",
        )


def joined(points: Rows, peaks: Mapping[str, float], bandwidth: float, device: str, command: str) -> Chart:
    """The model's own operations on the measured roofs: hollow predicted joined to filled measured.

    points: group, target, intensity (FLOP/B), flops, measured_s, expected_s. peaks: FLOP/s by type; bandwidth: B/s. Raises
    InputError without points.
    """
    if not points:
        raise InputError("no operation with FLOPs was measured")
    data = [{**p, "measured_flop_per_s": p["flops"] / p["measured_s"], "expected_flop_per_s": p["flops"] / p["expected_s"]} for p in points]
    peak_name = max(peaks, key=lambda name: peaks[name])

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        rates = [row[key] for row in data for key in ("measured_flop_per_s", "expected_flop_per_s")]
        span = style.log_span([*(row["intensity"] for row in data), peaks[peak_name] / bandwidth])
        axes.set(xscale="log", yscale="log", xlim=span, ylim=style.log_span([*rates, *peaks.values()]))
        for name, peak in peaks.items():
            x = np.array([span[0], peak / bandwidth, span[1]])
            axes.plot(x, np.minimum(peak, x * bandwidth), color=style.INK, lw=2.0, alpha=0.8, gid=f"roof:{name}")
        for number, group in enumerate(dict.fromkeys(row["group"] for row in data)):
            colour, marker, _ = style.SERIES[number % len(style.SERIES)]
            own = [row for row in data if row["group"] == group]
            for row in own:
                axes.plot([row["intensity"]] * 2, [row["expected_flop_per_s"], row["measured_flop_per_s"]], color=colour, lw=0.8)
            at = [row["intensity"] for row in own]
            axes.plot(
                at,
                [row["expected_flop_per_s"] for row in own],
                marker,
                mfc="none",
                ms=6,
                ls="none",
                color=colour,
                label=f"{group} predicted",
            )
            axes.plot(at, [row["measured_flop_per_s"] for row in own], marker, ms=4, ls="none", color=colour, label=f"{group} measured")
        axes.legend(loc="lower right", fontsize=style.TINY)
        unit, name = (1e12, "TFLOP/s") if max(peaks.values()) >= 1e13 else (1e9, "GFLOP/s")
        axes.set(xlabel="arithmetic intensity (FLOP/B)", ylabel=f"rate ({name})")
        style.plain_numbers(axes.xaxis)
        style.plain_numbers(axes.yaxis, unit)

    title = f"The model's shapes on roofs of {units.format(peaks[peak_name], 'flop_rate')} and {units.format(bandwidth, 'bandwidth')}"
    return Chart(
        "validation-roofs", title, f"{device} · operands from memory · roofs: best samples of this run", tuple(data), paint,
        Request(None, command=command),
    )  # fmt: skip


def steps(rows: Rows, device: str, command: str) -> Chart:
    """Each judged step as a bar: hard bound, kernels beyond it, what the engine adds; a mark where it was measured.

    rows: target, bound_s, kernels_s, engine_s, measured_s, measured_low_s, measured_high_s. Raises InputError without rows.
    """
    if not rows:
        raise InputError("no step of the engine was measured")

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        unit, name = style.time_unit(float(np.median([row["measured_s"] for row in rows])))
        places = np.arange(len(rows))
        bottom = np.zeros(len(rows))
        for key, label, colour, hatch in (
            ("bound_s", "hard bound", style.BLUE, None),
            ("kernels_s", "kernels beyond it", style.ORANGE, "///"),
            ("engine_s", "engine", style.MUTED, ".."),
        ):
            height = np.array([row[key] for row in rows]) / unit
            axes.bar(places, height, 0.62, bottom=bottom, color=colour, hatch=hatch, edgecolor=style.PAPER, lw=0.5, label=label)
            bottom = bottom + height
        middle = np.array([row["measured_s"] for row in rows]) / unit
        ends = np.array([[row["measured_s"] - row["measured_low_s"], row["measured_high_s"] - row["measured_s"]] for row in rows]).T / unit
        axes.errorbar(places, middle, yerr=np.maximum(ends, 0), fmt="D", ms=5, color=style.INK, label="measured")
        axes.set_xticks(places, [_short(row["target"]) for row in rows])
        axes.tick_params(axis="x", length=0, labelsize=style.TINY)
        axes.set_ylabel(f"time of one step ({name})")
        axes.legend(loc="upper left", fontsize=style.TINY)

    errors = [abs(row["bound_s"] + row["kernels_s"] + row["engine_s"] - row["measured_s"]) / row["measured_s"] for row in rows]
    title = f"Steps of the engine, stated before they ran: {_percent(float(np.median(errors)))} median error"
    return Chart("validation-steps", title, device, tuple(rows), paint, Request(None, command=command))


def trace(rows: Rows, device: str, command: str) -> Chart:
    """Requests of a trace over the time at which they were sent: TTFT and TPOT, simulated joined to measured; requests in flight.

    rows: start_s, output_tokens and first_token_s, last_token_s, simulated_first_token_s, simulated_last_token_s in seconds from
    the start of the trace. Raises InputError without rows.
    """
    if not rows:
        raise InputError("no request was served")
    data = [{**row, **_latencies(row)} for row in rows]

    def paint(figure: FigureBase) -> None:
        height = (style.TOP - style.BOTTOM) / 3
        places = [(style.LEFT, style.BOTTOM + (2 - i) * height, style.RIGHT - style.LEFT, 0.84 * height) for i in range(3)]
        panels = [figure.add_axes(place) for place in places]
        end = max(max(row["last_token_s"], row["simulated_last_token_s"]) for row in data)
        for axes, metric, colour in zip(panels, ("ttft", "tpot"), (style.VERMILION, style.BLUE), strict=False):
            _pairs(axes, data, metric, colour)
        for key, colour, dashes, label in (("", style.INK, "-", "measured"), ("simulated_", style.GREEN, (0, (4, 2)), "simulated")):
            at, count = _in_flight([row["start_s"] for row in data], [row[f"{key}last_token_s"] for row in data])
            panels[2].step(at, count, where="post", color=colour, ls=dashes, lw=1.2, label=label, gid=f"in_flight:{label}")
        panels[2].set_ylabel("in flight", size=style.SMALL)
        panels[2].set_xlabel("time (s)")
        for axes in panels:
            axes.set_xlim(0, end)
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
            axes.tick_params(labelbottom=axes is panels[2], labelsize=style.TINY)
            axes.yaxis.set_label_coords(-0.065, 0.5)
            axes.legend(loc="upper right", ncols=2, fontsize=style.TINY, borderaxespad=0.0, borderpad=0.1)
            style.plain_numbers(axes.yaxis)

    gaps = {m: [row[f"simulated_{m}_s"] / row[f"{m}_s"] - 1 for row in data if row[f"{m}_s"]] for m in ("ttft", "tpot")}
    words = " and ".join(f"{name.upper()} within {_percent(float(np.median(np.abs(gap))))}" for name, gap in gaps.items() if gap)
    title = f"The simulated trace gives each request's {words} (median)"
    return Chart("validation-trace", title, f"{device} · {len(data)} requests", tuple(data), paint, Request(None, command=command))


def _latencies(row: Mapping[str, Any]) -> dict[str, float | None]:
    after = row["output_tokens"] - 1
    found: dict[str, float | None] = {}
    for key in ("", "simulated_"):
        found[f"{key}ttft_s"] = row[f"{key}first_token_s"] - row["start_s"]
        found[f"{key}tpot_s"] = (row[f"{key}last_token_s"] - row[f"{key}first_token_s"]) / after if after else None
    return found


def _pairs(axes: Axes, rows: Rows, metric: str, colour: str) -> None:
    """One mark per request, hollow simulated joined to filled measured."""
    known = [row for row in rows if row[f"{metric}_s"] is not None]
    x = np.array([row["start_s"] for row in known])
    seen, told = (np.array([row[f"{key}{metric}_s"] for row in known]) for key in ("", "simulated_"))
    unit, name = style.time_unit(float(max(seen.max(), told.max())) if known else 1.0)
    axes.vlines(x, told / unit, seen / unit, color=colour, lw=0.7, alpha=0.6)
    axes.plot(x, told / unit, "o", mfc="none", ms=4, color=colour, label="simulated", gid=f"{metric}:simulated")
    axes.plot(x, seen / unit, "o", ms=2.5, color=colour, label="measured", gid=f"{metric}:measured")
    axes.set_ylabel(f"{metric.upper()} ({name})", size=style.SMALL)


def _in_flight(starts: Sequence[float], ends: Sequence[float]) -> tuple[Any, Any]:
    times = np.array([*starts, *ends])
    order = np.argsort(times, kind="stable")
    change = np.array([1] * len(starts) + [-1] * len(ends))
    return times[order], np.cumsum(change[order])


def _short(step: str) -> str:
    """prefill/batch=1,new=96,past=0 → prefill, 96 new; decode/batch=8,new=1,past=256 → decode, 8 × 256."""
    phase, _, sizes = step.partition("/")
    of = dict(each.split("=") for each in sizes.split(","))
    return f"{phase}\n{of['new']} new" if phase == "prefill" else f"{phase}\n{of['batch']} × {of['past']}"


def _percent(value: float) -> str:
    return f"{units.significant(100 * value, 2)} %"
