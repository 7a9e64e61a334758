"""Batch × context: what limits a decode step, how many tokens per second it gives, and what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase
from matplotlib.patches import Patch, Rectangle

from roofline import units
from roofline.batch import Batch
from roofline.charts import style
from roofline.charts.chart import Chart, Request, Row
from roofline.timing.step import StepPrice

_TINTS = {"compute": "#f6b78f", "weights": "#8fc1e3", "KV": "#d3e9f7", "link": "#f5d9a0"}  # of style.LIMITS, dark text readable on each


def heatmap(request: Request) -> Chart:
    """Decode steps over batch and context in one evaluation: the resource that sets the hard bound, and expected tokens/s.

    Memory-limited cells say whether weights or KV are most of the bytes. A cell fits when that many sequences of that context
    fit the KV memory of the engine; others are hatched.
    """
    setup = request.setup
    longest = _longest(request)
    batches = np.array([1 << i for i in range(10)])
    contexts = np.array([1 << i for i in range(9, longest.bit_length())][-9:])
    price = setup.price(Batch.decode(setup.per_pass(batches)[:, None], contexts[None, :]))
    shape = (len(batches), len(contexts))
    rate = batches[:, None] / np.broadcast_to(np.asarray(price.estimate.expected_s), shape)
    limits = _limits(price, shape)
    plan = request.memory()
    room = [plan.max_sequences(int(context)) if plan.fits else 0 for context in contexts]
    rows = tuple(
        {
            "batch": int(b), "context": int(c), "limited_by": limits[i][j], "output_tokens_per_s": float(rate[i, j]),
            "tpot_s": float(b / rate[i, j]), "fits": bool(b <= room[j]),
        }
        for i, b in enumerate(batches) for j, c in enumerate(contexts)
    )  # fmt: skip

    def paint(figure: FigureBase) -> None:
        axes = style.panels(figure, right=0.8)[0]
        _cells(axes, batches, contexts, rows)
        seen = [name for name in _TINTS if any(row["limited_by"] == name for row in rows)]
        handles = [Patch(facecolor=_TINTS[name], edgecolor=style.MUTED, lw=0.4, label=_MEANING[name]) for name in seen]
        handles.append(Patch(facecolor=style.PAPER, edgecolor=style.MUTED, hatch="////", lw=0.4, label="does not fit\nKV memory"))
        beside: dict[str, Any] = {
            "loc": "upper left",
            "bbox_to_anchor": (1.015, 1.0),
            "borderaxespad": 0.0,
            "alignment": "left",
            "labelspacing": 0.9,
        }
        axes.legend(handles=handles, title="limited by", title_fontsize=style.SMALL, **beside)
        axes.annotate("numbers: output\ntokens/s, expected", (1.02, 0.02), xycoords="axes fraction", size=style.SMALL, color=style.MUTED)

    return Chart(
        kind="heatmap",
        title=_finding(rows),
        subtitle=f"{request.shown} · decode, one replica",
        rows=rows,
        paint=paint,
        request=request,
        basis=request.basis,
    )


_MEANING = {"compute": "compute", "weights": "memory:\nweights", "KV": "memory: KV", "link": "link"}


def _longest(request: Request) -> int:
    """The longest context shown: what the model was made for, at least 64k or the load's own length."""
    own = request.the_model.max_position_embeddings or 0
    return max(1 << 16, min(own, 1 << 24), request.load.longest)


def _limits(price: StepPrice, shape: tuple[int, int]) -> list[list[str]]:
    """Name of the limit per cell: compute, link, or the larger kind of bytes."""
    sums = {name: sum(np.asarray(getattr(bound, f"{name}_s")) for bound in price.bounds) for name in ("compute", "memory", "link")}
    compute, memory, link = (np.broadcast_to(sums[name], shape) for name in ("compute", "memory", "link"))
    kv, weights = (np.broadcast_to(np.asarray(price.total(name)), shape) for name in ("kv_bytes", "weight_bytes"))
    names = np.where(
        link > np.maximum(compute, memory), "link", np.where(compute > memory, "compute", np.where(kv > weights, "KV", "weights"))
    )
    return [[str(name) for name in line] for line in names]


def _cells(axes: Axes, batches: np.ndarray, contexts: np.ndarray, rows: tuple[Row, ...]) -> None:
    axes.grid(False)
    for index, row in enumerate(rows):
        i, j = divmod(index, len(contexts))
        fits = bool(row["fits"])
        colour = _TINTS[row["limited_by"]]
        axes.add_patch(Rectangle((j, i), 1, 1, facecolor=colour, edgecolor=style.PAPER, lw=1.2))
        if not fits:
            axes.add_patch(Rectangle((j, i), 1, 1, facecolor="#ffffff99", edgecolor="#9a9a9a", hatch="////", lw=0))
        box = None if fits else {"facecolor": style.PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.4}
        text = style.compact(row["output_tokens_per_s"])
        axes.text(
            j + 0.5, i + 0.5, text, ha="center", va="center", size=style.SMALL - 0.5, color=style.INK if fits else style.MUTED, bbox=box
        )
    axes.set(xlim=(0, len(contexts)), ylim=(0, len(batches)), xlabel="cached tokens per sequence", ylabel="sequences in the batch")
    axes.set_xticks(np.arange(len(contexts)) + 0.5, [style.compact(c) for c in contexts])
    axes.set_yticks(np.arange(len(batches)) + 0.5, [f"{b}" for b in batches])
    axes.tick_params(length=0)


def _finding(rows: tuple[Row, ...]) -> str:
    fitting = [row for row in rows if row["fits"]]
    if not fitting:
        return "Nothing fits: the weights and working memory leave no room for these contexts"
    best = max(fitting, key=lambda row: float(row["output_tokens_per_s"]))
    names = {str(row["limited_by"]) for row in fitting}
    what = {"weights": "reading weights", "KV": "reading KV", "compute": "compute", "link": "the link"}
    limits = " or ".join(what[name] for name in what if name in names)
    top = units.significant(float(best["output_tokens_per_s"]), 3)
    where = f"batch {best['batch']} and {style.compact(float(best['context']))} tokens"
    return f"What fits is limited by {limits}; the most is {top} tok/s at {where}"
