"""Draws the demonstrations of the reference engine: `python scripts/report_engine.py FOLDER` writes figures, their CSV and README.md.

Nothing is measured here: the same records give the same files.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import FigureBase

from roofline.charts import style
from roofline.charts.chart import Chart, Request
from roofline.charts.save import save
from roofline.records import read_jsonl

Rows = list[dict[str, Any]]
Paint = Callable[[FigureBase], None]


@dataclass(frozen=True)
class Finding:
    """A figure and the sentence above it. rows: its data."""

    row: str
    title: str
    subtitle: str
    rows: Rows
    paint: Paint


def records(folder: Path, name: str) -> Rows:
    """The measured rows of a demonstration."""
    return [row for _, row in read_jsonl(folder / f"{name}.jsonl") if row["kind"] != "environment"]


def label(axes: Axes, x: str, y: str, title: str = "") -> None:
    """Names of axes, and a zero at the bottom."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_ylim(bottom=0)
    if title:
        axes.set_title(title, size=style.SMALL, loc="left", color=style.MUTED)


def lines(axes: Axes, rows: Rows, x: str, y: str, by: str, unit: float = 1.0) -> None:
    """One line per value of `by`."""
    for number, name in enumerate(dict.fromkeys(row[by] for row in rows)):
        colour, marker, dash = style.SERIES[number % len(style.SERIES)]
        points = [(row[x], row[y] / unit) for row in rows if row[by] == name]
        axes.plot(*zip(*points, strict=True), color=colour, marker=marker, linestyle=dash, label=str(name))
    axes.legend(fontsize=style.TINY)


def summaries(rows: Rows) -> Rows:
    """The rows that sum up a run."""
    return [row for row in rows if row["kind"] == "demonstration"]


def over_time(rows: Rows, value: Callable[[dict[str, Any]], float]) -> Rows:
    """`value` of each step of each case at the time of its end."""
    return [{"case": row["case"], "time_s": row["start_s"] + row["seconds"], "value": value(row)} for row in rows if row["kind"] == "step"]


def stairs(axes: Axes, rows: Rows) -> None:
    """Values over time, one line per case."""
    for number, name in enumerate(dict.fromkeys(row["case"] for row in rows)):
        points = [(row["time_s"], row["value"]) for row in rows if row["case"] == name]
        axes.step(*zip(*points, strict=True), where="pre", color=style.SERIES[number][0], linewidth=2.4 - number, label=name)
    above(axes)


def above(axes: Axes) -> None:
    """The legend over the axes, where no line runs."""
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=4, borderaxespad=0.1)


def batching(rows: Rows) -> Finding:
    """S15."""
    runs = {row["case"]: row for row in summaries(rows)}
    slow, fast = runs["static"], runs["continuous"]
    gain = fast["output_tokens_per_s"] / slow["output_tokens_per_s"]
    data = over_time(rows, lambda step: step["running"])

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        stairs(axes, data)
        label(axes, "CPU seconds", "sequences that still generate")

    title = f"Continuous batching gives {gain:.2f} times the tokens per second of static batches of the same size"
    sub = (
        f"tiny-llama-15m, 48 requests at once, at most 8 sequences; TTFT p99 {slow['ttft_s']['p99']:.2f} s static, "
        f"{fast['ttft_s']['p99']:.2f} s continuous"
    )
    return Finding("S15", title, sub, data, paint)


def memory(rows: Rows) -> Finding:
    """S11."""
    runs = {row["case"]: row for row in summaries(rows)}
    pool = runs["paged"]["pool_tokens"]

    def held(step: dict[str, Any]) -> float:
        return (step["context"] + step["decodes"] + sum(new + past for new, past, _ in step["chunks"])) / pool

    queue = {name: [step for step in rows if step["kind"] == "step" and step["case"] == name and step["waiting"]] for name in runs}
    share = {
        name: sum(held(step) * step["seconds"] for step in steps) / sum(step["seconds"] for step in steps) for name, steps in queue.items()
    }
    stored = over_time(rows, held)

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        stairs(axes, [{**row, "value": 100 * row["value"]} for row in stored])
        label(axes, "CPU seconds", "slots that hold a token, % of the pool")

    gain = runs["paged"]["output_tokens_per_s"] / runs["reserved"]["output_tokens_per_s"]
    full = {name: f"{100 * value:.0f} %" for name, value in share.items()}
    title = f"While requests wait, tokens fill {full['paged']} of a paged pool and {full['reserved']} of a reserved one"
    sub = (
        f"tiny-llama-15m, 64 requests, pool of {pool:,} tokens, 256 reserved per request; {gain:.2f} × the tokens/s, "
        f"{runs['paged']['preemptions']} preemptions"
    )
    return Finding("S11", title, sub, stored, paint)


