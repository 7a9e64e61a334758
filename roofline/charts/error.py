"""Predicted against measured times of a table, calibrated beside uncalibrated when the table has both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.charts import style
from roofline.charts.chart import Chart, Request, Row
from roofline.charts.measured import measured_column, number, read_rows
from roofline.errors import InputError

PREDICTED = {"expected_s": "expected", "uncalibrated_expected_s": "uncalibrated"}


def error(request: Request) -> Chart:
    """Every row of the request's table as a point: measured time across, predicted time up, with ±10 and ±25 % bands.

    The table is what `predict` writes: a measured time in seconds, expected_s, and the kind of row in `op` (or `kind`). A
    column uncalibrated_expected_s gets a panel of its own. Rows without a prediction are left out of figure and data.
    """
    if request.table is None:
        raise InputError("this chart needs a table of measurements with predictions: add --table FILE.csv (`roofline predict` writes one)")
    rows = _rows(request)
    panels = [key for key in PREDICTED if any(row[key] is not None for row in rows)]
    kinds = list(dict.fromkeys(str(row["op"]) for row in rows))

    def paint(figure: FigureBase) -> None:
        times = [float(row[key]) for row in rows for key in ("measured_s", *panels) if row[key] is not None]
        unit, name = style.time_unit(float(np.median(times)))
        for axes, key in zip(style.panels(figure, len(panels)), panels, strict=True):
            _scatter(axes, rows, key, kinds, style.log_span([t / unit for t in times], below=1.5, above=1.5), unit)
            axes.set(xlabel=f"measured ({name})", ylabel=f"{PREDICTED[key]} ({name})")

    return Chart(
        kind="error",
        title=_finding(rows, panels),
        subtitle=f"{len(rows):,} rows of {request.table.name} · grey bands: ±10 % and ±25 %",
        rows=tuple(rows),
        paint=paint,
        request=request,
    )


def _rows(request: Request) -> list[Row]:
    assert request.table is not None  # noqa: S101  the caller checked
    found: list[Row] = []
    for line, row in enumerate(read_rows(request.table), start=2):
        place = f"{request.table}:{line}"
        predicted = {key: number(row, key, place) if row.get(key) else None for key in PREDICTED}
        if any(value is not None for value in predicted.values()):
            measured = number(row, measured_column(row, place), place)
            found.append({"op": row.get("op") or row.get("kind") or "all", "measured_s": measured, **predicted})
    if not found:
        raise InputError(f"{request.table}: no row has a prediction in {' or '.join(PREDICTED)}; `roofline predict` adds them")
    return found


def _scatter(axes: Axes, rows: list[Row], key: str, kinds: Sequence[str], span: tuple[float, float], unit: float) -> None:
    axes.set(xscale="log", yscale="log", xlim=span, ylim=span)
    edge = np.array(span)
    for share, alpha in ((0.25, 0.10), (0.10, 0.16)):
        axes.fill_between(edge, edge * (1 - share), edge * (1 + share), color=style.INK, alpha=alpha, lw=0)
    axes.plot(edge, edge, color=style.INK, lw=1.0)
    for i, kind in enumerate(kinds):
        colour, marker, _ = style.SERIES[i % len(style.SERIES)]
        own = [(row["measured_s"], row[key]) for row in rows if row["op"] == kind and row[key] is not None]
        if not own:
            continue
        errors = [p / m - 1 for m, p in own]
        label = f"{kind}: {_percent(np.median(np.abs(errors)))} median error"
        points = np.array(own) / unit
        axes.plot(points[:, 0], points[:, 1], marker=marker, ms=4, ls="none", color=colour, alpha=0.75, label=label, gid=f"{key}:{kind}")
    axes.legend(loc="upper left", borderaxespad=0.2)
    style.plain_numbers(axes.xaxis)
    style.plain_numbers(axes.yaxis)


def _percent(value: float) -> str:
    return f"{units.significant(100 * value, 2)} %"


def _finding(rows: list[Row], panels: list[str]) -> str:
    key = panels[0]
    errors = np.array([row[key] / row["measured_s"] - 1 for row in rows if row[key] is not None])
    near = float(np.mean(np.abs(errors) <= 0.25))
    bias = float(np.median(errors))
    way = "too slow" if bias > 0 else "too fast"
    return (
        f"Half of the predictions are within {_percent(float(np.median(np.abs(errors))))} of the measurement, {_percent(near)} of them "
        f"within 25 %; the median is {_percent(abs(bias))} {way}"
    )
