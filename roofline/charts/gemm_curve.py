"""Time and rate of matrix products over rows M: where reading the matrix (GEMV) gives way to computing with it (GEMM)."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from matplotlib.figure import FigureBase

from roofline import units
from roofline.batch import Batch
from roofline.charts import style
from roofline.charts.chart import Chart, Request, Row
from roofline.charts.measured import MeasuredGemm, measured_gemms
from roofline.charts.pricing import op_seconds
from roofline.ledger import Op, build_ledger
from roofline.timing.bound import op_bound_s, op_times
from roofline.timing.peaks import effective_peak

MOST_ROWS = 8192


def gemm_curve(request: Request) -> Chart:
    """The largest matrix products of the model as engines run them, on one GPU, over the tokens of a pass: bound and expected.

    With a table: its measured products of this device, filled, at their M.
    """
    setup = request.setup
    tokens = np.unique(np.geomspace(1, MOST_ROWS, 53).astype(np.int64)).astype(np.float64)
    ops = _products(request, tokens)
    ends = {label: _leaves_memory(request, label) for label in ops}
    rows = [row for label, op in ops.items() for row in _rows(request, label, op, tokens)]
    measured = measured_gemms(request.table, setup.hardware) if request.table else []
    rows += [_measured_row(gemm) for gemm in measured]
    peak = max(effective_peak(setup.hardware, op.compute)[0] for op in ops.values())

    def paint(figure: FigureBase) -> None:
        left, right = style.panels(figure, 2)
        unit, name = style.time_unit(max(float(row["expected_s"]) for row in rows if row["expected_s"]))
        for axes in (left, right):
            style.log_counts(axes.xaxis, 1, MOST_ROWS, most=7)
            axes.set(yscale="log", xlabel="tokens in the pass (rows M)")
        for (label, end), (colour, marker, dash) in zip(ends.items(), style.SERIES, strict=False):
            own = [row for row in rows if row["product"] == label]
            bound, expected, flops = (np.array([float(row[key]) for row in own]) for key in ("bound_s", "expected_s", "flops"))
            left.plot(tokens, bound / unit, color=colour, lw=0.9, alpha=0.8)
            left.plot(tokens, expected / unit, color=colour, ls=dash, marker=marker, markevery=9, label=label, gid=f"time:{label}")
            right.plot(tokens, flops / bound / 1e12, color=colour, lw=0.9, alpha=0.8)
            right.plot(tokens, flops / expected / 1e12, color=colour, ls=dash, marker=marker, markevery=9, gid=f"rate:{label}")
            if end:
                right.axvline(end, color=colour, lw=0.9, ls=(0, (1, 2)))
        shapes = {(op.n, op.k): look[0] for op, look in zip(ops.values(), style.SERIES, strict=False)}
        for gemm in measured:
            match = shapes.get((gemm.op.n, gemm.op.k))
            if match:  # other shapes have other times; their rates compare
                left.plot(gemm.op.m, gemm.seconds / unit, marker="o", color=match, mec=style.INK, mew=0.6, ls="none", ms=5, gid="measured")
            rate = float(gemm.op.flops_each) / gemm.seconds / 1e12
            right.plot(gemm.op.m, rate, marker="o", color=match or style.MUTED, mec=style.INK, mew=0.6, ls="none", ms=5 if match else 3)
        right.axhline(peak / 1e12, color=style.INK, lw=1.0)
        right.annotate(f"peak {units.format(peak, 'flop_rate')}", (1, peak / 1e12), (0, 3), textcoords="offset points", size=style.SMALL)
        left.set_ylabel(f"time of one product ({name})")
        right.set_ylabel("rate (TFLOP/s)")
        times = [float(row[key]) / unit for row in rows for key in ("bound_s", "expected_s") if row[key]]
        left.set_ylim(*style.log_span(times, below=1.4, above=6.0))
        right.set_ylim(
            *style.log_span([float(row["flops"]) / float(row["expected_s"]) / 1e12 for row in rows if row["expected_s"]] + [peak / 1e12])
        )
        style.plain_numbers(left.yaxis)
        style.plain_numbers(right.yaxis)
        left.legend(loc="upper left", borderaxespad=0.2, handlelength=3.0)

    return Chart(
        kind="gemm-curve",
        title=_finding(ends, request),
        subtitle=f"{request.shown} · thin: hard bound; dotted: where the bound leaves the memory slope",
        rows=tuple(rows),
        paint=paint,
        request=request,
        basis=request.basis,
    )


def _products(request: Request, tokens: np.ndarray) -> dict[str, Op]:
    """Up to three products with the most weight bytes per run, by label; the experts of a MoE as one grouped product."""
    ledger = build_ledger(
        request.the_model, Batch.decode(tokens, 0), parallel=request.parallel, precision=request.precision, conventions=request.conventions
    ).fused()
    found: dict[str, Op] = {}
    for op in sorted((op for op in ledger if op.kind in ("gemm", "moe") and op.layer), key=lambda op: -_weight(op)):
        label = op.name if op.kind == "moe" else f"{op.name} {op.n:,}×{op.k:,}"
        found.setdefault(label.replace("_proj", ""), op)
    return dict(list(found.items())[:3])


def _weight(op: Op) -> float:
    return float(np.max(op.weight_bytes_each))


def _rows(request: Request, label: str, op: Op, tokens: np.ndarray) -> list[Row]:
    device = request.setup.hardware
    bound, expected, flops, moved = (
        np.broadcast_to(np.asarray(a), tokens.shape) for a in (op_bound_s(op, device), op_seconds(op, device), op.flops_each, op.bytes_each)
    )
    return [
        {
            "product": label, "tokens": int(t), "m": float(m), "n": op.n, "k": op.k, "flops": float(f), "bytes": float(b),
            "bound_s": float(bs), "expected_s": float(es), "measured_s": None,
        }
        for t, m, f, b, bs, es in zip(tokens, np.broadcast_to(op.m, tokens.shape), flops, moved, bound, expected, strict=True)
    ]  # fmt: skip


def _measured_row(gemm: MeasuredGemm) -> Row:
    op = gemm.op
    return {
        "product": "measured", "tokens": int(op.m), "m": op.m, "n": op.n, "k": op.k, "flops": op.flops_each, "bytes": op.bytes_each,
        "bound_s": None, "expected_s": None, "measured_s": gemm.seconds,
    }  # fmt: skip


def _leaves_memory(request: Request, label: str) -> int | None:
    """The fewest tokens at which computing takes at least as long as moving the bytes; None up to 2**20."""

    def computes(tokens: int) -> bool:
        compute, memory, _ = op_times(_products(request, np.array([float(tokens)]))[label], request.setup.hardware, routing="uniform")
        return bool(np.all(np.asarray(compute) >= np.asarray(memory)))

    found = 1 + bisect_left(range(1, 1 << 20), True, key=computes)
    return found if found < 1 << 20 else None


def _finding(ends: dict[str, int | None], request: Request) -> str:
    largest, end = next(iter(ends.items()))
    name = largest.split(" ")[0]
    if end is None:
        return f"The largest product ({name}) waits for memory at any number of tokens"
    side = "left of" if request.batch < end else "past"
    return (
        f"The largest product ({name}) waits for memory below {end:,} tokens and computes from there: batch {request.batch:,} is {side} it"
    )
