"""`roofline demo`: a server, its knee, four faults, and what `diagnose` makes of them."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.diagnosis import demonstration
from roofline.diagnosis.demonstration import Finding
from roofline.errors import MissingDependencyError

app = new_app()

RUNGS = (
    Column("concurrency", "streams", "integer"),
    Column("output_tokens_per_s", "tokens/s", "number"),
    Column("ttft_p50_s", "TTFT p50", "time"),
    Column("tpot_p50_s", "TPOT p50", "time"),
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
    outcome, findings = demonstration.demonstrate(window, lambda text: print(text, file=sys.stderr, flush=True))
    told = outcome.to_json()
    rungs = [
        {
            "concurrency": stage["concurrency"],
            "output_tokens_per_s": stage["output_tokens_per_s"],
            "ttft_p50_s": stage["ttft_s"]["p50"],
            "tpot_p50_s": stage["tpot_s"]["p50"],
        }
        for stage in told["stages"]
    ]
    rows = [_row(finding) for finding in findings]
    data = {"model": demonstration.MODEL, "ladder": rungs, "knee": told["knee"], "cases": rows}
    code = 0 if all(finding.right for finding in findings) else 1
    table = Table(FINDINGS, rows, marks={at: "" if finding.right else "red" for at, finding in enumerate(findings)})
    blocks = [*_knee(rungs, told["knee"]), Heading("What /metrics gave away"), table, *_evidence(findings)]
    emit(Answer("demo", {"window_s": window}, data, table, blocks, (), code), as_json=as_json, as_csv=as_csv, path=output)


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
        else (f"The knee is at {knee['concurrency']:.2g} streams: with more of them all wait longer, and hardly more tokens come.")
    )
    return [Heading(f"{demonstration.MODEL} on this CPU"), Table(RUNGS, rungs), Paragraph(text)]


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
