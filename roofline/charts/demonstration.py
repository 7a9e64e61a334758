"""What `roofline demo` found: the ladder with its knee, and the gauges of each broken server beside those of the healthy one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.errors import InputError

COMMAND = "roofline demo --chart FILE"
_TOP, _BOTTOM, _GAP_Y = 0.825, 0.165, 0.085  # of all panels; between panels above each other
_HEIGHT = (_TOP - _BOTTOM - _GAP_Y) / 2
_LADDER = (0.085, 0.225)  # left edge and width of the ladder's panels
_NAMES, _BARS, _VALUES = 0.455, 0.118, 0.145  # left edge of the first panel's axes; width of axes; room for values beside them
_FULL = 1.12  # of a gauge's largest value: where its axis ends


@dataclass(frozen=True)
class Gauge:
    """One line of a panel. unit: of the values in a row of the figure's data; form: how a value is written (a percent, a number)."""

    name: str
    unit: str
    form: str = "number"

    def text(self, value: float | None) -> str:
        """A value as people read it; a dash where nothing was seen."""
        if value is None:
            return "–"
        if self.form == "percent":
            return f"{100 * value:.0f} %"
        return f"{value:,.0f}" if value >= 10 or value == int(value) else units.significant(value, 2)


CACHE = "prefix_hit_rate"
GAUGES: Mapping[str, Gauge] = {
    "running": Gauge("running", "requests"),
    "waiting": Gauge("waiting", "requests"),
    "kv_usage": Gauge("KV pool in use", "share", "percent"),
    "preemptions_per_s": Gauge("preemptions/s", "1/s"),
    CACHE: Gauge("prefix hits", "share", "percent"),
    "step_tokens_p99": Gauge("tokens/step, p99", "tokens"),
    "itl_p99_over_p50": Gauge("gap p99 / median", "×"),
}


def demonstration(found: Mapping[str, Any]) -> Chart:
    """The figure of a document of `roofline demo --json`: model, device, ladder, knee, cases. Raises InputError where it is none."""
    try:
        healthy, *faults = found["cases"]
        gauges = [gauges_of(case["observations"]) for case in (healthy, *faults)]
        data = (*_ladder_rows(found["ladder"]), *_gauge_rows((healthy, *faults), gauges))
        title = _title(found["knee"], faults)
        subtitle = f"{found['model']} on {found['device']} · hollow: healthy → filled: broken, each under its own load · ?: suspected"
        basis = f"measured {found['started'][:10]}"
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"not a document of `roofline demo --json`: {error!r}") from None

    def paint(figure: FigureBase) -> None:
        _paint_ladder(figure, found["ladder"], found["knee"])
        largest = {name: max((each[name] or 0.0 for each in gauges), default=0.0) or 1.0 for name in GAUGES}
        for place, (case, seen) in enumerate(zip(faults, gauges[1:], strict=True)):
            _paint_case(figure, place, case, gauges[0], seen, largest)

    return Chart("demo", title, subtitle, data, paint, Request(None, command=COMMAND), basis)


def gauges_of(observations: Mapping[str, Any]) -> dict[str, float | None]:
    """The values of GAUGES, in their units; None where the server did not say."""
    known = {name: observations.get(name) for name in GAUGES}
    lost, interval = observations.get("preemptions"), observations.get("interval_s")
    far, median = observations.get("itl_p99_s"), observations.get("itl_p50_s")
    return known | {
        "preemptions_per_s": lost / interval if lost is not None and interval else None,
        "itl_p99_over_p50": far / median if far is not None and median else None,
    }


