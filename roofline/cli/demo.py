"""`roofline demo`: a server, its knee, four faults, and what `diagnose` makes of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli import options
from roofline.cli.output import Answer, check_target, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.diagnosis import demonstration
from roofline.diagnosis.demonstration import Finding
from roofline.errors import MissingDependencyError
from roofline.profiles import detect

app = new_app()

RUNGS = (
    Column("concurrency", "streams", "integer"),
    Column("output_tokens_per_s", "tokens/s", "number"),
    Column("ttft_p50_s", "TTFT p50", "time"),
    Column("ttft_p99_s", "p99", "time", drop=1),
    Column("tpot_p50_s", "TPOT p50", "time"),
    Column("tpot_p99_s", "p99", "time", drop=1),
)
FINDINGS = (
    Column("case", "server"),
    Column("options", "options"),
    Column("expected", "fault"),
    Column("label", "diagnosis"),
    Column("confidence", "confidence", "percent"),
)


@app.command()
def demo(
    window: Annotated[float, typer.Option(min=1, max=60, metavar="S", help="Between the two readings of /metrics in each case.")] = 5.0,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also a figure of the knee and of each fault: .pdf, .png or .svg.")
    ] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Serves a tiny model on this CPU, finds its knee, breaks it in four ways, and diagnoses each from /metrics alone.

    About two minutes on two cores. Exit code 1 if a diagnosis is wrong.
    """
    for package, extra in (("torch", "gpu,serve"), ("aiohttp", "gpu,serve"), ("prometheus_client", "gpu,serve")):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(package, extra, "demo")
    check_target(output)
    if chart is not None:
        _check_chart(chart)
    outcome, findings = demonstration.demonstrate(window, lambda text: print(text, file=sys.stderr, flush=True))
    answer = answer_of(outcome.to_json(), findings, window)
    if chart is not None:
        _draw(answer.data, chart)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


def answer_of(told: dict[str, Any], findings: Sequence[Finding], window_s: float) -> Answer:
    """The ladder, its knee, and the cases. told: Outcome.to_json of the ladder."""
    rungs = [
        {
            "concurrency": stage["concurrency"],
            "output_tokens_per_s": stage["output_tokens_per_s"],
            **{f"{name}_{key}_s": stage[f"{name}_s"][key] for name in ("ttft", "tpot") for key in ("p50", "p99")},
        }
        for stage in told["stages"]
    ]
    rows = [_row(finding) for finding in findings]
    data = {
        "model": demonstration.MODEL,
        "device": detect.cpu().name,
        "started": told["started"],
        "ladder": rungs,
        "knee": told["knee"],
        "cases": rows,
    }
    code = 0 if all(finding.right for finding in findings) else 1
    table = Table(FINDINGS, rows, marks={at: "" if finding.right else "red" for at, finding in enumerate(findings)})
    blocks = [*_knee(rungs, told["knee"]), Heading("What /metrics gave away"), table, *_evidence(findings)]
    return Answer("demo", {"window_s": window_s}, data, table, blocks, (), code)


def _check_chart(path: Path) -> None:
    """Refuses a figure that could not be written, before two minutes of work."""
    from roofline.charts.save import check_place, format_of

    format_of(path)
    check_place(path)


def _draw(data: Mapping[str, Any], path: Path) -> None:
    from roofline.charts.demonstration import demonstration as figure
    from roofline.charts.save import save

    save(figure(data), path)


def _row(finding: Finding) -> dict[str, Any]:
    first = finding.found.first
    return {
        "case": finding.case.title,
        "options": " ".join(finding.case.server) or "–",
        "expected": finding.case.label,
        "label": finding.label,
        "confidence": first.confidence,
        "verdict": finding.found.verdict,
        "right": finding.right,
        "evidence_for": [each.text for each in first.supporting],
        "knob": first.rule.knob,
        "observations": {fact.name: fact.value for fact in finding.seen},
    }


def _knee(rungs: Sequence[dict[str, Any]], knee: dict[str, Any]) -> list[Block]:
    text = (
        f"No knee: {knee['reason']}."
        if knee["concurrency"] is None
        else f"The knee is at {knee['concurrency']:.2g} streams: {_beyond(rungs, knee['concurrency'])}."
    )
    return [Heading(f"{demonstration.MODEL} on this CPU"), Table(RUNGS, rungs), Paragraph(text)]


def _beyond(rungs: Sequence[dict[str, Any]], knee: float) -> str:
    """What the most streams bring over those nearest to the knee, and what it costs."""
    *others, last = rungs
    near = min(others, key=lambda rung: abs(rung["concurrency"] - knee))
    tokens, wait = (last[key] / near[key] for key in ("output_tokens_per_s", "ttft_p50_s"))
    return f"{last['concurrency']} get {tokens:.2g} × the tokens of {near['concurrency']}, and wait {wait:.2g} × as long for the first one"


def _evidence(findings: Sequence[Finding]) -> list[Block]:
    blocks: list[Block] = []
    for finding in findings:
        first = finding.found.first
        blocks.append(Heading(f"{finding.case.title}: {finding.case.about}"))
        blocks += [Paragraph(each.text, bullet="+") for each in first.supporting[:3]]
        suspect = ", first suspect: not enough evidence for more" if finding.found.verdict == "unclear" else ""
        blocks.append(Paragraph(f"{finding.label}, {first.confidence:.0%}: {first.rule.title}{suspect}"))
        if finding.case.label != "NONE":
            blocks.append(Paragraph(f"knob: {first.rule.knob}", style="dim"))
    return blocks
