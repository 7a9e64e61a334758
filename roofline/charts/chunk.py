"""The token budget of a step: time to first token against time between tokens, and throughput (S14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.planning.chunks import ChunkPoint, chunk_sweep, largest_chunk

DEFAULT_CONCURRENCY = 32


def chunk(request: Request) -> Chart:
    """TTFT, the 99th percentile between tokens, and output tokens/s over max_num_batched_tokens, simulated.

    `batch` requests in flight (32 if it is 1). A TPOT level of the load is drawn, with the largest budget that keeps it.
    """
    concurrency = request.batch if request.batch > 1 else DEFAULT_CONCURRENCY
    options = {key: value for key, value in request.memory_options.items() if key not in ("max_num_batched_tokens",)}
    points, fits = chunk_sweep(request.setup, request.load, concurrency, **options)
    limit = request.load.tpot_s
    best = None if limit is None else largest_chunk(points, limit)

    def paint(figure: FigureBase) -> None:
        left, right = style.panels(figure, 2)
        unit, name = style.time_unit(max(max(p.ttft_p99_s, p.itl_p99_s) for p in points))
        _times(left, points, unit)
        left.set_ylabel(f"time ({name})")
        if limit is not None:
            left.axhline(limit / unit, color=style.ORANGE, lw=1.2, ls=(0, (3, 2)), label="level between tokens")
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
        title=_finding(points, best, limit, fits),
        subtitle=f"{request.shown} · {concurrency} requests in flight, {request.load.input_len:,} in and {request.load.output_len:,} out",
        rows=tuple(asdict(point) for point in points),
        paint=paint,
        request=request,
        basis=request.basis,
    )


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


def _finding(points: Sequence[ChunkPoint], best: ChunkPoint | None, limit: float | None, fits: bool) -> str:
    first, last = points[0], points[-1]
    without = "" if fits else " (if it fitted: not one request does)"
    if limit is not None and best is None:
        return f"No token budget keeps 99 % of the gaps between tokens within {1e3 * limit:g} ms{without}"
    if limit is not None and best is not None:
        cost = f"TTFT is {_ms(best.ttft_mean_s)} on average there"
        return f"Up to {best.chunk:,} tokens per step keep 99 % of the gaps between tokens within {1e3 * limit:g} ms; {cost}{without}"
    return (
        f"From {first.chunk:,} to {last.chunk:,} tokens per step, P99 between tokens goes from {_ms(first.itl_p99_s)} to "
        f"{_ms(last.itl_p99_s)}, TTFT from {_ms(first.ttft_mean_s)} to {_ms(last.ttft_mean_s)}{without}"
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"
