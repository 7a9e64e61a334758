"""The page of a plan: the answer first, then what it rests on, in the order in which people ask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roofline import units
from roofline.cli.render import Bar, Block, Column, Heading, Paragraph, Table, assumed
from roofline.planning.load import missed_alone
from roofline.planning.plan import Cost, Plan

CURVE = (
    Column("batch", "batch", "integer"),
    Column("tpot_s_bound", "TPOT ≥", "time", unit="ms", drop=2),
    Column("tpot_s_expected", "expected", "time", unit="ms"),
    Column("interval", "80 % interval", drop=3, align="right"),
    Column("output_tokens_per_s", "output tok/s", "integer"),
    Column("per_user", "tok/s per user", "number", drop=1),
    Column("note", ""),
)
DATA = tuple(column for column in CURVE if column.key.startswith(("batch", "tpot", "output")))
PHASES = (
    Column("phase", "phase"),
    Column("flops", "FLOPs", "flop", drop=2),
    Column("bytes", "bytes", "bytes", drop=3),
    Column("intensity", "FLOP/B", "number"),
    Column("ridge", "ridge", "number", drop=4),
    Column("limited_by", "limited by"),
    Column("bound_s", "bound", "time"),
    Column("expected_s", "expected", "time"),
    Column("interval", "80 % interval", align="right", drop=1),
)
KNOBS = (
    Column("change", "change"),
    Column("kv_tokens", "KV tokens", "integer", drop=1),
    Column("tokens_gained", "± tokens", align="right"),
    Column("sequences", "sequences", "integer", drop=1),
    Column("sequences_gained", "± sequences", align="right"),
)


def blocks(plan: Plan, *, searched: bool = False) -> list[Block]:
    """Answer, memory, phases, decode over batch, limits, changes, load, assumptions. searched: below the result of a search."""
    lead = "The layout as given, in closed form: " if searched else ""
    page: list[Block] = [Heading(f"{lead}{_headline(plan)}"), *(Paragraph(text) for text in _answer(plan, searched))]
    page += [Heading(_memory_title(plan)), _budget(plan), Paragraph(""), Paragraph(_capacity(plan))]
    page += [Heading(f"The two phases, {_per_gpu(plan)}"), _phase_table(plan)]
    if plan.fits:
        page += [Heading(f"Decode over batch, {plan.load.mean_context:,} tokens of context each"), _marked_curve(plan)]
    page += [Heading("What limits the batch, tightest first"), *(Paragraph(text, bullet=f"{i}.") for i, text in _limits(plan))]
    page += _changes(plan)
    if need := list(_need(plan)):
        page += [Heading("For the load"), *(Paragraph(text, bullet="·") for text in need)]
    return [*page, *assumed(plan.assumptions)]


def curve_table(plan: Plan) -> Table:
    """The decode curve, one row per batch size: times in seconds, tokens per second of the replica."""
    rows = [
        {
            "batch": point.batch,
            **{f"tpot_s_{end}": getattr(point, f"{end}_s") for end in ("bound", "expected", "low", "high")},
            "output_tokens_per_s": point.tokens_per_s,
            "fits": point.fits,
        }
        for point in plan.curve
    ]
    return Table(DATA, rows, more=("tpot_s_low", "tpot_s_high", "fits"))


def _headline(plan: Plan) -> str:
    gpus, longest = plan.setup.parallel.gpus, plan.memory.largest_model_len
    verdict = "fits" if plan.fits else "does not fit"
    bounded = plan.fits and longest < plan.memory.settings.max_model_len
    up_to = f" with max_model_len ≤ {longest:,}" if bounded else ""
    return f"{plan.setup.model.name} {verdict} on {'one' if gpus == 1 else gpus} {plan.setup.hardware.id}{up_to}"


def _answer(plan: Plan, searched: bool) -> Iterator[str]:
    """What was asked, in one or two sentences."""
    memory, load = plan.memory, plan.load
    if not plan.fits:
        yield f"{_size(memory.weight_bytes)} of weights on a GPU with {_size(memory.usable_bytes)} usable: {_missing(plan)}."
        return
    last = plan.curve[-1]
    yield (
        f"It holds {memory.kv_tokens_total:,} tokens of KV: {memory.max_sequences(load.longest):,} sequences of {load.longest:,} tokens. "
        f"A prompt of {load.input_len:,} tokens takes {_time(plan.prefill.time.expected_s)} (TTFT without a queue); "
        f"after that a token takes {_time(plan.curve[0].expected_s)} alone and {_time(last.expected_s)} at batch {last.batch:,}, "
        f"which is {units.format(last.tokens_per_s, 'token_rate')} of output."
    )
    if plan.too_long:
        yield f"{plan.too_long[:1].upper()}{plan.too_long[1:]}."
    if plan.need is not None:
        count = f"{plan.need.gpus:,} GPU" + ("s" if plan.need.gpus > 1 else "")
        cautious = ", cautious near the most that a replica takes; the search above simulates" if searched else ""
        yield f"In closed form the load needs {count}{cautious}."
    elif not plan.meets_load:
        yield f"No number of such replicas meets the service level: {missed_alone(plan.setup, load)}."


def _missing(plan: Plan) -> str:
    """Why a plan does not fit: the load's sequences, the weights, or the longest sequence that the engine must accept."""
    memory = plan.memory
    if not memory.shortfall_bytes:
        return plan.limits[0].text
    missing = f"{_size(memory.shortfall_bytes)} more per GPU are needed"
    if memory.kv_bytes:
        return f"{missing} for one sequence of {memory.required_tokens:,} tokens, the longest that max_model_len allows"
    return missing


