"""The token budget of a step: time to first token against time between tokens, and throughput (S14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.planning.chunks import ChunkPoint, chunk_sweep, keeping
from roofline.planning.load import Load
from roofline.units import counted

DEFAULT_CONCURRENCY = 32
_LEVELS = style.SERIES[4:6]


def chunk(request: Request) -> Chart:
    """TTFT, the 99th percentile between tokens, and output tokens/s over max_num_batched_tokens, simulated.

    The requests in flight are those of the load, DEFAULT_CONCURRENCY where it states none. Service levels are drawn, and held against
    P99: that of TTFT, and for TPOT that of the gaps between tokens. A line marks the largest budget that keeps them; where only TTFT
    has a level, the smallest.
    """
    load = request.load
    concurrency = load.concurrency or DEFAULT_CONCURRENCY
    options = {key: value for key, value in request.memory_options.items() if key not in ("max_num_batched_tokens",)}
    points, fits = chunk_sweep(request.setup, load, concurrency, **options)
    kept = keeping(points, gap_s=load.tpot_s, ttft_s=load.ttft_s)
    best = _best(kept, load)

    def paint(figure: FigureBase) -> None:
        left, right = style.panels(figure, 2)
        unit, name = style.time_unit(max(max(p.ttft_p99_s, p.itl_p99_s) for p in points))
        _times(left, points, unit)
        left.set_ylabel(f"time ({name})")
        for level, label, (colour, _, dash) in zip(
            (load.tpot_s, load.ttft_s), ("level between tokens", "level of TTFT"), _LEVELS, strict=True
        ):
            if level is not None:
                left.axhline(level / unit, color=colour, lw=1.2, ls=dash, label=label)
        left.legend(loc="upper right", ncols=2, fontsize=style.TINY, columnspacing=0.8, handlelength=2.4, borderaxespad=0.1)
        right.plot([p.chunk for p in points], [p.output_tokens_per_s for p in points], color=style.BLUE, marker="o", gid="rate")
        right.set_ylim(0, 1.12 * max(p.output_tokens_per_s for p in points))
        right.set_ylabel("output tokens/s of the replica")
        style.plain_numbers(right.yaxis)
        for axes in (left, right):
            style.log_counts(axes.xaxis, 0.9 * points[0].chunk, 1.12 * points[-1].chunk, most=5)
            axes.set_xlabel("tokens of a step (max_num_batched_tokens)")
            if best is not None:
                axes.axvline(best.chunk, color=style.GREEN, lw=1.2, ls=(0, (3, 2)))

    return Chart(
        kind="chunk",
        title=_finding(points, kept, load) + ("" if fits else " (if it fitted: not one request does)"),
        subtitle=f"{request.shown} · {counted(concurrency, 'request')} in flight, {load.input_len:,} in and {load.output_len:,} out",
        rows=tuple(asdict(point) for point in points),
        paint=paint,
        request=request,
        basis=request.basis,
        notes=() if load.concurrency else (f"{concurrency} requests in flight, since none are stated: --batch N",),
    )


def _best(kept: Sequence[ChunkPoint], load: Load) -> ChunkPoint | None:
    """Of the budgets that keep the levels: a larger one serves faster, a smaller one smoother."""
    if not kept or (load.tpot_s is None and load.ttft_s is None):
        return None
    return kept[0] if load.tpot_s is None else kept[-1]


def _times(axes: Axes, points: Sequence[ChunkPoint], unit: float) -> None:
    sizes = [point.chunk for point in points]
    lines = (
        ("ttft_mean_s", "TTFT, mean"),
        ("ttft_p99_s", "TTFT, P99"),
        ("itl_p99_s", "between tokens, P99"),
        ("tpot_mean_s", "TPOT, mean"),
    )
    values: list[float] = []
    for (key, label), (colour, marker, dash) in zip(lines, style.SERIES, strict=False):
        mine = [getattr(point, key) / unit for point in points]
        values += mine
        axes.plot(sizes, mine, color=colour, marker=marker, ls=dash, ms=4, label=label, gid=key)
    axes.set_yscale("log")
    axes.set_ylim(*style.log_span([value for value in values if value == value], above=8.0))
    style.plain_numbers(axes.yaxis)


def _finding(points: Sequence[ChunkPoint], kept: Sequence[ChunkPoint], load: Load) -> str:
    best = _best(kept, load)
    levels = [f"{of} within {1e3 * level:g} ms" for of, level in (("the gaps", load.tpot_s), ("TTFT", load.ttft_s)) if level is not None]
    promise = "99 % of " + " and of ".join(levels)
    if not levels:
        first, last = points[0], points[-1]
        gaps, ttft = _change(first.itl_p99_s, last.itl_p99_s), _change(first.ttft_mean_s, last.ttft_mean_s)
        return f"From {first.chunk:,} to {last.chunk:,} tokens per step, P99 between tokens {gaps}, mean TTFT {ttft}"
    if best is None:
        smooth = keeping(points, gap_s=load.tpot_s) if len(levels) > 1 else []
        closest = f"; with the gaps, P99 of TTFT is at least {_ms(min(point.ttft_p99_s for point in smooth))}" if smooth else ""
        return f"No token budget keeps {promise}{closest}"
    there = f"P99 between tokens is {_ms(best.itl_p99_s)}" if load.tpot_s is None else f"P99 of TTFT is {_ms(best.ttft_p99_s)}"
    rest = "" if len(levels) > 1 else f"; {there} at {best.chunk:,}"
    return f"{_which_keep(points, kept)} {promise}{rest}"


def _change(first_s: float, last_s: float) -> str:
    first, last = _ms(first_s), _ms(last_s)
    return f"stays at {first}" if first == last else f"goes from {first} to {last}"


def _which_keep(points: Sequence[ChunkPoint], kept: Sequence[ChunkPoint]) -> str:
    """The budgets that keep the levels in words, as one stretch where they are one."""
    sizes = [f"{point.chunk:,}" for point in kept]
    at = points.index(kept[0])
    if list(points[at : at + len(kept)]) != list(kept):
        return f"Steps of {', '.join(sizes)} tokens keep"
    if len(kept) == len(points):
        return "Every token budget keeps"
    if at == 0:
        return f"Up to {sizes[-1]} tokens per step keep"
    if kept[-1] is points[-1]:
        return f"{sizes[0]} tokens per step or more keep"
    return f"{sizes[0]} to {sizes[-1]} tokens per step keep" if len(kept) > 1 else f"{sizes[0]} tokens per step keep"


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
