"""Sections of a plan that are asked for: the search for the fewest GPUs, and what changes gain by phase."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from roofline.cli.plan_page import cost_line
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.phases import Setup
from roofline.planning.document import cost_data
from roofline.planning.load import Load
from roofline.planning.plan import Cost
from roofline.planning.search import Search, Trial
from roofline.planning.speedups import SpeculationCurve, parallel_gains, quantisation_gains, speculation_curve
from roofline.profiles.hardware import Price

TRIALS = (
    Column("layout", "layout"),
    Column("gpus", "GPUs", "integer"),
    Column("precision", "weights / KV", drop=2),
    Column("max_num_batched_tokens", "tokens/step", "integer", drop=1),
    Column("attainment", "in level", "percent"),
    Column("ttft_s", "TTFT", "time"),
    Column("tpot_s", "TPOT", "time"),
    Column("output_tokens_per_s", "output tok/s", "integer"),
    Column("waited_for", "waited for", drop=1),
)
GAINS = (
    Column("change", "change"),
    Column("prefill", "prefill ×", "number"),
    Column("decode_small", "decode, batch 1 ×", "number"),
    Column("decode_large", "decode, batch 64 ×", "number"),
    Column("kv_tokens", "KV tokens ×", "number"),
)
DRAFTS = (
    Column("batch", "batch", "integer"),
    Column("step_s", "step", "time"),
    Column("verify_s", "with check", "time"),
    Column("draft_s", "drafting", "time"),
    Column("speedup", "speed-up ×", "number"),
    Column("needed", "tokens/step to break even", "number"),
)


def search_data(found: Search, price: Price | None) -> dict[str, Any]:
    """The key `search` of a plan's JSON."""
    cost = _cost(found, price)
    return {
        "best": None if found.best is None else _trial_data(found.best),
        "trials": [_trial_data(trial) for trial in found.trials],
        "gpus_range": found.gpus_range,
        "binding": found.binding,
        "next": found.next_,
        "why_not": list(found.why_not),
        "cost": None if cost is None else cost_data(cost),
    }


def _cost(found: Search, price: Price | None) -> Cost | None:
    """What the best layout costs; None without a price or a layout that meets the load."""
    if price is None or found.best is None or not found.best.output_tokens_per_s:
        return None
    hourly = found.best.gpus * price.usd_per_gpu_hour
    return Cost(hourly, hourly / (3600 * found.best.output_tokens_per_s) * 1e6, price)


def _trial_data(trial: Trial) -> dict[str, Any]:
    return {"layout": trial.layout, **asdict(trial)}


def search_blocks(found: Search, price: Price | None) -> list[Block]:
    """The answer and its cost, the configurations that were simulated, and why the others cannot."""
    page: list[Block] = [Heading("The fewest GPUs for the load, simulated")]
    best = found.best
    if best is None:
        none = "No layout meets the load:" if found.trials else "No layout meets the load: it takes more GPUs than any that is tried has."
        page.append(Paragraph(none))
    else:
        mode = f"{best.prefill} prefill and {best.replicas - best.prefill} decode servers" if best.prefill else "mixed servers"
        text = f"{best.gpus} GPU{'s' if best.gpus > 1 else ''}: {best.layout}, {mode}, {best.max_num_batched_tokens:,} tokens per step."
        if found.gpus_range is not None:
            fewest, most = found.gpus_range
            need = "as many" if fewest == most == best.gpus else f"{fewest} to {most} GPUs"
            text += f" With step times at the ends of their interval: {need}."
        page += [Paragraph(text), Paragraph(f"What binds a server first: {found.binding}; next: {found.next_}.")]
        if (cost := _cost(found, price)) is not None:
            page.append(Paragraph(cost_line(cost)))
    if found.trials:
        rows = [{**asdict(trial), "layout": trial.layout, "precision": _precision(trial)} for trial in found.trials]
        page += [Paragraph(""), Table(TRIALS, rows, {index: "cyan" for index, trial in enumerate(found.trials) if trial is best})]
    return page + [Paragraph(f"{reason}.", bullet="·") for reason in found.why_not]


def _precision(trial: Trial) -> str:
    return f"{trial.precision.weights or 'as shipped'} / {trial.precision.kv or 'as shipped'}"


def speedups(setup: Setup, load: Load, drafts: tuple[int, float]) -> tuple[dict[str, Any], list[Block]]:
    """(the key `speedups` of the JSON, the sections of the page)."""
    quantised, sharded = quantisation_gains(setup, load), parallel_gains(setup, load)
    curve = speculation_curve(setup, load, *drafts)
    points = [{**asdict(point), "speedup": point.speedup, "needed": point.break_even_acceptance_tokens} for point in curve.points]
    data = {
        "formats": [asdict(gain) for gain in quantised],
        "tensor_parallel": [asdict(gain) for gain in sharded],
        "speculation": {"tokens": curve.tokens, "acceptance": curve.acceptance, "points": points, "largest_batch_that_gains": curve.limit,
                        "kv_tokens_lost": curve.kv_tokens_lost},
    }  # fmt: skip
    page: list[Block] = [
        Heading("What number formats gain, by phase (1: nothing)"), Table(GAINS, [asdict(gain) for gain in quantised]),
        Heading("What tensor parallelism gains, by phase"), Table(GAINS, [asdict(gain) for gain in sharded]),
        Heading(f"Speculation: {curve.tokens} drafts per step, each right {100 * curve.acceptance:g} % of the time"),
        Table(DRAFTS, points), Paragraph(_break_even(curve)),
    ]  # fmt: skip
    return data, page


def _break_even(curve: SpeculationCurve) -> str:
    memory = f"Drafting takes {curve.kv_tokens_lost:,} tokens of the KV pool: weights, its own KV, the logits of the drafts."
    if curve.limit is None:
        return f"It gains at no batch. {memory}"
    if curve.limit >= curve.most:
        return f"It gains up to batch {curve.most:,} at least. {memory}"
    return f"It gains up to batch {curve.limit:,}; beyond that the check costs more than it saves. {memory}"
