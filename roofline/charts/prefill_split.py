"""Prefill FLOPs over prompt length: matrices grow with T, attention with T²."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline import units
from roofline.batch import Batch
from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.ledger import build_ledger
from roofline.phases import LONGEST_CONTEXT

SHORTEST = 256


def prefill_split(request: Request) -> Chart:
    """FLOPs of the matrices and of attention in a prefill of one prompt, over its length, with the length where both are equal.

    FLOPs of one GPU. Attention counts what the request's convention says: the causal pairs, or the full square.
    """
    crossover = _crossover(request)
    longest = 1 << max(17, min(24, (4 * (crossover or 1)).bit_length()), (2 * request.load.input_len - 1).bit_length())
    tokens = np.unique(np.concatenate([np.geomspace(SHORTEST, longest, 61).astype(np.int64), [request.load.input_len]]))
    linear, attention = _flops(request, tokens.astype(np.float64))
    rows = tuple(
        {"tokens": int(t), "linear_flops": float(a), "attention_flops": float(b), "attention_share": float(b / (a + b))}
        for t, a, b in zip(tokens, linear, attention, strict=True)
    )

    def paint(figure: FigureBase) -> None:
        axes, share = style.panels(figure, 2)
        for axis in (axes, share):
            style.log_counts(axis.xaxis, SHORTEST, longest, most=6)
            axis.set_xlabel("prompt length (tokens)")
            if crossover:
                axis.axvline(crossover, color=style.MUTED, lw=1.0, ls=(0, (1, 2)))
        axes.plot(tokens, linear / 1e12, color=style.BLUE, label="matrices, ∝ T", gid="linear")
        axes.plot(tokens, attention / 1e12, color=style.VERMILION, ls=style.SERIES[1][2], label="attention, ∝ T²", gid="attention")
        axes.set_yscale("log")
        axes.set_ylim(*style.log_span([*(linear / 1e12), *(attention / 1e12)], below=1.3, above=2.0))
        axes.set_ylabel("FLOPs of one prefill (TFLOP)")
        style.plain_numbers(axes.yaxis)
        axes.legend(loc="upper left", borderaxespad=0.2)
        share.fill_between(tokens, 100 * attention / (linear + attention), color=style.VERMILION, alpha=0.2, lw=0)
        share.plot(tokens, 100 * attention / (linear + attention), color=style.VERMILION, ls=style.SERIES[1][2], gid="share")
        share.set_ylim(0, 100)
        share.set_ylabel("attention's share of the FLOPs (%)")
        _mark_prompt(share, rows, request.load.input_len)
        if crossover:
            share.annotate(
                f"half at {crossover:,}", (crossover, 50), (-6, 8), textcoords="offset points", ha="right", size=style.SMALL,
                arrowprops={"arrowstyle": "-", "lw": 0.5, "color": style.MUTED},
            )  # fmt: skip
            share.plot(crossover, 50, marker="o", color=style.INK, ls="none", gid="crossover")

    counted = "causal pairs" if request.conventions.causal else "full square of pairs"
    return Chart(
        kind="prefill-split",
        title=_finding(rows, crossover, request.load.input_len),
        subtitle=f"{request.shown} · FLOPs of one GPU, attention counts the {counted}",
        rows=rows,
        paint=paint,
        request=request,
    )


def _flops(request: Request, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(matrices, attention) of prompts of these lengths, in one evaluation."""
    ledger = build_ledger(
        request.the_model, Batch.prefill(1, tokens), parallel=request.parallel, precision=request.precision, conventions=request.conventions
    )
    attention = np.zeros_like(tokens)
    for op in ledger:
        if op.kind.endswith("attention"):
            attention = attention + op.count * np.asarray(op.flops_each)
    return np.asarray(ledger.total("flops")) - attention, attention


def _crossover(request: Request) -> int | None:
    """The first prompt length at which attention is at least half of the FLOPs; None if it never is (small windows)."""

    def beyond(tokens: int) -> bool:
        linear, attention = _flops(request, np.asarray([float(tokens)]))
        return bool(attention[0] >= linear[0])

    found = 2 + bisect_left(range(2, LONGEST_CONTEXT), True, key=beyond)
    return found if found < LONGEST_CONTEXT else None


def _finding(rows: tuple[dict[str, float], ...], crossover: int | None, prompt: int) -> str:
    here = next(row for row in rows if row["tokens"] == prompt)
    now = f"{units.significant(100 * here['attention_share'], 2)} % of a {prompt:,}-token prefill"
    if crossover is None:
        return f"Attention is {now} and never reaches half: its window is small"
    return f"Attention is {now} and half of it from {crossover:,} tokens on"


def _mark_prompt(axes: Axes, rows: tuple[dict[str, float], ...], prompt: int) -> None:
    here = next(row for row in rows if row["tokens"] == prompt)
    share = 100 * here["attention_share"]
    axes.plot(prompt, share, marker="s", color=style.VERMILION, ls="none")
    leader = {"arrowstyle": "-", "lw": 0.5, "color": style.MUTED, "shrinkB": 4}
    text, spot = f"{prompt:,} tokens:\n{units.significant(share, 2)} %", (0.04, 0.85 if share > 45 else 0.36)
    axes.annotate(text, (prompt, share), spot, textcoords="axes fraction", size=style.SMALL, arrowprops=leader)