def _memory_title(plan: Plan) -> str:
    memory = plan.memory
    return f"Memory of one GPU: {_size(memory.total_bytes)} ({memory.engine.name} with memory fraction {memory.settings.utilization:.3g})"


def _budget(plan: Plan) -> Bar:
    memory = plan.memory
    parts = [
        ("weights", memory.weight_bytes, "blue"),
        ("activations (peak)", memory.activation_bytes, "magenta"),
        ("runtime", memory.runtime_bytes, "yellow"),
        ("KV cache", memory.kv_bytes, "green"),
    ]
    rest = memory.total_bytes - sum(value for _, value, _ in parts)
    return Bar([*parts, ("not used", max(0.0, rest), "dim")], memory.total_bytes, "memory")


def _capacity(plan: Plan) -> str:
    memory = plan.memory
    each = f"KV takes {_size(memory.kv_bytes_per_token)} per token"
    if not memory.largest_model_len:
        return f"{each}; nothing is left for it."
    low, high = memory.kv_tokens_range
    text = f"{each}: {memory.kv_tokens:,} tokens ({low:,} to {high:,}, since activations and runtime are estimates)."
    if len(memory.pool.shares) > 1:
        text += f" {_unlike_layers(plan)}"
    longest, wanted = memory.largest_model_len, memory.settings.max_model_len
    if longest < wanted:
        return f"{text} The longest sequence that fits has {longest:,} tokens: start with --max-model-len {longest} or less."
    return f"{text} A sequence of {wanted:,} tokens, the longest allowed, fits {_times(memory.max_sequences())}."


def _unlike_layers(plan: Plan) -> str:
    """What a sequence takes where states, windows or large blocks make it no multiple of its length, and other counts of tokens."""
    memory, length = plan.memory, plan.load.longest
    full, exact = memory.kv_tokens_bounds
    fixed = f"{_size(memory.pool.fixed_bytes)} whatever its length and " if memory.pool.fixed_bytes else ""
    return (
        f"Layers cache differently: a long sequence takes {fixed}{_size(memory.pool.bytes_per_token)} per token, "
        f"one of {length:,} tokens takes {_size(memory.pool.request_bytes(length))}. "
        f"With every layer charged in full the cache is {full:,} tokens, with windows honoured exactly {exact:,}; "
        f"the engine's log would print {memory.printed_tokens:,}."
    )


def _per_gpu(plan: Plan) -> str:
    return "per GPU" if plan.setup.parallel.gpus > 1 else "on the GPU"


