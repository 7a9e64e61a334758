"""Decode over batch: time between tokens and throughput, with what stops the batch."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline.charts import labels, style
from roofline.charts.chart import Chart, Request
from roofline.phases import BatchCurve, batch_curve

_FOOT = 0.02  # where the names of the marks begin, as a share of the axis


def batch(request: Request) -> Chart:
    """TPOT and output tokens/s of one replica over batch at the load's mean context: bound, expected, 80 % interval.

    Marks: the batch whose full-length sequences fill the KV memory, the knee (half of the plateau) and the 80 % point.
    """
    setup = request.setup
    plan = request.memory()
    fits = plan.max_sequences(request.load.longest) if plan.fits else 0
    shape = batch_curve(setup, request.load.mean_context, [1])
    top = _top(fits, shape.eighty)
    sizes = sorted({*(1 << i for i in range(top.bit_length()) if 1 << i <= top), *(s for s in (fits, top) if 1 <= s <= top)})
    curve = batch_curve(setup, request.load.mean_context, sizes)
    low, bound, high = (np.broadcast_to(a, curve.batch.shape) for a in (curve.tpot.low_s, curve.tpot.bound_s, curve.tpot.high_s))
    expected = np.broadcast_to(curve.tpot.expected_s, curve.batch.shape)
    rows = tuple(
        {
            "batch": size, "context": curve.context, "fits": size <= fits, "tpot_bound_s": float(b), "tpot_expected_s": float(e),
            "tpot_low_s": float(lo), "tpot_high_s": float(hi), "output_tokens_per_s": size / float(e),
            "output_tokens_per_s_bound": size / float(b),
        }
        for size, b, e, lo, hi in zip(sizes, bound, expected, low, high, strict=True)
    )  # fmt: skip
    marks = {"KV full": fits or None, "knee": curve.knee, "80 %": curve.eighty}

    def paint(figure: FigureBase) -> None:
        left, right = style.panels(figure, 2)
        x = np.asarray(sizes, dtype=np.float64)
        unit, name = style.time_unit(float(high.max()))
        _band(left, "tpot", x, bound / unit, expected / unit, low / unit, high / unit)
        _band(right, "rate", x, x / bound, x / expected, x / high, x / low)
        left.set_ylabel(f"time between tokens, TPOT ({name})")
        right.set_ylabel("output tokens/s of the replica")
        right.axhline(curve.plateau_tokens_per_s, color=style.MUTED, lw=0.9, ls=(0, (1, 2)))
        right.annotate(
            "plateau",
            (x[0], curve.plateau_tokens_per_s),
            (0, -3),
            textcoords="offset points",
            size=style.SMALL,
            color=style.MUTED,
            va="top",
        )
        for axes, lowest in ((left, bound / unit), (right, x / high)):
            _room_below(axes, x, lowest, marks, top)
            _marks(axes, marks, top)
            axes.set_xlabel("sequences in the batch")
        left.legend(loc="upper left", borderaxespad=0.2)

    return Chart(
        kind="batch",
        title=_finding(curve, fits),
        subtitle=f"{request.shown} · decode with {curve.context:,} cached tokens per sequence",
        rows=rows,
        paint=paint,
        request=request,
        basis=request.basis,
    )


def _top(fits: int, eighty: int | None) -> int:
    """The largest batch shown: past what fits and past the 80 % point, but not far."""
    return min(max(2 * fits, min(2 * (eighty or 1), 8 * max(fits, 1)), 64), 8192)


def _finding(curve: BatchCurve, fits: int) -> str:
    if not fits:
        return "Not one sequence of this length fits in memory: the curve is what the device would do if it did"
    rate = f"{style.compact(curve.plateau_tokens_per_s)} tok/s"
    if curve.eighty is not None and curve.eighty <= fits:
        return f"80 % of the {rate} plateau comes at batch {curve.eighty:,}; memory would hold {fits:,} sequences"
    return f"KV memory ends the batch at {fits:,}, before 80 % of the {rate} plateau" + (
        f" (batch {curve.eighty:,})" if curve.eighty else ""
    )


def _band(axes: Axes, name: str, x: np.ndarray, bound: np.ndarray, expected: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    style.log_counts(axes.xaxis, x[0], x[-1] * 1.05, most=6)
    axes.fill_between(x, low, high, color=style.BLUE, alpha=0.16, lw=0, label="80 % interval")
    axes.plot(x, expected, color=style.BLUE, marker="o", ms=4, label="expected", gid=f"{name}:expected")
    axes.plot(x, bound, color=style.INK, lw=1.2, ls=(0, (5, 2)), label="bound", gid=f"{name}:bound")
    axes.set_yscale("log")
    axes.set_ylim(*style.log_span([*bound, *expected, *low, *high], below=1.25, above=1.9))
    style.plain_numbers(axes.yaxis)


def _room_below(axes: Axes, x: np.ndarray, lowest: np.ndarray, marks: dict[str, int | None], top: int) -> None:
    """Lowers the axis until the names along the marks end below the lowest curve."""
    shown = {f"{name}: {size:,}": size for name, size in marks.items() if size and size <= top}
    if not shown:
        return
    _, low, _, high = labels.box_of(axes, x[0], axes.get_ylim()[0], x[0], axes.get_ylim()[1])
    share = _FOOT + (max(style.text_width(text, style.SMALL) for text in shown) + 6) / (high - low)
    floor, ceiling = np.log(axes.get_ylim())
    over = np.log(np.interp(min(shown.values()), x, lowest))
    if share < 1:
        axes.set_ylim(np.exp(min(floor, (over - share * ceiling) / (1 - share))))


def _marks(axes: Axes, marks: dict[str, int | None], top: int) -> None:
    """Vertical lines with their names along them; what does not fit is hatched."""
    full = marks["KV full"]
    axes.axvspan(full or 1, top * 1.05, facecolor="none", edgecolor=style.FAINT, hatch="//", lw=0, zorder=0)
    before = labels.box_of(axes, *axes.transData.inverted().transform(axes.transAxes.transform([(0, 0), (0, 0)])).ravel())[0]
    for size, name in sorted((size, name) for name, size in marks.items() if size and size <= top):
        limit, here = name == "KV full", labels.box_of(axes, size, 1, size, 1)[0]
        room = here - before > 15  # between this line and the one before it
        axes.axvline(size, color=style.VERMILION if limit else style.GREEN, lw=1.2, ls="-" if limit else (0, (3, 2)))
        axes.annotate(
            f"{name}: {size:,}", (size, _FOOT), (-2 if room else 2, 0), xycoords=("data", "axes fraction"), textcoords="offset points",
            ha="right" if room else "left", va="bottom", rotation=90, size=style.SMALL, bbox=labels.BACKING, zorder=6,
        )  # fmt: skip
        before = here if room else here + 15
