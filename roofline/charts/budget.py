"""Memory of one GPU as a stack: weights, working memory, KV, what the engine leaves alone."""

from __future__ import annotations

from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.capacity import MemoryPlan
from roofline.charts import style
from roofline.charts.chart import Chart, Request

_LOOK = {  # colour, hatch, text colour
    "weights": (style.BLUE, "", style.PAPER),
    "activations": (style.ORANGE, "///", style.INK),
    "runtime": (style.PINK, "...", style.INK),
    "KV cache": (style.SKY, "", style.INK),
    "outside the budget": (style.FAINT, "\\\\\\", style.INK),
}


def budget(request: Request) -> Chart:
    """How the memory of one GPU (of the fullest pipeline stage) is spent under the engine's rules, device by device.

    outside the budget: what the engine's memory fraction does not touch. Bytes that are missing are a part of their own.
    """
    plans = [replace(request, devices=(device,)).memory() for device in (request.setup.hardware, *request.devices[1:])]
    rows = tuple(row for plan in plans for row in _rows(plan))

    def paint(figure: FigureBase) -> None:
        left = 0.1 if len(plans) == 1 else 0.19
        axes = style.panels(figure, left=left)[0]
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        widest = max(max(plan.total_bytes, _spent(plan)) for plan in plans)
        for i, plan in enumerate(plans):
            _bar(axes, len(plans) - 1 - i, plan, widest, alone=len(plans) == 1)
        axes.set(
            xlim=(0, widest / 2**30 * 1.03 if len(plans) == 1 else widest / 2**30 * 1.12),
            ylim=(-0.75, len(plans) - 0.2),
            xlabel="memory of one GPU (GiB)",
        )
        names = [device.name for device in request.devices] if len(plans) > 1 else [""]
        axes.set_yticks(range(len(plans) - 1, -1, -1), [name.replace(" ", "\n", 1) for name in names])
        axes.tick_params(axis="y", length=0)
        handles = [
            axes.barh([0], [0], color=colour, hatch=hatch, edgecolor=style.PAPER, label=name) for name, (colour, hatch, _) in _LOOK.items()
        ]
        axes.legend(handles=handles, loc="lower center", ncols=len(handles), borderaxespad=0.3, columnspacing=1.4, handlelength=1.6)

    return Chart(
        kind="budget",
        title=_finding(plans[0], request.load.longest),
        subtitle=f"{request.shown} · {plans[0].engine.name}, memory fraction {plans[0].settings.utilization:g}",
        rows=rows,
        paint=paint,
        request=request,
    )


def _parts(plan: MemoryPlan) -> dict[str, float]:
    return {
        "weights": plan.weight_bytes,
        "activations": plan.activation_bytes,
        "runtime": plan.runtime_bytes,
        "KV cache": plan.kv_bytes,
        "outside the budget": max(0.0, plan.total_bytes - _spent(plan)),
    }


def _spent(plan: MemoryPlan) -> float:
    return plan.weight_bytes + plan.activation_bytes + plan.runtime_bytes + plan.kv_bytes


def _rows(plan: MemoryPlan) -> list[dict[str, object]]:
    known = {"activations": plan.activation, "runtime": plan.runtime, "KV cache": plan.kv}
    return [
        {
            "hardware": plan.hardware, "part": name, "bytes": value, "bytes_low": max(0.0, known[name].low) if name in known else value,
            "bytes_high": max(0.0, known[name].high) if name in known else value, "total_bytes": plan.total_bytes,
        }
        for name, value in _parts(plan).items()
    ]  # fmt: skip


def _bar(axes: Axes, height: int, plan: MemoryPlan, widest: float, *, alone: bool) -> None:
    """One stacked bar; parts too thin for text get theirs above when there is one bar, else only the KV gets it, behind the bar."""
    reached, above, end = 0.0, {"left": 0, "right": 0}, max(plan.total_bytes, _spent(plan)) / 2**30
    for name, value in _parts(plan).items():
        if not value:
            continue
        colour, hatch, ink = _LOOK[name]
        axes.barh(height, value / 2**30, left=reached / 2**30, height=0.5, color=colour, hatch=hatch, edgecolor=style.PAPER, lw=0.6)
        text = units.format(value, "bytes", binary=True)
        middle = (reached + value / 2) / 2**30
        if value > 0.11 * widest:
            box = {"facecolor": colour, "edgecolor": "none", "pad": 1.0} if hatch else None
            axes.text(middle, height, text, ha="center", va="center", size=style.SMALL, color=ink, bbox=box)
        elif alone:
            edge = middle > 0.85 * widest / 2**30
            side = "right" if edge or above["right"] <= above["left"] else "left"  # pairs stand left and right of each other
            leader = {"arrowstyle": "-", "lw": 0.5, "color": style.MUTED, "shrinkA": 0, "shrinkB": 0}
            spot, shift = (middle, height + 0.25), (4 if side == "left" else -4, 8 + 13 * above[side])
            axes.annotate(
                f"{name} {text}", spot, shift, textcoords="offset points", ha=side, va="bottom", size=style.SMALL, arrowprops=leader
            )
            above[side] += 1
        elif name == "KV cache":
            axes.annotate(f"KV {text}", (end, height), (5, 0), textcoords="offset points", va="center", size=style.SMALL)
        reached += value
    axes.plot([plan.total_bytes / 2**30] * 2, [height - 0.3, height + 0.3], color=style.INK, lw=1.6)


def _finding(plan: MemoryPlan, length: int) -> str:
    if not plan.fits:
        return f"It does not fit: {units.format(plan.shortfall_bytes, 'bytes', binary=True)} are missing on each GPU"
    share = units.significant(100 * plan.kv_bytes / plan.total_bytes, 2)
    sequences = plan.max_sequences(length)
    return f"{share} % of the memory is left for KV: {plan.kv_tokens_total:,} tokens, {sequences:,} sequences of {length:,} tokens"