def prefix(rows: Rows) -> Finding:
    """S12."""
    data = [
        {"prefix_caching": "on" if row["prefix_caching"] else "off", "request": at + 1, "ttft_s": value}
        for row in rows
        for at, value in enumerate(row["ttft_each_s"])
    ]
    cold, warm = (
        statistics.median(row["ttft_s"] for row in data if row["prefix_caching"] == on and row["request"] > 1) for on in ("off", "on")
    )

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        lines(axes, data, "request", "ttft_s", "prefix_caching")
        label(axes, "request", "TTFT, CPU seconds")
        axes.get_legend().set_title("prefix cache")

    title = f"1,500 shared tokens of 1,600: TTFT {cold:.2f} s without the prefix cache, {warm:.2f} s with it ({cold / warm:.1f} ×)"
    return Finding("S12", title, "tiny-qwen3-60m, one request after another; the first one fills the cache", data, paint)


def chunks(rows: Rows) -> Finding:
    """S14."""
    keys = ("budget", "chat_itl_p50_s", "chat_itl_p99_s", "document_ttft_p50_s", "total_tokens_per_s")
    data = [{key: row[key] for key in keys} for row in rows]

    def paint(figure: FigureBase) -> None:
        left, right = style.panels(figure, 2)
        for axes, key, name in (
            (left, "chat_itl_p99_s", "gap between chat tokens, p99, s"),
            (right, "document_ttft_p50_s", "TTFT of documents, p50, s"),
        ):
            axes.plot([row["budget"] for row in data], [row[key] for row in data], color=style.BLUE, marker="o")
            style.log_counts(axes.xaxis, 28, 1200)
            label(axes, "tokens per step", name)

    worst = {row["budget"]: row["chat_itl_p99_s"] for row in data}
    first = {row["budget"]: row["document_ttft_p50_s"] for row in data}
    low, high = min(worst), max(worst)
    title = f"Small chunks protect decodes, large ones prompts: p99 gap {worst[low]:.2f} s at {low}, {worst[high]:.2f} s at {high} tokens"
    sub = f"tiny-llama-15m, 12 chats and 10 prompts of 700 tokens; TTFT of the prompts {first[low]:.1f} s and {first[high]:.1f} s"
    return Finding("S14", title, sub, data, paint)


def formats(rows: Rows) -> Finding:
    """S17, and decode against the memory roof."""
    cases = list(dict.fromkeys((row["dtype"], row["weights"], row["phase"]) for row in rows))
    data: Rows = []
    for dtype, weights, phase in cases:
        mine = [row for row in rows if (row["dtype"], row["weights"], row["phase"]) == (dtype, weights, phase)]
        seconds = statistics.median(row["seconds"] for row in mine)
        share = statistics.median(row["weight_bytes"] / row["seconds"] / row["read_bytes_per_s"] for row in mine)
        data.append({"format": f"{dtype} {weights}".strip(), "phase": phase, "seconds": seconds, "of_read_roof": share})
    plain = {row["phase"]: row["seconds"] for row in data if row["format"] == "fp32"}
    data = [{**row, "speedup": plain[row["phase"]] / row["seconds"]} for row in data]
    phases = list(plain)

    def paint(figure: FigureBase) -> None:
        (axes,) = style.panels(figure)
        names = list(dict.fromkeys(row["format"] for row in data))
        for number, phase in enumerate(phases):
            heights = [row["speedup"] for row in data if row["phase"] == phase]
            places = [at + (number - 1) * 0.27 for at in range(len(names))]
            axes.bar(places, heights, 0.25, color=style.SERIES[number][0], label=phase, hatch=("", "//", "..")[number])
        axes.axhline(1, color=style.INK, linewidth=0.8)
        axes.set_xticks(range(len(names)), names)
        above(axes)
        label(axes, "activations and weights", "times as fast as fp32")

    of = {(row["format"], row["phase"]): row for row in data}
    one, wide = of["fp32 w8a16", phases[0]], of["fp32 w8a16", "prefill 256"]
    title = f"int8 weights: decode {one['speedup']:.2f} × fp32, prefill {wide['speedup']:.2f} ×"
    roof = 100 * of["fp32", phases[0]]["of_read_roof"]
    sub = f"tiny-llama-110m on one CPU thread; fp32 decode at batch 1 reads at {roof:.0f} % of the measured read roof"
    return Finding("S17", title, sub, data, paint)


