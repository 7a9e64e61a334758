"""The report of a validation: verdicts, health, every row, figures, and how it was done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from roofline import __version__, units
from roofline.charts import validation as figures
from roofline.charts.chart import Chart
from roofline.report.document import Answer, Block, Code, Column, Document, Facts, Picture, Section, Text, grid
from roofline.validation.compare import Validation
from roofline.validation.predictions import THIS_RUN
from roofline.validation.verdicts import GroupVerdict


def tell(found: Validation, command: str = "") -> Document:
    """The document of a validation. command: what regenerates it."""
    run = found.run
    command = command or f"roofline validate {run['model']} --device {found.facts.kind} --budget {run['budget_s']:.0f}s"
    return Document(
        title=f"{run['model']} on {run['device']}: theory against the machine",
        subtitle=f"{run['dtype']} · {units.counted(run['threads'], 'thread')} · {_clock(found)} · roofline {__version__}",
        verdict=_verdict(found),
        answers=[_answer(group) for group in found.groups],
        sections=[
            _health(found),
            _groups(found),
            *_figures(found, command),
            _rows(found),
            _machine(found),
            _method(found),
            Section("Run it again", [Code(command)]),
        ],
        footer=f"roofline {__version__} · {run['device']} · environment {found.environment.id}",
        answers_are="median error",
    )


def charts(found: Validation, command: str) -> list[Chart]:
    """The figures for which there are records."""
    rows = [row.to_json() for row in found.rows]
    device = str(found.run["device"])
    made = [figures.scatter(rows, device, command)] if rows else []
    if points := _points(found):
        made.append(figures.joined(points, found.facts.gemm, found.facts.bandwidth or 1.0, device, command))
    if steps := _steps(found):
        made.append(figures.steps(steps, device, command))
    if served := _served(found):
        made.append(figures.trace(served, device, command))
    return made


def _figures(found: Validation, command: str) -> list[Section]:
    return [Section("Figures", [Picture(chart) for chart in charts(found, command)])] if found.rows else []


def _points(found: Validation) -> list[dict[str, object]]:
    known = {str(m.notes.get("case")): m for m in found.measurements if m.notes.get("flops")}
    wanted = {m.dtype for m in known.values()} & set(found.facts.gemm)
    return [
        {
            "group": row.group, "target": row.target, "flops": m.notes["flops"], "intensity": m.notes["flops"] / m.notes["bytes"],
            "measured_s": row.measured.median_s, "expected_s": row.predictions[row.judged].expected_s,
        }
        for row in found.rows
        if (m := known.get(row.target)) is not None and wanted
    ]  # fmt: skip


def _steps(found: Validation) -> list[dict[str, object]]:
    made: list[dict[str, object]] = []
    for row in found.rows:
        p = row.predictions[row.judged]
        if p.parts:
            engine = p.parts.get("engine", 0.0)
            made.append({
                "target": row.target, "bound_s": p.bound_s, "kernels_s": p.expected_s - p.bound_s - engine, "engine_s": engine,
                "measured_s": row.measured.median_s, "measured_low_s": row.measured.low_s, "measured_high_s": row.measured.high_s,
            })  # fmt: skip
    return made


def _served(found: Validation) -> list[dict[str, object]]:
    """Each request beside its simulation."""
    told = {(row["pass"], row["index"]): row for row in found.simulated if (row["basis"], row["edge"]) == (THIS_RUN, "expected")}
    rows: list[dict[str, object]] = []
    begins = 0.0  # of a section: one after the other
    for section in dict.fromkeys(r["pass"] for r in found.requests):
        pairs = [(r, told[section, r["index"]]) for r in found.requests if r["pass"] == section and (section, r["index"]) in told]
        rows += [
            {"index": len(rows) + place, "start_s": begins + r["start_s"], "output_tokens": r["output_tokens"]}
            | {key: begins + r[key] for key in ("first_token_s", "last_token_s")}
            | {f"simulated_{key}": begins + s[key] for key in ("first_token_s", "last_token_s")}
            for place, (r, s) in enumerate(pairs)
        ]
        begins += max((each["last_token_s"] for pair in pairs for each in pair), default=0.0)
    return rows


def _clock(found: Validation) -> str:
    return "CPU seconds" if found.facts.cpu_time else "wall clock"


def _verdict(found: Validation) -> str:
    trust = "" if found.trustworthy else " The run cannot be trusted: see the health of the device."
    return f"{found.verdict}.{trust}"


def _answer(group: GroupVerdict) -> Answer:
    error = group.median_error.get(THIS_RUN)
    aim = f", aim ≤ {100 * group.target:.0f} %" if group.target else ""
    value = group.word if error is None else f"{100 * error:.1f} %"
    return Answer(group.group, value, f"{group.word}: median error of {units.counted(group.rows, 'row')}{aim}")


def _health(found: Validation) -> Section:
    f = found.facts
    facts = [("memory", units.format(f.bandwidth, "bandwidth") if f.bandwidth else "not measured")]
    facts += [(f"{dtype} products", units.format(rate, "flop_rate")) for dtype, rate in sorted(f.gemm.items())]
    facts += [("a call or launch", units.format(f.launch_s, "time") if f.launch_s else "not measured")]
    facts += [
        ("drift", f"{f.drift:.0%} between the slowest and the fastest pass" + _moved(f.moved)),
        ("spread", f"half of the rows are known within {f.spread:.0%} or less"),
    ]
    facts += [("load", f"{f.load:.1f}")] if f.load is not None else []
    facts += [("other processes", f"{f.others:.2f} cores on average while we measured")] if f.others is not None else []
    facts += [("GPU", "not measured: none was at hand")] if f.kind == "cpu" else []
    lines = [f"{each.severity}: {each.what}. Next: {each.check}." for each in found.findings] or ["Nothing unusual was seen."]
    return Section("Health of the device", [Facts(facts), Text(lines, bullets=True)])


def _moved(moved: Mapping[str, float]) -> str:
    """How much changed under predictions."""
    shares = ", ".join(f"{stage} {share:.0%}" for stage, share in moved.items())
    return f"; between constants and what they predict, half of the passes: {shares}" if shares else ""


def _groups(found: Validation) -> Section:
    columns = [
        Column("group", "group"), Column("verdict", "verdict"), Column("rows", "rows", "integer"), Column("pass", "pass", "integer"),
        Column("fail", "fail", "integer"), Column("ambiguous", "ambiguous", "integer"),
        Column("this run", "this_run_median_error", "percent"),
        Column("shipped", "shipped_median_error", "percent"), Column("uncalibrated", "uncalibrated_median_error", "percent"),
        Column("aim", "target", "percent"),
    ]  # fmt: skip
    explained = [f"{basis['name']}: {basis['source']}." for basis in found.run["bases"]]
    table = grid(columns, [group.to_json() for group in found.groups], "Median error of the predictions, by constants")
    return Section("Predicted against measured", [table, Text(explained, bullets=True)])


def _rows(found: Validation) -> Section:
    columns = [
        Column("group", "group"), Column("what", "label"), Column("verdict", "verdict"), Column("measured", "measured_s", "time"),
        Column("n", "samples", "integer"), Column("expected", "expected_s", "time"), Column("low", "low_s", "time"),
        Column("high", "high_s", "time"),
        Column("error", "this_run_error", "percent"), Column("what explains it", "attribution"),
    ]  # fmt: skip
    return Section("Rows", [grid(columns, [row.to_json() for row in found.rows])])


def _machine(found: Validation) -> Section:
    e = found.environment
    software = ", ".join(f"{name} {version}" for name, version in e.software.items())
    pairs = [
        ("system", e.system),
        ("CPU", f"{e.cpu}, {e.cores} cores"),
        ("Python", e.python),
        ("software", software),
        ("environment", e.id),
    ]
    return Section("Machine", [Facts(pairs)])


def _method(found: Validation) -> Section:
    stages = ", ".join(_ranges(found.stages)) or "none"
    lines = [
        f"Predictions were on record, with their hash, before the first sample of: {stages}.",
        f"{len(found.run['fitted'])} shapes and steps were offered for constants, {len(found.run['judged'])} others judged.",
        "PASS: the median lies in the predicted 80 % interval. FAIL: prediction and measurement do not touch, or the bound is beaten.",
        f"{found.run['seconds']:.0f} s of a budget of {found.run['budget_s']:.0f} s.",
    ]
    blocks: list[Block] = [Text(lines, bullets=True)]
    if found.run["left_out"]:
        blocks.append(Text([f"Left out: {what}" for what in found.run["left_out"]], bullets=True))
    return Section("Method", blocks)


def _ranges(stages: Sequence[str]) -> list[str]:
    """Stages that differ by a number told as one: kernels 1 to 5."""
    found: dict[str, list[str]] = {}
    for stage in stages:
        name, _, number = stage.rpartition(" ")
        found.setdefault(name or number, []).append(number if name else "")
    return [
        " ".join([name, numbers[0]] if numbers[0] else [name]) + (f" to {numbers[-1]}" if len(numbers) > 1 else "")
        for name, numbers in found.items()
    ]
