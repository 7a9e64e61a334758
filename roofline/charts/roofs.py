"""The roofline: FLOP/s over FLOP/B, with the ops of a prefill and of a decode step where the ledger and the timing put them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.batch import Batch
from roofline.charts import labels, style
from roofline.charts.chart import Chart, Request, Row
from roofline.charts.measured import MeasuredGemm, gemm_op, measured_gemms
from roofline.charts.pricing import op_seconds
from roofline.charts.roof_paint import RIGHT, Keys, Roof, paint_roofs, paint_zones, roof_keys
from roofline.charts.slopes import slopes, unknown
from roofline.dtypes import dtype
from roofline.ledger import Op, build_ledger
from roofline.phases import Setup
from roofline.profiles.hardware import Hardware
from roofline.timing.bound import limited_by, op_bound_s
from roofline.timing.calibrated import op_times
from roofline.timing.peaks import effective_peak

BATCHES = tuple(1 << i for i in range(9))
CONTEXTS = tuple(1 << i for i in range(10, 18))
_LARGE = 16384


def roofline(request: Request) -> Chart:
    """Ops of one prefill (one prompt) and one decode step (the request's batch, mid-output context) under the device's roofs.

    A point's rate is its FLOPs over its expected time; its area its share of the pass's expected time. Ops without FLOPs
    (collectives) are in the data only.
    """
    setup = request.setup
    context = request.load.mean_context
    passes = {"prefill": Batch.prefill(1, request.load.input_len), "decode": Batch.decode(request.batch, context)}
    rows = [row for phase, batch in passes.items() for row in _op_rows(setup, phase, batch)]
    computes = {str(row["compute"]) for row in rows if row["compute"]}
    roofs = [_roof(device, compute) for device in request.devices for compute in _computes_shown(device, computes, len(request.devices))]
    totals = [_pass_row("step", phase, rows) for phase in passes]
    paths = [
        *_trajectory(setup, "batch", np.asarray(BATCHES), np.full(len(BATCHES), context)),
        *_trajectory(setup, "context", np.full(len(CONTEXTS), request.batch), np.asarray(CONTEXTS)),
    ]
    measured = measured_gemms(request.table, setup.hardware) if request.table else []
    lines = slopes(request.devices, setup)
    data = [*rows, *totals, *paths, *(_roof_row(r) for r in roofs), *(line.row() for line in lines)]
    data += [_measured_row(m, setup.hardware) for m in measured]
    main = next((r for r in roofs if r.compute == _main_compute(rows)), roofs[0])

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure, right=RIGHT)[0]
        _limits(axes, rows + totals + paths, roofs)
        taken = paint_zones(axes, main) + paint_roofs(axes, roofs, lines)
        _paint_paths(axes, paths)
        _paint_measured(axes, measured, setup.hardware)
        _paint_ops(axes, rows, totals, taken, roof_keys(roofs, lines))

    return Chart(
        kind="roofline",
        title=_finding(request, totals, main),
        subtitle=f"{request.shown} · prefill of {request.load.input_len:,} tokens, decode with {context:,} cached",
        rows=tuple(_uniform(data)),
        paint=paint,
        request=request,
        basis=" · ".join(filter(None, [unknown(request.devices), request.basis])),
    )


def _op_rows(setup: Setup, phase: str, batch: Batch) -> list[Row]:
    ledger = build_ledger(setup.model, batch, parallel=setup.parallel, precision=setup.precision, conventions=setup.conventions)
    times = [op.count * float(op_seconds(op, setup.hardware)) for op in ledger]
    return [_op_row(op, phase, setup.hardware, seconds, seconds / sum(times)) for op, seconds in zip(ledger, times, strict=True)]


def _op_row(op: Op, phase: str, device: Hardware, seconds: float, share: float) -> Row:
    flops, moved = op.count * float(op.flops_each), op.count * float(op.bytes_each)
    return {
        "series": "op",
        "phase": phase,
        "name": op.name,
        "layer": op.layer,
        "compute": op.compute,
        "flops": flops,
        "bytes": moved,
        "intensity": flops / moved if moved else None,
        "flop_per_s": flops / seconds,
        "bound_s": op.count * float(op_bound_s(op, device)),
        "expected_s": seconds,
        "share_of_time": share,
        "limited_by": limited_by(op, device),
    }


def _pass_row(series: str, phase: str, rows: list[Row]) -> Row:
    """The whole pass as one point: sums of its ops."""
    own = [row for row in rows if row["phase"] == phase]
    flops, moved, seconds = (sum(row[key] for row in own) for key in ("flops", "bytes", "expected_s"))
    return {
        "series": series, "phase": phase, "name": f"whole {phase}", "flops": flops, "bytes": moved,
        "intensity": flops / moved, "flop_per_s": flops / seconds, "expected_s": seconds,
    }  # fmt: skip


def _trajectory(setup: Setup, along: str, batches: np.ndarray, contexts: np.ndarray) -> list[Row]:
    """Whole decode steps (kernels, without the engine's host time) along batch or context, in one evaluation."""
    price = setup.price(Batch.decode(setup.per_pass(batches), contexts))
    flops, moved, seconds = (np.broadcast_to(a, batches.shape) for a in (price.total("flops"), price.total("bytes"), price.kernels_s))
    return [
        {
            "series": f"over {along}", "phase": "decode", "name": f"batch {b:g}, context {c:g}", "batch": int(b), "context": int(c),
            "flops": float(f), "bytes": float(m), "intensity": float(f / m), "flop_per_s": float(f / s), "expected_s": float(s),
        }
        for b, c, f, m, s in zip(batches, contexts, flops, moved, seconds, strict=True)
    ]  # fmt: skip


def _computes_shown(device: Hardware, used: set[str], devices: int) -> list[str]:
    """Compute types whose roofs are drawn: those in use; on a single device also its other matrix types, for comparison."""
    own = {_unit(device, compute) for compute in used}
    if devices == 1:
        own |= {c for c in ("bf16", "fp8", "int8", "fp4") if c in device.peaks}
    by_peak: dict[float, str] = {}
    for compute in sorted(own, key=lambda c: (c not in used, c)):
        by_peak.setdefault(device.peaks[compute], compute)  # one line for types of one rate
    return sorted(by_peak.values(), key=lambda c: device.peaks[c])


def _unit(device: Hardware, compute: str) -> str:
    """The type of the unit that multiplies `compute` on this device."""
    peak = effective_peak(device, compute)[0]
    return compute if compute in device.peaks else next(name for name, value in device.peaks.items() if value == peak)


def _roof(device: Hardware, compute: str) -> Roof:
    """Datasheet roof, and what the timing model gives the largest kernels: a big square product, and one row times a big matrix."""
    stored = dtype({"fp4": "nvfp4", "int4": "int4"}.get(compute, compute))
    big, thin = gemm_op(_LARGE, _LARGE, _LARGE, stored), gemm_op(1, 4 * _LARGE, 4 * _LARGE, stored)
    most = op_times(big, device, "vllm")
    return Roof(
        device,
        compute,
        device.peaks[compute],
        float(big.flops_each / most.expected_s),
        float(thin.bytes_each / op_seconds(thin, device)),
        ", ".join(most.used),
    )


def _roof_row(roof: Roof) -> Row:
    return {
        "series": "roof", "name": roof.device.id, "compute": roof.compute, "flop_per_s": roof.peak,
        "memory_bytes_per_s": roof.device.memory_bandwidth, "ridge_intensity": roof.ridge,
        "l2_ridge_intensity": roof.peak / roof.device.l2_bandwidth if roof.device.l2_bandwidth else None,
        "expected_by": roof.basis, "expected_flop_per_s": roof.reached, "expected_bytes_per_s": roof.reached_bandwidth,
    }  # fmt: skip


def _measured_row(gemm: MeasuredGemm, device: Hardware) -> Row:
    return {
        **_op_row(gemm.op, "", device, float(op_seconds(gemm.op, device)), 0.0),
        "series": "measured",
        "name": gemm.label,
        "share_of_time": None,
        "measured_s": gemm.seconds,
        "measured_flop_per_s": float(gemm.op.flops_each) / gemm.seconds,
    }


def _uniform(rows: list[Row]) -> list[Row]:
    """All rows with all keys, in the order of first appearance."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in keys} for row in rows]


def _main_compute(rows: list[Row]) -> str:
    flops: dict[str, float] = {}
    for row in rows:
        flops[str(row["compute"])] = flops.get(str(row["compute"]), 0.0) + float(row["flops"])
    return max(flops, key=flops.__getitem__, default="")


def _finding(request: Request, totals: list[Row], roof: Roof) -> str:
    prefill, decode = (float(row["intensity"]) for row in totals)
    x, y, ridge = (units.significant(value) for value in (decode, prefill, roof.ridge))
    if decode < roof.ridge <= prefill:
        return (
            f"Decode at batch {request.batch} waits for memory ({x} FLOP/B), prefill computes ({y}): the {roof.compute} ridge is at {ridge}"
        )
    does = "wait for memory" if prefill < roof.ridge else "compute"
    return f"Decode at batch {request.batch} ({x} FLOP/B) and prefill ({y}) both {does}: the {roof.compute} ridge is at {ridge} FLOP/B"


def _limits(axes: Axes, points: list[Row], roofs: list[Roof]) -> None:
    xs = [float(row["intensity"]) for row in points if row["intensity"] and row["flops"]]
    ys = [float(row["flop_per_s"]) for row in points if row["flops"]]
    ridges = [roof.ridge for roof in roofs]
    x = style.log_span([max(v, 1e-2) for v in xs] + ridges, below=2.2, above=6.0)
    y = style.log_span(ys + [roof.peak for roof in roofs], below=2.5, above=3.2)
    axes.set(
        xscale="log",
        yscale="log",
        xlim=x,
        ylim=y,
        xlabel="arithmetic intensity (FLOP per byte of memory traffic)",
        ylabel="rate of one GPU (TFLOP/s)",
    )
    style.plain_numbers(axes.xaxis)
    style.plain_numbers(axes.yaxis, 1e12)


def _paint_paths(axes: Axes, paths: list[Row]) -> None:
    """Where the whole decode step moves as batch and context grow."""
    for along, colour, dash in (("batch", style.BLUE, "-"), ("context", style.SKY, (0, (4, 2)))):
        own = [row for row in paths if row["series"] == f"over {along}"]
        points = [(float(row["intensity"]), float(row["flop_per_s"])) for row in own]
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            lw=1.3,
            ls=dash,
            zorder=3,
            gid=f"path:{along}",
            label=f"decode step, {along} {style.compact(own[0][along])} → {style.compact(own[-1][along])}",
        )
        middle = len(points) // 2
        for a, b in list(pairwise(points))[middle : middle + 1]:
            axes.annotate("", b, a, arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.3, "shrinkA": 0, "shrinkB": 0}, zorder=4)


def _paint_ops(axes: Axes, rows: list[Row], totals: list[Row], taken: list[labels.Box], keys: Keys) -> None:
    texts: list[labels.Label] = []
    wholes: list[labels.Label] = []
    for phase, (colour, marker) in style.PHASES.items():
        own = [row for row in rows if row["phase"] == phase and row["flops"] and row["intensity"]]
        if not own:
            continue
        areas = [22 + 800 * float(row["share_of_time"]) for row in own]
        xs, ys = ([float(row[key]) for row in own] for key in ("intensity", "flop_per_s"))
        axes.scatter(xs, ys, s=areas, marker=marker, facecolor=colour + "40", edgecolor=colour, lw=1.1, zorder=4, gid=f"ops:{phase}")
        axes.plot([], [], marker=marker, ms=8, mfc=colour + "40", mec=colour, ls="none", label=f"{phase} op, area = share of time")
        texts += [
            labels.Label(x, y, str(row["name"]), float(row["share_of_time"]), colour, (area / 3.14) ** 0.5)
            for x, y, row, area in zip(xs, ys, own, areas, strict=True)
        ]
        whole = next(row for row in totals if row["phase"] == phase)
        spot = (float(whole["intensity"]), float(whole["flop_per_s"]))
        axes.plot(*spot, marker="*", ms=13, mfc=colour, mec=style.PAPER, mew=0.8, ls="none", zorder=7, gid=f"step:{phase}")
        wholes.append(labels.Label(*spot, f"whole {phase}", 9.0, colour, 6.0))
    handles, names = axes.get_legend_handles_labels()
    handles, names = [*keys, *handles], [*keys.values(), *names]
    legend = axes.legend(handles, names, loc="lower right", borderaxespad=0.2, fontsize=style.TINY + 0.5)
    legend.set_zorder(8)
    taken.append(_legend_box(axes, len(legend.get_texts()), max(len(t.get_text()) for t in legend.get_texts())))
    labels.place(axes, wholes + labels.together(axes, texts), taken=taken, most=18, furthest=62)


def _legend_box(axes: Axes, lines: int, longest: int) -> labels.Box:
    """Where a legend in the lower right corner lies, in points."""
    scale = 72.0 / axes.figure.dpi
    right, bottom = axes.transAxes.transform((1, 0)) * scale
    return right - 40 - 0.55 * (style.TINY + 0.5) * longest, bottom, right, bottom + lines * (style.TINY + 0.5) * 1.5 + 8


def _paint_measured(axes: Axes, measured: list[MeasuredGemm], device: Hardware) -> None:
    """Hollow predictions joined to filled measurements."""
    for gemm in measured:
        x = float(gemm.op.flops_each / gemm.op.bytes_each)
        predicted, seen = (float(gemm.op.flops_each) / s for s in (float(op_seconds(gemm.op, device)), gemm.seconds))
        axes.plot([x, x], [predicted, seen], color=style.GREEN, lw=1, zorder=5)
        axes.plot(x, predicted, marker="o", mfc=style.PAPER, mec=style.GREEN, ls="none", zorder=5, gid="predicted")
        axes.plot(x, seen, marker="o", mfc=style.GREEN, mec=style.GREEN, ls="none", zorder=5, gid="measured")
    if measured:
        axes.plot(
            [], [], marker="o", mfc=style.GREEN, mec=style.GREEN, color=style.GREEN, lw=1, label="measured, joined to hollow: expected"
        )
