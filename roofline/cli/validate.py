"""`roofline validate`: theory against this machine, or against a table of measurements, with verdicts."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from roofline import units
from roofline.cli import options
from roofline.cli.output import Answer, emit, write_atomically
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.errors import InputError
from roofline.profiles.catalog import load_hardware, load_model

if TYPE_CHECKING:
    from roofline.validation.compare import Validation

app = new_app()
GROUPS = (
    Column("group", "group"),
    Column("verdict", "verdict"),
    Column("rows", "rows", "integer"),
    Column("pass", "pass", "integer", drop=2),
    Column("fail", "fail", "integer", drop=2),
    Column("ambiguous", "ambiguous", "integer", drop=2),
    Column("this_run_median_error", "this run", "percent"),
    Column("shipped_median_error", "shipped", "percent", drop=1),
    Column("uncalibrated_median_error", "uncalibrated", "percent", drop=1),
)
ROWS = (
    Column("group", "group"),
    Column("label", "what", most=56),
    Column("verdict", "verdict"),
    Column("measured_s", "measured", "time"),
    Column("expected_s", "expected", "time"),
    Column("low_s", "low", "time", drop=2),
    Column("high_s", "high", "time", drop=2),
    Column("attribution", "what explains it", drop=1, most=48),
)
MORE = (
    "target",
    "judged",
    "bound_s",
    "measured_low_s",
    "measured_high_s",
    "samples",
    "why",
    "this_run_error",
    "shipped_error",
    "uncalibrated_error",
)
STYLE = {"PASS": "green", "FAIL": "red", "AMBIGUOUS": "yellow"}


def _seconds(text: str) -> str:
    """Checks a duration ("240s", "5min"); a plain number is seconds."""
    try:
        units.parse(text if re.search(r"[a-z]", text) else f"{text}s", "time")
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    return text


@app.command()
def validate(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="A model that the reference engine runs; none with --measurements.")
    ] = None,
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if torch sees one.")] = "auto",
    budget: Annotated[str, typer.Option(metavar="TIME", callback=_seconds, help="For everything, start-up included: 300s, 5min.")] = "300s",
    hardware: Annotated[
        str | None, typer.Option("--hardware", "-H", metavar="HW", help="The profile to hold the device against (default: detected).")
    ] = None,
    measurements: Annotated[
        Path | None, typer.Option(metavar="TABLE", help="Judge a table of kernels measured elsewhere (CSV, parquet, ncu CSV).")
    ] = None,
    loadtest: Annotated[
        Path | None, typer.Option(metavar="RESULT", help="Judge a plan or simulation (--against) by a result of `loadtest --json`.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --loadtest: output of `plan --json` or `simulate --json`.")
    ] = None,
    split: Annotated[str, typer.Option(metavar="NAME", help="With --measurements: only rows whose column split has this word.")] = "",
    operands: Annotated[Literal["hot", "cold"], typer.Option(help="With --measurements: where operands lay.")] = "hot",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of a kernel (default: as torch chooses).")] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Time CPU seconds instead of the wall clock: on a shared machine, with --threads 1.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Order of cases, random weights, the trace.")] = 0,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Folder for records, report and figures (default: validation).")
    ] = None,
) -> None:
    """Predicts first, then measures this device and the model on it, and says PASS, FAIL or AMBIGUOUS for each row.

    Microbenchmarks of the roofs and of the model's own shapes, steps of the reference engine, a trace of 100 requests against the
    simulator, and the health of the device. Exit code 1: FAIL; 4: the run cannot be trusted (load, throttling, spread).
    """
    if measurements is not None:
        if model is not None:
            raise InputError("give a MODEL to measure or --measurements TABLE to judge, not both")
        emit(_table_answer(measurements, hardware, split, operands, output), as_json=as_json, as_csv=as_csv)
        return
    if loadtest is not None or against is not None:
        if loadtest is None or against is None or model is not None:
            raise InputError("--loadtest RESULT and --against FILE go together, without a MODEL")
        emit(_load_answer(loadtest, against, output), as_json=as_json, as_csv=as_csv)
        return
    if model is None:
        raise InputError("name a MODEL to run on this machine, like tiny-llama-110m, or give --measurements TABLE or --loadtest RESULT")
    budget_s = units.parse(budget if re.search(r"[a-z]", budget) else f"{budget}s", "time")
    found, folder = _measure(model, device, budget_s, hardware, threads, cpu_time, seed, output or Path("validation"))
    inputs = {
        "model": model, "device": found.run["device"], "budget_s": budget_s, "threads": found.run["threads"], "cpu_time": cpu_time,
        "seed": seed, "output": str(folder),
    }  # fmt: skip
    _write_report(found, folder)
    emit(_answer(found, inputs, folder), as_json=as_json, as_csv=as_csv)


def _measure(
    model: str, device: str, budget_s: float, hardware: str | None, threads: int | None, cpu_time: bool, seed: int, folder: Path
) -> tuple[Validation, Path]:
    from roofline.cli.bench import _process_start, require_torch

    begun = _process_start()
    spec = load_model(model)
    profile = load_hardware(hardware) if hardware else None
    require_torch("roofline validate")
    from microbench.cases.model import in_one_type
    from microbench.device import open_device
    from roofline.validation.run import check_budget
    from roofline.validation.run import validate as run
    from roofline.validation.session import DTYPE, Session

    check_budget(budget_s)
    here = open_device(device, threads, profile, cpu_time=cpu_time)
    _make(folder)
    one_type = in_one_type(spec, DTYPE[here.kind])
    _say(f"{here.id}: validation of {spec.name} in {DTYPE[here.kind]}, at most {units.format(budget_s, 'time')}; records in {folder}")
    session = Session(one_type, here, profile or here.profile, folder, begun + budget_s, budget_s, seed, lambda text: _since(begun, text))
    try:
        found = run(session)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; the records end there", str(error.filename or folder)) from None
    except KeyboardInterrupt:
        _say(f"interrupted before anything was judged: records in {folder}; the same command starts again")
        raise typer.Exit(130) from None
    if session.interrupted:
        _say("interrupted: judged is what was measured; the same command starts again, since a validation is of one state of the machine")
    return found, folder


def _make(folder: Path) -> None:
    """The folder, before anything is measured. Raises InputError where it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"-o {folder}: the folder cannot be made: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"-o {folder}: the folder cannot be written to: permission denied")


