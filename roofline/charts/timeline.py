"""A simulated run over time: TTFT, TPOT, concurrency and KV use, with the pattern named (S22)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.planning.rehearsal import at_share, in_flight, replica
from roofline.serving.export import timeline as series_of
from roofline.serving.pattern import pattern
from roofline.serving.statistics import Result
from roofline.units import counted

SHARE = 0.8
POINTS = 120
_ROWS = 4


def timeline(request: Request) -> Chart:
    """A run of the load's requests in flight; where it states none, of Poisson arrivals at SHARE of the closed form's most."""
    setup, load, asked = request.setup, request.load, request.load.concurrency
    deployment, _ = replica(setup, load, max(asked or 1, 8), **request.memory_options)
    if asked is not None:
        return timeline_of(deployment.run(in_flight(load, asked)), f"{request.shown} · {counted(asked, 'request')} in flight", request)
    made, rate = at_share(setup, load, deployment, SHARE)
    chosen = f"{rate:.3g} requests/s, {100 * SHARE:g} % of what the closed form gives"
    found = timeline_of(deployment.run(made), f"{request.shown} · {chosen}", request)
    own = "--batch N draws N requests in flight, `roofline simulate … --request-rate R --chart FILE` a rate of your own"
    return replace(found, notes=(f"Poisson arrivals at {chosen} for the most requests that fit, since no load is stated; {own}",))


def timeline_of(result: Result, subtitle: str, request: Request) -> Chart:
    """The figure of a run that is there already."""
    name, sentence = pattern(result)
    series = series_of(result, POINTS)
    rows = tuple(
        {key: None if np.isnan(value) else float(value) for key, value in zip(series, values, strict=True)}
        for values in zip(*series.values(), strict=True)
    )

    def paint(figure: FigureBase) -> None:
        _paint(figure, series)

    return Chart(
        kind="timeline",
        title=f"{name.capitalize().replace('Kv', 'KV')}: {sentence}",
        subtitle=subtitle,
        rows=rows,
        paint=paint,
        request=request,
        basis=request.basis,
    )


def _paint(figure: FigureBase, series: Mapping[str, NDArray[np.float64]]) -> None:
    """Four panels over one time axis."""
    height = (style.TOP - style.BOTTOM) / _ROWS
    places = [(style.LEFT, style.BOTTOM + (_ROWS - 1 - row) * height, style.RIGHT - style.LEFT, 0.82 * height) for row in range(_ROWS)]
    panels = [figure.add_axes(place) for place in places]
    unit, name = style.time_unit(float(series["t_s"][-1]))
    x = series["t_s"] / unit
    _times(panels[0], x, series["ttft_s"], "TTFT", style.VERMILION)
    _times(panels[1], x, series["tpot_s"], "TPOT", style.BLUE)
    running, waiting, kv = panels[2], panels[2], panels[3]
    running.plot(x, series["running"], color=style.BLUE, lw=1.4, label="running", gid="running")
    waiting.plot(x, series["waiting"], color=style.VERMILION, lw=1.4, ls=(0, (4, 2)), label="waiting", gid="waiting")
    running.set_ylabel("requests", size=style.SMALL)
    running.legend(loc="upper right", ncols=2, fontsize=style.TINY, borderaxespad=0.0, borderpad=0.1)
    kv.fill_between(x, 0, 100 * series["kv_usage"], color=style.GREEN, alpha=0.35, lw=0)
    kv.plot(x, 100 * series["kv_usage"], color=style.GREEN, lw=1.2, gid="kv")
    kv.set_ylabel("KV (%)", size=style.SMALL)
    kv.set_xlabel(f"time ({name})")
    for axes in panels:
        axes.set_xlim(0, x[-1] or 1.0)
        axes.yaxis.set_major_locator(MaxNLocator(3, integer=axes is running))
        top = float(axes.dataLim.ymax)
        axes.set_ylim(0, (1.5 if axes is running else 1.1) * top if 0 < top < np.inf else 1.0)  # without a value there is no top
        axes.tick_params(labelbottom=axes is kv, labelsize=style.TINY)
        axes.yaxis.set_label_coords(-0.065, 0.5)
    style.plain_numbers(kv.xaxis)


def _times(axes: Axes, x: NDArray[np.float64], values: NDArray[np.float64], name: str, colour: str) -> None:
    known = np.isfinite(values)
    unit, unit_name = style.time_unit(float(values[known].max()) if known.any() else 1.0)
    axes.plot(x[known], values[known] / unit, color=colour, lw=1.4, marker="o", ms=2, gid=name.lower())
    axes.set_ylabel(f"{name} ({unit_name})", size=style.SMALL)
    style.plain_numbers(axes.yaxis)
