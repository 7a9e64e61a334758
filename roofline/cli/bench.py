"""`roofline bench`: what the device really does, case by case, as records."""

from __future__ import annotations

import io
import os
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from roofline import units
from roofline.cli import options
from roofline.cli.output import Answer, check_target, emit, write_atomically
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.errors import InputError, MissingDependencyError
from roofline.profiles.catalog import load_hardware, load_model
from roofline.records import JsonlWriter, Measurement, read_jsonl, write_csv

if TYPE_CHECKING:
    from microbench.device import Device
    from microbench.measure import Case
    from microbench.summary import Roofs
    from microbench.sweep import Outcome

app = new_app()
RESERVE_S = 3.0  # of the budget: to read the records, summarise, print and end
USUAL_START_S = 3.0  # of the interpreter and torch's import
FIGURE_S = 3.0  # more of it when a chart or a fit is asked for: their libraries take long to import

COLUMNS = (
    Column("op", "op"),
    Column("shape", "shape", most=64),
    Column("dtype", "dtype"),
    Column("operands", "operands", drop=4),
    Column("median_s", "median", "time"),
    Column("minimum_s", "minimum", "time", drop=5),
    Column("flop_per_s", "FLOP/s", "flop_rate", drop=2),
    Column("bytes_per_s", "B/s", "bandwidth", drop=1),
    Column("of_bound", "of bound", "percent"),
    Column("spread", "IQR", "percent", drop=3),
    Column("samples", "n", "integer", drop=6),
    Column("notes", "notes", drop=7),
)
MORE = ("level", "low_s", "high_s", "visits", "bound_s", "sustained", "stop")
Group = Literal["stream", "gemm", "gemv", "attention", "launch", "elementwise", "transfer", "collective", "all"]


def _seconds(text: str) -> str:
    """Checks a duration ("60s", "5min"); a plain number is seconds."""
    try:
        units.parse(text if re.search(r"[a-z]", text) else f"{text}s", "time")
    except InputError as error:
        raise typer.BadParameter(str(error)) from None
    return text