def _write_report(found: Validation, folder: Path) -> None:
    from roofline.report import write
    from roofline.report.validation import tell

    document = tell(found)
    for name in ("README.md", "report.html", "report.pdf"):
        write(document, folder / name)


def _answer(found: Validation, inputs: dict[str, Any], folder: Path) -> Answer:
    groups = [group.to_json() for group in found.groups]
    rows = [row.to_json() for row in found.rows]
    table = Table(ROWS, rows, marks={i: STYLE[row["verdict"]] for i, row in enumerate(rows)}, more=MORE)
    word = found.verdict if found.trustworthy else f"{found.verdict}, but this run cannot be trusted"
    blocks: list[Block] = [
        Heading(f"{found.run['model']} on {found.run['device']}: {word}"),
        Table(GROUPS, groups, marks={i: STYLE[group["verdict"]] for i, group in enumerate(groups)}),
        Heading("Health of the device"),
        *_health(found),
        Heading("Rows"),
        table,
        *(Paragraph(text, bullet="!", style="yellow") for text in found.run["left_out"]),
        Paragraph(f"Report, figures and records: {folder}"),
    ]
    assumptions = [f"{basis['name']}: {basis['source']}" for basis in found.run["bases"]]
    assumptions.append(
        "PASS: the median lies in the predicted 80 % interval; FAIL: the intervals of prediction and measurement do not touch"
    )
    blocks += [Paragraph(text, bullet="·", style="dim") for text in assumptions]
    return Answer("validate", inputs, found.to_json() | {"folder": str(folder)}, table, blocks, assumptions, exit_code=found.exit_code)


def _health(found: Validation) -> list[Block]:
    colour = {"untrusted": "red", "fault": "red", "note": "dim"}
    lines: list[Block] = [
        Paragraph(f"{f.what}. Next: {f.check}", bullet="!" if f.severity != "note" else "·", style=colour[f.severity])
        for f in found.findings
    ]
    return lines or [Paragraph("Nothing unusual was seen.")]


