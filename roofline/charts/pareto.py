"""What a user gets against what a GPU gives: tokens/s per user and per GPU over tensor parallelism and batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from matplotlib.figure import FigureBase
from matplotlib.patches import Rectangle

from roofline import units
from roofline.charts import labels, style
from roofline.charts.chart import Chart, Request, Row
from roofline.errors import ShardError
from roofline.ledger import Parallel
from roofline.phases import Setup, batch_curve

WIDEST = 8


def pareto(request: Request) -> Chart:
    """Decode at the load's mean context for each tp up to 8 (or the request's) that divides the model, each batch that fits.

    x: output tokens/s of one sequence; y: of all sequences per GPU, expected times, decode steps alone. front: no other point
    is better in both. A TPOT service level draws the box of points that meet it.
    """
    setup = request.setup
    rows = [row for layout in _layouts(setup) for row in _curve(replace(setup, parallel=layout), request)]
    front = _front(rows)
    rows = [{**row, "on_front": row in front} for row in rows]
    level = None if request.load.tpot_s is None else 1.0 / request.load.tpot_s
    best = max(
        (row for row in rows if level is None or row["tokens_per_s_per_user"] >= level),
        key=lambda r: r["tokens_per_s_per_gpu"],
        default=None,
    )

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure)[0]
        axes.set(xscale="log", yscale="log", xlabel="output tokens/s per user (1 / TPOT)", ylabel="output tokens/s per GPU")
        xs, ys = ([row[key] for row in rows] for key in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
        axes.set(
            xlim=style.log_span([*xs, *([level] if level else [])], below=1.25, above=1.5), ylim=style.log_span(ys, below=1.4, above=1.8)
        )
        style.plain_numbers(axes.xaxis)
        style.plain_numbers(axes.yaxis)
        if not rows:
            axes.text(0.5, 0.5, "nothing fits", transform=axes.transAxes, ha="center", size=style.TITLE_SIZE, color=style.MUTED)
            return
        if level:
            x1, (y0, y1) = axes.get_xlim()[1], axes.get_ylim()
            axes.add_patch(Rectangle((level, y0), x1 - level, y1 - y0, facecolor=style.GREEN, alpha=0.08, lw=0))
            axes.axvline(level, color=style.GREEN, lw=1.2)
            text = f"TPOT ≤ {units.format(request.load.tpot_s, 'time')}"
            axes.annotate(text, (level, y1), (4, -4), textcoords="offset points", va="top", size=style.SMALL, color=style.INK)
        xs, ys = ([row[key] for row in front] for key in ("tokens_per_s_per_user", "tokens_per_s_per_gpu"))
        axes.plot(xs, ys, color=style.FAINT, lw=7, solid_capstyle="round", zorder=1, label="no point is better in both")
        texts = []
        for tp in dict.fromkeys(row["tp"] for row in rows):
            colour, marker, dash = style.SERIES[(tp.bit_length() - 1) % len(style.SERIES)]
            own = [row for row in rows if row["tp"] == tp]
            points = [(row["tokens_per_s_per_user"], row["tokens_per_s_per_gpu"]) for row in own]
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, ls=dash, label=f"tp {tp}", gid=f"tp:{tp}")
            texts += [
                labels.Label(x, y, f"{row['batch']}", 2.0 if row in (own[0], own[-1]) else 1.0 if row["on_front"] else 0.5, colour)
                for (x, y), row in zip(points, own, strict=True)
            ]
        axes.legend(loc="lower left", borderaxespad=0.3, handlelength=3.0, title="numbers at the points: batch", title_fontsize=style.SMALL)
        labels.place(axes, texts, size=style.TINY + 0.5, most=30, furthest=10)

    return Chart(
        kind="pareto",
        title=_finding(request, best, rows),
        subtitle=f"{replace(request, parallel=Parallel()).shown} · decode with {request.load.mean_context:,} cached tokens, expected times",
        rows=tuple(rows),
        paint=paint,
        request=request,
        basis=request.basis,
    )


def _layouts(setup: Setup) -> list[Parallel]:
    """tp = 1, 2, 4 … that divides the model; with experts spread over all ranks if the request spreads them."""
    found = []
    for tp in (1 << i for i in range(max(WIDEST, setup.parallel.tp).bit_length())):
        try:
            layout = replace(setup.parallel, tp=tp, ep=tp * setup.parallel.dp if setup.parallel.ep > 1 else 1)
            layout.check(setup.model)
        except ShardError:
            continue
        found.append(layout)
    return found


def _curve(setup: Setup, request: Request) -> list[Row]:
    """The batches of one layout that fit, powers of two and the largest."""
    plan = replace(request, parallel=setup.parallel).memory()
    fits = min(plan.max_sequences(request.load.longest) if plan.fits else 0, 4096)
    sizes = sorted({1 << i for i in range(fits.bit_length()) if 1 << i <= fits} | ({fits} if fits else set()))
    if not sizes:
        return []
    tpot = np.broadcast_to(batch_curve(setup, request.load.mean_context, sizes).tpot.expected_s, (len(sizes),))
    gpus = setup.parallel.gpus
    return [
        {
            "tp": setup.parallel.tp, "gpus": gpus, "batch": size, "tpot_s": float(t), "tokens_per_s_per_user": 1 / float(t),
            "tokens_per_s_per_gpu": size / float(t) / gpus,
        }
        for size, t in zip(sizes, tpot, strict=True)
    ]  # fmt: skip


def _front(rows: list[Row]) -> list[Row]:
    """The rows that no other row beats in both rates, fastest user first."""
    front: list[Row] = []
    for row in sorted(rows, key=lambda r: (-r["tokens_per_s_per_user"], -r["tokens_per_s_per_gpu"])):
        if not front or row["tokens_per_s_per_gpu"] > front[-1]["tokens_per_s_per_gpu"]:
            front.append(row)
    return front


def _finding(request: Request, best: Row | None, rows: list[Row]) -> str:
    if not rows:
        return "No layout up to tp 8 fits one sequence of this length"
    level = "" if request.load.tpot_s is None else f" within a TPOT of {units.format(request.load.tpot_s, 'time')}"
    if best is None:
        fastest = max(row["tokens_per_s_per_user"] for row in rows)
        return f"No layout gives tokens{level}: the fastest user gets {units.significant(fastest)} tok/s"
    rate = units.significant(best["tokens_per_s_per_gpu"])
    return f"The most per GPU{level} is {rate} tok/s, with tp {best['tp']} at batch {best['batch']:,}"