@app.command()
def bench(
    group: Annotated[Group, typer.Argument(help="Which cases.")] = "all",
    device: Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="auto: a GPU if torch sees one.")] = "auto",
    budget: Annotated[str, typer.Option(metavar="TIME", callback=_seconds, help="For everything, start-up included: 60s, 4min.")] = "60s",
    model: Annotated[str | None, typer.Option(metavar="MODEL", help="Exactly the shapes of this model's ledger instead.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="With --model: sequences in a decode step (repeat it).")] = None,
    context: Annotated[int, typer.Option(min=1, metavar="T", help="With --model: cached tokens, and tokens of the prefill.")] = 1024,
    dtype: Annotated[str | None, typer.Option(help="With --model: type of weights, activations and KV (fp32 on a CPU).")] = None,
    tp: options.Tp = 1,
    hardware: Annotated[
        str | None, typer.Option("--hardware", "-H", metavar="HW", help="Roofs to compare with (default: detected).")
    ] = None,
    records: Annotated[Path | None, typer.Option(metavar="FILE", help="JSON lines; an existing file is continued.")] = None,
    ranks: Annotated[list[int] | None, typer.Option(min=2, help="Processes of collectives on this machine (repeat it).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads of a kernel (default: as torch chooses).")] = None,
    cpu_time: Annotated[
        bool, typer.Option("--cpu-time", help="Time the thread's CPU seconds: on a shared machine, with --threads 1.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Order of the cases.")] = 0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, measure nothing.")] = False,
    table: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write the rows that calibrate, predict and score read.")] = None,
    profile: Annotated[Path | None, typer.Option(metavar="FILE.yaml", help="Write a calibrated profile of this machine.")] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FILE", help="Roofline with the measured roofs (.pdf, .png, .svg).")] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Microbenchmarks: streams, matrix products, attention, launches, transfers and collectives of this machine, as records.

    Each case ends with a line in the records file; the same command continues it. Hot operands may sit in a cache, cold ones may not.
    """
    budget_s = units.parse(budget if re.search(r"[a-z]", budget) else f"{budget}s", "time")
    started = _process_start()
    for target in (records, output, table, profile, chart):
        check_target(target)
    if records and records.exists() and not records.is_file():
        raise InputError(f"{records}: records are read back and continued: give the name of a file")
    require_torch("roofline bench")
    from microbench.device import open_device
    from microbench.summary import roofs

    here = open_device(device, threads, load_hardware(hardware) if hardware else None, cpu_time=cpu_time)
    slow = max(1.0, (time.perf_counter() - started) / USUAL_START_S)  # a busy machine takes as much longer at the end
    reserve = slow * (RESERVE_S + FIGURE_S * ((chart is not None) + (profile is not None)))
    cases, left_out = _cases(group, here, model, batch or [1], context, dtype, tp)
    worlds = _worlds(group, here, ranks) if model is None else []
    path = records or Path(f"bench-{here.kind}.jsonl")
    _say(_plan(cases, worlds, here, budget_s, path, seed))
    if dry_run:
        return
    outcome = _sweep(here, cases, worlds, path, started + budget_s - reserve, seed)
    found = _measurements(path)
    against = roofs(found, here.profile)
    answer = _answer(group, model, here, found, outcome, against, path, left_out, budget_s)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)
    if table:
        write_atomically(table, _kernel_table(found))
    if profile:
        write_profile(found, here, profile)
    if chart:
        _draw(found, here, against, chart)


def _draw(found: list[Measurement], here: Device, against: Roofs, path: Path) -> None:
    from microbench.summary import rows
    from roofline.charts.measured_roofs import measured_roofs
    from roofline.charts.save import save

    if against.bandwidth is None:
        raise InputError("a roofline needs a stream out of memory: run the group stream as well")
    save(measured_roofs(here.id, rows(found, against), against.peaks, against.bandwidth, against.source, "roofline bench"), path)


def require_torch(what: str) -> None:
    """Raises MissingDependencyError when torch is not installed."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise MissingDependencyError("torch", "gpu", what) from None


def _cases(
    group: str, here: Device, model: str | None, batches: list[int], context: int, dtype: str | None, tp: int
) -> tuple[list[Case], list[str]]:
    """The cases asked for, and what has none."""
    from microbench.cases import standard
    from microbench.cases.model import in_one_type, model_cases

    if model is None:
        return ([] if group == "collective" else standard.cases(group, here)), []
    kind = dtype or ("fp32" if here.kind == "cpu" else None)
    spec = in_one_type(load_model(model), kind) if kind else load_model(model)
    return model_cases(spec, batches=batches, context=context, prompt=context, tp=tp)


def _worlds(group: str, here: Device, ranks: list[int] | None) -> list[int]:
    """How many ranks collectives are measured with."""
    if group not in ("collective", "all"):
        return []
    if ranks:
        return ranks
    if here.kind == "cpu":
        return [2, 4] if group == "collective" else [2]
    import torch

    devices = torch.cuda.device_count()
    return [n for n in (2, 4, 8) if n <= devices]


def _plan(cases: list[Case], worlds: list[int], here: Device, budget_s: float, path: Path, seed: int) -> str:
    from microbench.sweep import ROUNDS

    visit = units.format(budget_s / (ROUNDS * (len(cases) + 2) + 1), "time")
    parts = [f"{len(cases)} cases, {ROUNDS} visits each of about {visit}, order of seed {seed}"] if cases else []
    parts += [f"collectives of {' and '.join(map(str, worlds))} ranks"] if worlds else []
    return f"{here.id}: {'; '.join(parts)}; {units.format(budget_s, 'time')} in all, records in {path}"


def _sweep(here: Device, cases: list[Case], worlds: list[int], path: Path, end: float, seed: int) -> Outcome:
    """Cases and then collectives, until `end` on time.perf_counter."""
    from microbench.cases.standard import sentinel
    from microbench.collectives import START_S, run_ranks
    from microbench.sweep import ROUNDS, Outcome, Sweep, finished

    done = finished(path, here.environment().id)
    if done:
        _say(f"{path}: continued, {len({m.notes['case'] for m in done})} cases are there")
    outcome = Outcome()
    left = end - time.perf_counter()
    share = min(START_S + 6.0, left / 4)
    try:
        if cases:
            with JsonlWriter(path) as writer:
                sweep = Sweep(here, writer, budget_s=max(left - len(worlds) * share, 1.0), seed=seed, say=_progress)
                outcome = sweep.run(cases, sentinel(here), rounds=ROUNDS, finished=done)
            here.release()
        for number, world in enumerate(worlds):
            left = end - time.perf_counter()
            if problem := run_ranks(here.kind, world, path, left / (len(worlds) - number)):
                outcome.skipped[f"collective/ranks={world}"] = problem
    except KeyboardInterrupt:
        _say(f"interrupted: what was measured is in {path}; the same command continues it")
        raise typer.Exit(130) from None
    return outcome


def _measurements(path: Path) -> list[Measurement]:
    """The measurements of a records file, the visits of a case together."""
    from microbench.visits import merged

    rows = read_jsonl(path, skip_cut_lines=True)
    return merged([Measurement.from_json(row, f"{path}:{line}") for line, row in rows if row.get("kind") == "measurement"])


def _kernel_table(found: list[Measurement]) -> str:
    """Measurements as a CSV in the columns of kernel tables."""
    from microbench.summary import TABLE, kernel_rows

    out = io.StringIO()
    write_csv(out, TABLE, kernel_rows(found))
    return out.getvalue()


def _answer(
    group: str, model: str | None, here: Device, found: list[Measurement], outcome: Outcome, against: Roofs, path: Path,
    left_out: list[str], budget_s: float,
) -> Answer:  # fmt: skip
    from microbench.summary import rows
    from microbench.sweep import DRIFT, drift
    from microbench.visits import apart

    table_rows, moved, took_s = rows(found, against), drift(found), time.perf_counter() - _process_start()
    half, most = (apart(found, share) for share in (0.5, 0.9))
    table = Table(COLUMNS, table_rows, more=MORE)
    warnings = [f"{case}: {reason}" for case, reason in outcome.skipped.items()] + [f"not measured: {what}" for what in left_out]
    if took_s > budget_s:
        budget, took = (units.format(seconds, "time") for seconds in (budget_s, took_s))
        warnings.insert(0, f"took {took} where the budget was {budget}: less than starting and one case take, or a busy machine")
    if moved > DRIFT:
        warnings.insert(
            0,
            f"the machine changed by {100 * moved:.0f} % between the sentinels: something else ran, or clocks moved; intervals are widened",
        )
    inputs = {"group": group, "model": model, "device": here.kind, "threads": here.threads, "budget_s": budget_s, "records": str(path)}
    data = {
        "device": here.id, "rows": table_rows, "sentinel_drift": moved, "visits_apart": {"p50": half, "p90": most},
        "skipped": outcome.skipped, "untrustworthy": outcome.untrustworthy,
        "roofs": {"source": against.source, "peaks": against.peaks, "memory_bandwidth": against.bandwidth}, "seconds": took_s,
    }  # fmt: skip
    assumptions = [
        f"bounds are those of roofs {against.source}; bytes and FLOPs are the ledger's",
        "hot: operands may sit in a cache, cold: they may not",
        "low and high: 10 % of the fastest visit's samples and 90 % of the slowest one's, widened by the drift between sentinels",
    ]
    blocks: list[Block] = [
        Heading(f"{here.id}: {len(table_rows)} cases in {units.format(took_s, 'time')}"),
        _shown(table),
        Paragraph(f"Roofs {_roof_line(against)}. Records: {path}"),
        Paragraph(f"Medians of a case's visits lie {100 * half:.1f} % apart (median case; {100 * most:.1f} % at 90 %)."),
        *(Paragraph(text, bullet="!", style="yellow") for text in warnings),
        *(Paragraph(text, bullet="·", style="dim") for text in assumptions),
    ]
    return Answer("bench", inputs, data, table, blocks, assumptions, exit_code=4 if outcome.untrustworthy else 0)


def _shown(table: Table) -> Table:
    """The table for people: a stream that stays in a cache has the cache's name where others have their share of the roof."""
    share = next(column for column in table.columns if column.key == "of_bound")
    rows = [{**row, "of_roof": f"in {row['level']}" if row["level"] else share.cell(row["of_bound"])} for row in table.rows]
    named = Column("of_roof", share.title, align="right")
    return Table([named if column is share else column for column in table.columns], rows)


def _roof_line(against: Roofs) -> str:
    peaks = ", ".join(f"{name} {units.format(value, 'flop_rate')}" for name, value in against.peaks.items())
    memory = units.format(against.bandwidth, "bandwidth") if against.bandwidth else "not measured"
    return f"({against.source}): {peaks or 'no peak measured'}; memory {memory}"


def write_profile(found: list[Measurement], here: Device, path: Path) -> None:
    """Fits a calibrated profile of this CPU to its records and writes it. Raises InputError when they are too few, or for a GPU."""
    from roofline.calibration.machine import fit_machine, profile_text
    from roofline.profiles import detect

    if here.kind != "cpu":
        raise InputError("a GPU has a datasheet profile: write --table FILE.csv and fit it with `roofline calibrate FILE.csv -H HW`")
    machine = fit_machine(found)
    write_atomically(path, profile_text(machine, detect.cpu().memory_bytes or 0.0))
    fitted = [f"{b.family.removeprefix('host_')} {b.dtype} {100 * (b.provenance.held_out_error or 0):.1f} %" for b in machine.blocks]
    _say(f"{path}: calibrated profile (median error on shapes left out: {', '.join(fitted) or 'nothing fitted'}); use it with -H {path}")


def measure_machine(budget_s: float, records: Path, profile: Path) -> None:
    """`hardware detect --measure`: streams, matrix products and attention of this CPU, and the profile fitted to them."""
    require_torch("roofline hardware detect --measure")
    from microbench.cases import standard
    from microbench.device import open_device

    here = open_device("cpu")
    cases = [case for group in ("stream", "gemm", "gemv", "attention") for case in standard.cases(group, here)]
    _say(_plan(cases, [], here, budget_s, records, 0))
    _sweep(here, cases, [], records, _process_start() + budget_s - RESERVE_S - FIGURE_S, 0)
    write_profile(_measurements(records), here, profile)


def _process_start() -> float:
    """When this process started, on time.perf_counter: a budget counts the interpreter and the imports. Now, where unknown."""
    try:
        ticks = float(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        return time.perf_counter() - (time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError):
        return time.perf_counter()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        _say(text)