def _phase_table(plan: Plan) -> Table:
    rows = []
    for phase in (plan.prefill, plan.decode):
        what = f"{phase.new_tokens:,} tokens" if phase.name == "prefill" else f"batch {phase.batch:,}"
        row = {key: getattr(phase, key) for key in ("flops", "bytes", "intensity", "ridge", "limited_by")}
        times = {"bound_s": phase.time.bound_s, "expected_s": phase.time.expected_s}
        rows.append({"phase": f"{phase.name}, {what}", "interval": f"{_between(phase.time.low_s, phase.time.high_s)} ms", **row, **times})
    return Table(PHASES, rows)


def _marked_curve(plan: Plan) -> Table:
    """The curve with its turning points named beside the first batch that reaches them."""
    rows: list[dict[str, Any]] = [
        {
            **row,
            "interval": _between(row["tpot_s_low"], row["tpot_s_high"]),
            "per_user": row["output_tokens_per_s"] / row["batch"],
            "notes": [],
        }
        for row in curve_table(plan).rows
    ]
    for batch, name in ((plan.shape.knee, "knee"), (plan.shape.eighty, "80 %")):
        reached = next((row for row in rows if batch and row["batch"] >= batch), None)
        if reached is not None:
            reached["notes"].append(name if reached["batch"] == batch else f"{name} from {batch:,}")
    rows[-1]["notes"].append("the most that fits")
    for row in rows:
        row["note"] = ", ".join(row["notes"])
    return Table(CURVE, rows, {i: "cyan" for i, row in enumerate(rows) if row["notes"]})


def _limits(plan: Plan) -> Iterator[tuple[int, str]]:
    return enumerate((f"{limit.text[:1].upper()}{limit.text[1:]}." for limit in plan.limits), 1)


def _changes(plan: Plan) -> list[Block]:
    """What each knob buys; when nothing fits, only the changes that make it fit."""
    gains = [gain for gain in plan.gains if gain.fits and gain.sequences >= 1]
    rows = [
        {
            "change": gain.change,
            "kv_tokens": gain.kv_tokens,
            "tokens_gained": f"{gain.kv_tokens_gained:+,}",
            "sequences": gain.sequences,
            "sequences_gained": f"{gain.sequences_gained:+,}",
        }
        for gain in gains
    ]
    title = "What each change buys" if plan.fits else "What would make it fit"
    if longest := 0 if plan.fits else plan.memory.largest_model_len:
        shorter = Paragraph(f"Sequences of at most {longest:,} tokens fit as it is.")
        return [Heading(title), shorter, *([Table(KNOBS, rows)] if rows else [])]
    if not rows:
        return [Heading(title), Paragraph("No single change; more GPUs and smaller weights together, or a smaller model.")]
    return [Heading(title), Table(KNOBS, rows)]


def _need(plan: Plan) -> Iterator[str]:
    """GPUs, operating point and cost of the stated load."""
    need = plan.need
    if need is None:
        return
    point = need.point
    each = f"{plan.setup.parallel.gpus} GPU" + ("s" if plan.setup.parallel.gpus > 1 else "")
    yield f"{need.replicas:,} replica{'s' if need.replicas > 1 else ''} of {each}; what keeps one from taking more: {need.binding}."
    yield (
        f"{units.significant(need.request_rate)} requests per second, {units.significant(need.concurrency)} in flight; "
        f"each replica runs batch {point.batch:,}: TTFT {_time(point.ttft_s)} without a queue, "
        f"TPOT {_time(point.tpot_s)} with the prefills of others in between."
    )
    if plan.cost is not None:
        yield cost_line(plan.cost)


def cost_line(cost: Cost) -> str:
    """Dollars an hour with the price they come from, its source and date, and dollars per million output tokens."""
    price, per_million = cost.price, units.significant(cost.usd_per_million_output_tokens)
    dated = f"{price.provider}, {price.terms}" + (f", {price.as_of}" if price.as_of else "")
    hourly = f"{cost.usd_per_hour:,.2f} $/h at {units.plain(price.usd_per_gpu_hour)} $ per GPU and hour ({dated})"
    return f"{hourly}: {per_million} $ per million output tokens."


def _size(value: float) -> str:
    return units.format(value, "bytes", binary=True)


def _time(value: Any) -> str:
    return units.format(float(value), "time")


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _between(low_s: Any, high_s: Any) -> str:
    """An interval of times in ms, without the unit."""
    return f"{units.significant(1e3 * float(low_s))}–{units.significant(1e3 * float(high_s))}"