def speculation(rows: Rows) -> Finding:
    """S18."""
    data = []
    for row in rows:
        base = next(r for r in rows if r["drafter"] == "none" and (r["rows"], r["temperature"]) == (row["rows"], row["temperature"]))
        accepted = row["accepted_tokens"] / row["drafted_tokens"] if row["drafted_tokens"] else 0.0
        data.append(
            {
                "drafter": row["drafter"], "drafts": row["drafts"], "sequences": row["rows"], "temperature": row["temperature"],
                "acceptance": accepted, "speedup": row["decode_tokens_per_s"] / base["decode_tokens_per_s"],
            }
        )  # fmt: skip

    def paint(figure: FigureBase) -> None:
        for axes, count in zip(style.panels(figure, 2), (1, 8), strict=True):
            mine = [
                {**row, "series": f"{row['drafter']}, {'greedy' if not row['temperature'] else 'T 0.8'}"}
                for row in data
                if row["sequences"] == count and row["drafts"]
            ]
            lines(axes, mine, "drafts", "speedup", "series")
            axes.axhline(1, color=style.INK, linewidth=0.8)
            label(axes, "drafts per step", "decode tokens/s, times those without", f"{count} at a time")

    drafted = [row for row in data if row["drafter"] == "model" and row["temperature"]]
    best = {n: max((row for row in drafted if row["sequences"] == n), key=lambda row: row["speedup"]) for n in (1, 8)}
    alone, many = best[1], best[8]
    title = (
        f"A draft model, sampled at 0.8: at best {alone['speedup']:.2f} × alone ({alone['drafts']} drafts, "
        f"{100 * alone['acceptance']:.0f} % kept), {many['speedup']:.2f} × with 8 sequences"
    )
    sub = (
        f"byte models of this source, 4 layers of 256 ({rows[0]['target_nats_per_byte']:.2f} nats per byte held out) and 1 of 128 "
        f"({rows[0]['draft_nats_per_byte']:.2f})"
    )
    return Finding("S18", title, sub, data, paint)


def kv_error(rows: Rows) -> Finding:
    """S10."""
    data = [{key: row[key] for key in ("model", "kv", "first", "last", "relative_error", "kl_nats", "same_choice")} for row in rows]

    def paint(figure: FigureBase) -> None:
        for axes, model in zip(style.panels(figure, 2), dict.fromkeys(row["model"] for row in data), strict=True):
            mine = [{**row, "percent": 100 * row["relative_error"]} for row in data if row["model"] == model]
            lines(axes, mine, "last", "percent", "kv")
            style.log_counts(axes.xaxis, 14, 1100)
            label(axes, "context, tokens (end of the range)", "error of logits, % (norm)", model)

    trained = [row for row in data if row["model"].startswith("trained")]
    ends = {(row["kv"], row["last"]): row for row in trained}
    last = max(row["last"] for row in trained)
    title = (
        f"KV in int8 moves logits by {100 * ends['int8', last]['relative_error']:.2g} %, in fp8 by "
        f"{100 * ends['fp8', last]['relative_error']:.2g} % at {last} tokens"
    )
    sub = (
        f"trained byte model: same choice at {100 * ends['int8', last]['same_choice']:.1f} % (int8) and "
        f"{100 * ends['fp8', last]['same_choice']:.1f} % (fp8) of positions; one scale per token and head"
    )
    return Finding("S10", title, sub, data, paint)


def main() -> None:
    """Figures and README of one folder."""
    folder = Path(sys.argv[1])
    command = f"python scripts/report_engine.py reports/{folder.name}"
    text = ["# The reference engine, demonstrated", ""]
    for each in (memory, prefix, chunks, batching, formats, speculation, kv_error):
        rows = records(folder, each.__name__)
        environment = next(row for _, row in read_jsonl(folder / f"{each.__name__}.jsonl"))
        found = each(rows)
        basis = f"{environment['cpu']}, one thread, torch {environment['software']['torch']}; CPU seconds; load {environment['load']:.1f}"
        request = Request(None, command=command)
        chart = Chart(f"engine-{each.__name__}", found.title, found.subtitle, tuple(found.rows), found.paint, request, basis)
        save(chart, folder / f"{each.__name__}.svg")
        text += [f"## {found.row}: {found.title}", "", f"{found.subtitle}.", "", f"![{found.title}]({each.__name__}.svg)", ""]
    text += [
        "## S8: graphs against eager", "", "Not measured: no CUDA device was at hand.", "",
        "## How", "",
        "`python scripts/demonstrate_engine.py FOLDER` measures, `python scripts/report_engine.py FOLDER` draws. Times are CPU seconds of",
        "one thread: the machine was shared, and waiting for a core is no property of the engine; memory bandwidth was shared too.", "",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(text), encoding="utf-8")


if __name__ == "__main__":
    main()