def _ladder_rows(ladder: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    quantities = {"output_tokens_per_s": "tokens/s"} | {f"{name}_{key}_s": "s" for name in ("ttft", "tpot") for key in ("p50", "p99")}
    return [
        {"server": "ladder", "streams": rung["concurrency"], "quantity": quantity, "unit": unit, "value": rung[quantity]}
        for rung in ladder
        for quantity, unit in quantities.items()
    ]


def _gauge_rows(cases: Sequence[Mapping[str, Any]], gauges: Sequence[Mapping[str, float | None]]) -> list[dict[str, Any]]:
    return [
        {"server": case["case"], "streams": None, "quantity": name, "unit": GAUGES[name].unit, "value": value}
        for case, seen in zip(cases, gauges, strict=True)
        for name, value in seen.items()
    ]


def _title(knee: Mapping[str, Any], faults: Sequence[Mapping[str, Any]]) -> str:
    right = sum(bool(case["right"]) for case in faults)
    where = "No knee on this ladder" if knee["concurrency"] is None else f"The knee is at {knee['concurrency']:.2g} streams"
    return f"{where}; the diagnosis puts {right} of {len(faults)} faults first"


def _paint_ladder(figure: FigureBase, ladder: Sequence[Mapping[str, Any]], knee: Mapping[str, Any]) -> None:
    """Tokens per second above, p99 latencies below, over the streams of the ladder; a line at the knee."""
    left, width = _LADDER
    above, below = (figure.add_axes((left, bottom, width, _HEIGHT)) for bottom in (_TOP - _HEIGHT, _BOTTOM))
    streams = [rung["concurrency"] for rung in ladder]
    above.plot(streams, [rung["output_tokens_per_s"] for rung in ladder], color=style.INK, marker="o", gid="throughput")
    above.set_ylim(0, 1.22 * max(rung["output_tokens_per_s"] for rung in ladder))
    above.set_ylabel("output tokens/s", size=style.SMALL)
    longest = max(rung["ttft_p99_s"] for rung in ladder)
    unit, name = style.time_unit(longest)
    for key, label, (colour, marker, dashes) in zip(("ttft", "tpot"), ("TTFT", "TPOT"), (style.SERIES[1], style.SERIES[0]), strict=True):
        values = [rung[f"{key}_p99_s"] / unit for rung in ladder]
        below.plot(streams, values, color=colour, marker=marker, ls=dashes, label=label, gid=key)
    below.set_yscale("log")
    below.set_ylabel(f"p99 ({name})", size=style.SMALL)
    below.legend(loc="upper left", fontsize=style.TINY, borderaxespad=0.1, handlelength=2.4)
    below.set_ylim(*style.log_span([rung[f"{key}_p99_s"] / unit for rung in ladder for key in ("ttft", "tpot")], above=3.0))
    below.set_xlabel("streams in flight", size=style.SMALL)
    for axes in (above, below):
        style.log_counts(axes.xaxis, 0.85 * min(streams), 1.18 * max(streams))
        style.plain_numbers(axes.yaxis)
        axes.tick_params(labelsize=style.TINY, labelbottom=axes is below)
        axes.yaxis.set_label_coords(-0.19, 0.5)
        if knee["concurrency"] is not None:
            axes.axvspan(*knee["ci"], color=style.GREEN, alpha=0.15, lw=0)
            axes.axvline(knee["concurrency"], color=style.GREEN, ls=(0, (4, 2)), lw=1.3, gid="knee")
    if (at := knee["concurrency"]) is not None:
        room_left = at > 4 * min(streams)
        above.annotate(f"knee {at:.2g}", (at, 0.03), (-6 if room_left else 6, 0), xycoords=("data", "axes fraction"), va="bottom",
                       textcoords="offset points", size=style.TINY, color=style.GREEN, ha="right" if room_left else "left")  # fmt: skip


def _paint_case(
    figure: FigureBase, place: int, case: Mapping[str, Any], healthy: Mapping[str, float | None], seen: Mapping[str, float | None],
    largest: Mapping[str, float],
) -> None:  # fmt: skip
    """A panel: a line per gauge, hollow healthy joined to filled broken, both on the gauge's own scale; the values beside it."""
    column, row = place % 2, place // 2
    left = _NAMES + column * (_BARS + _VALUES + 0.015)
    axes = figure.add_axes((left, _TOP - _HEIGHT - row * (_HEIGHT + _GAP_Y), _BARS, _HEIGHT - 0.01))
    colour = style.SERIES[place % len(style.SERIES)][0]
    off = case["observations"].get("prefix_caching") is False
    for line, (name, gauge) in enumerate(GAUGES.items()):
        before, after = healthy[name], seen[name]
        if before is not None and after is not None:
            axes.plot([before / largest[name], after / largest[name]], [line, line], color=colour, lw=1.6, alpha=0.5)
        for value, fill, kind in ((before, style.PAPER, "healthy"), (after, colour, "broken")):
            if value is not None:
                axes.plot(value / largest[name], line, "o", ms=4.5, mfc=fill, mec=colour, gid=f"{name}:{kind}:{place}", clip_on=False)
        now = "off" if off and name == CACHE else gauge.text(after)
        axes.annotate(
            f"{gauge.text(before)} → {now}", (1.0, line), (5, 0), xycoords=("axes fraction", "data"),
            textcoords="offset points", size=style.TINY, va="center", annotation_clip=False,
        )  # fmt: skip
    _dress(axes, column)
    sure = "?" if case["verdict"] == "unclear" else ""
    verdict = f"{case['label']}{sure} {100 * case['confidence']:.0f} %" + ("" if case["right"] else " ✗")
    axes.text(0, 1.03, f"{case['case']} → {verdict}", size=8.0, weight="bold", color=style.INK, transform=axes.transAxes)


def _dress(axes: Axes, column: int) -> None:
    axes.set(xlim=(-0.05, _FULL), ylim=(len(GAUGES) - 0.4, -0.6))
    axes.set_yticks(range(len(GAUGES)), [gauge.name for gauge in GAUGES.values()] if column == 0 else [])
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=style.TINY)
    axes.spines["bottom"].set_visible(False)