def _table_answer(path: Path, hardware: str | None, split: str, operands: str, output: Path | None) -> Answer:
    from roofline.validation.tables import check_table

    found = check_table(path, hardware=hardware or "", split=split, operands=operands)
    columns: tuple[Column, ...] = (
        Column("op", "kernel"), Column("verdict", "verdict"), Column("rows", "rows", "integer"),
    )  # fmt: skip
    if any("of_bandwidth" in group for group in found.groups):
        columns += (Column("of_bandwidth", "of the memory roof", "percent"), Column("unpredicted", "no DRAM bytes", "percent", drop=1))
    else:
        columns += (
            Column("median_error", "median", "percent"), Column("p90_error", "p90", "percent"), Column("bias", "bias", "percent"),
            Column("coverage", "in the interval", "percent"), Column("unpredicted", "not predicted", "percent", drop=1),
        )  # fmt: skip
    columns += (Column("violations", "beat a roof", "integer"),)
    table = Table(columns, found.groups, marks={i: STYLE[group["verdict"]] for i, group in enumerate(found.groups)})
    warned = [Paragraph(text, bullet="!", style="yellow") for text in found.warnings]
    blocks: list[Block] = [Heading(f"{path.name}: {found.verdict}"), table, *warned]
    if output is not None:
        _make(output)
        write_atomically(output / "rows.csv", found.rows_csv())
        blocks.append(Paragraph(f"Each row with its prediction and verdict: {output / 'rows.csv'}"))
    inputs = {"measurements": str(path), "hardware": hardware, "split": split, "operands": operands}
    data = {"verdict": found.verdict, "groups": found.groups, "violations": found.violations, "warnings": found.warnings}
    assumptions = [
        "verdict of a kernel: FAIL when fewer than half of its rows lie in the 80 % interval, PASS from 70 % on, else AMBIGUOUS; of "
        "launches without shapes (ncu): FAIL when most beat the memory roof, AMBIGUOUS when some do or none could be judged"
    ]
    return Answer("validate", inputs, data, table, blocks, assumptions, exit_code=1 if found.verdict == "FAIL" else 0)


def _load_answer(result: Path, prediction: Path, output: Path | None) -> Answer:
    from roofline.validation.loadtests import AIM, check_loadtest

    found = check_loadtest(result, prediction)
    columns = (
        Column("stage", "stage"), Column("metric", "metric"), Column("statistic", "of"), Column("verdict", "verdict"),
        Column("measured", "measured", "number"), Column("expected", "expected", "number"), Column("low", "low", "number", drop=1),
        Column("high", "high", "number", drop=1),
        Column("error", "error", "percent"),
    )  # fmt: skip
    groups = (
        Column("group", "metric"), Column("verdict", "verdict"), Column("rows", "rows", "integer"), Column("pass", "pass", "integer"),
        Column("fail", "fail", "integer"), Column("ambiguous", "ambiguous", "integer"), Column("median_error", "median", "percent"),
    )  # fmt: skip
    table = Table(columns, found.rows, marks={i: STYLE[row["verdict"]] for i, row in enumerate(found.rows)})
    blocks: list[Block] = [
        Heading(f"{prediction.name} against {result.name}: {found.verdict}"),
        Table(groups, found.groups, marks={i: STYLE[group["verdict"]] for i, group in enumerate(found.groups)}),
        Heading("Rows (SI units)"),
        table,
        *(Paragraph(text, bullet="!", style="red") for text in found.warnings),
    ]
    if output is not None:
        _make(output)
        write_atomically(output / "loadtest.json", json.dumps({"groups": found.groups, "rows": found.rows}, indent=1) + "\n")
        blocks.append(Paragraph(f"Each row with its verdict: {output / 'loadtest.json'}"))
    assumptions = [
        "a row PASSes inside the predicted interval, FAILs outside it, and is AMBIGUOUS where the prediction gives none",
        f"a metric FAILs with more than half of its rows; it PASSes with at least half of them and a median error within {AIM:.0%}",
    ]
    inputs = {"loadtest": str(result), "against": str(prediction)}
    data = {"verdict": found.verdict, "trustworthy": not found.warnings, "groups": found.groups, "rows": found.rows}
    return Answer("validate", inputs, data | {"warnings": found.warnings}, table, blocks, assumptions, exit_code=found.exit_code)


def _since(begun: float, text: str) -> None:
    _say(f"{time.perf_counter() - begun:5.0f} s  {text}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
