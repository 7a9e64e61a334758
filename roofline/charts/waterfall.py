"""A decode step from its hard bound to its expected time, cause by cause."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import FigureBase

from roofline import units
from roofline.batch import Batch
from roofline.charts import style
from roofline.charts.chart import Chart, Request, Row
from roofline.charts.pricing import launch_seconds, op_seconds
from roofline.ledger import build_ledger
from roofline.timing.bound import op_bound_s
from roofline.timing.calibrated import as_run
from roofline.timing.step import StepPrice


def waterfall(request: Request) -> Chart:
    """One decode step at the request's batch and the load's mean context: bound → … → expected, in seconds.

    bound: the busiest resource, all else hidden behind it, experts as few as any routing reads. routing: the experts that
    uniform routing reads beyond those. one_after_another: the ops' own bounds added up. launch: starting the kernels.
    communication: collectives beyond their wire time at full link speed. sampling: choosing the tokens. eager: waiting for the
    host to launch kernels outside captured graphs. host: what the engine adds else. efficiency: the rest, what kernels leave of
    peak and bandwidth, element-wise kernels included.
    """
    setup = request.setup
    context = request.load.mean_context
    batch = Batch.decode(setup.per_pass(request.batch), context)
    price = setup.price(batch)
    parts = _parts(request, batch, price)
    expected = float(price.estimate.expected_s)
    rows: list[Row] = []
    reached = 0.0
    for name, seconds in parts.items():
        if abs(seconds) < 1e-4 * expected:
            continue
        rows.append({"part": name, "seconds": seconds, "from_s": reached, "to_s": reached + seconds})
        reached += seconds
    rows.append({"part": "expected", "seconds": expected, "from_s": 0.0, "to_s": expected})

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure)[0]
        unit, unit_name = style.time_unit(max(row["to_s"] for row in rows))
        axes.grid(False, axis="x")
        last = len(rows) - 1
        for i, row in enumerate(rows):
            colour, hatch = {0: (style.BLUE, None), last: (style.INK, None)}.get(i, (style.ORANGE, "///"))
            look: dict[str, Any] = {"width": 0.62, "color": colour, "hatch": hatch, "edgecolor": style.PAPER, "lw": 0.5}
            axes.bar(i, row["seconds"] / unit, bottom=row["from_s"] / unit, **look)
            share = "" if i == last else f"\n{units.significant(100 * row['seconds'] / expected, 2)} %"
            sign = "−" if row["seconds"] < 0 else "+" if 0 < i < last else ""
            text, top = f"{sign}{units.format(abs(row['seconds']), 'time')}{share}", max(row["from_s"], row["to_s"]) / unit
            axes.annotate(text, (i, top), (0, 3), textcoords="offset points", ha="center", va="bottom", size=style.SMALL)
            if i < last:
                axes.plot([i - 0.31, i + 1.31], [row["to_s"] / unit] * 2, color=style.MUTED, lw=0.8)
        axes.set_xticks(range(len(rows)), [_NAMES[row["part"]] for row in rows])
        axes.tick_params(axis="x", length=0)
        axes.set_ylabel(f"time of one decode step ({unit_name})")
        axes.set_ylim(0, max(row["to_s"] for row in rows) / unit * 1.17)
        style.plain_numbers(axes.yaxis)

    largest = max(rows[1:-1], key=lambda row: row["seconds"])
    times = units.significant(expected / rows[0]["seconds"])
    title = (
        f"The step takes {times}× its bound; the largest addition is {_SPOKEN[largest['part']]} "
        f"({units.significant(100 * largest['seconds'] / expected, 2)} %)"
    )
    return Chart(
        kind="waterfall",
        title=title,
        subtitle=f"{request.shown} · decode at batch {request.batch:,} with {context:,} cached tokens, engine {request.engine}",
        rows=tuple(rows),
        paint=paint,
        request=request,
        basis=request.basis,
    )


_NAMES = {
    "bound": "hard\nbound", "routing": "more\nexperts", "one_after_another": "ops in\nsequence", "launch": "kernel\nlaunches",
    "efficiency": "kernel\nefficiency", "communication": "communi-\ncation", "sampling": "sampling",
    "eager": "eager\nlaunches", "host": "engine\non the host", "expected": "expected",
}  # fmt: skip
_SPOKEN = {
    "routing": "reading the experts that tokens really choose",
    "one_after_another": "that ops run one after another",
    "launch": "launching kernels",
    "efficiency": "what kernels leave of peak and bandwidth",
    "communication": "communication",
    "sampling": "sampling",
    "eager": "launching kernels outside captured graphs",
    "host": "the engine's work on the host",
}


def _parts(request: Request, batch: Batch, price: StepPrice) -> dict[str, float]:
    """Seconds by part; they add up to the expected time of the step. Efficiency is what the other parts leave unexplained."""
    setup = request.setup
    launch, communication, routing = 0.0, 0.0, 0.0
    for stage in range(setup.parallel.pp):
        ledger = build_ledger(
            setup.model, batch, parallel=setup.parallel, precision=setup.precision, conventions=setup.conventions, stage=stage
        )
        for op in as_run(ledger):
            if op.kind == "collective":
                wire = float(op_bound_s(op, setup.hardware))
                communication += op.count * (float(op_seconds(op, setup.hardware)) - wire)
            else:
                launch += op.count * launch_seconds(op)
            routing += op.count * (float(op_bound_s(op, setup.hardware, routing="uniform")) - float(op_bound_s(op, setup.hardware)))
    bound, serial, host = float(price.estimate.bound_s), float(price.serial_s), float(price.host_s)
    known = {"bound": bound, "one_after_another": serial - bound, "routing": routing, "launch": launch}
    known |= {"communication": communication, "sampling": float(price.sampling_s), "eager": float(price.eager_s), "host": host}
    rest = float(price.estimate.expected_s) - sum(known.values())
    return {name: known.get(name, rest) for name in list(_NAMES)[:-1]}
