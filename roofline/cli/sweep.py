"""`roofline sweep`: many configurations from a file, resumable, with their Pareto front."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli import options
from roofline.cli.output import Answer, check_target, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.errors import InputError
from roofline.planning.sweep import Axes, Backend, Spec, configurations, load_spec, pareto, sweep

app = new_app()

FIGURES = (
    Column("ttft_s", "TTFT", "time"),
    Column("tpot_s", "TPOT", "time"),
    Column("output_tokens_per_s", "output tok/s", "integer"),
    Column("output_tokens_per_s_per_gpu", "per GPU", "integer"),
)
MOST = 100_000


@app.command("sweep")
def sweep_command(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="axes: lists of model, hardware, tp, concurrency …; method, levels.")],
    records: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One JSON line per configuration; beside SPEC unless given. A new run resumes.")
    ] = None,
    backend: Annotated[Backend, typer.Option(help="Local processes, this process, or a cluster that is there.")] = "loky",
    jobs: Annotated[int, typer.Option(metavar="N", min=-1, help="Processes; -1: one per core.")] = -1,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Plans or simulates every combination of the axes of a file, and shows which of them no other beats.

    Ctrl-C keeps what is done; the same command goes on with what is missing.
    """
    if jobs == 0:
        raise InputError("--jobs 0: give a number of processes, or -1 for one per core")
    check_target(output)
    loaded = load_spec(spec)
    count = len(configurations(loaded))
    if count > MOST:
        raise InputError(f"{spec}: {count:,} configurations; a sweep takes up to {MOST:,}: shorten an axis")
    place = records if records is not None else spec.with_suffix(".jsonl")
    try:
        found = sweep(loaded, place, backend=backend, jobs=jobs, progress=_progress)
    except KeyboardInterrupt:
        raise typer.Exit(_interrupted(place)) from None
    finally:
        _clear()
    front = pareto(found).records
    varied = [name for name in Axes.model_fields if len(getattr(loaded.axes, name)) > 1]
    columns = (*(Column(name, name.replace("_", " ")) for name in varied), *FIGURES)
    failed = [record for record in found if record.get("error")]
    data = {"configurations": len(found), "failed": len(failed), "front": list(front), "records": found, "records_file": place}
    page: list[Block] = [
        Heading(f"{len(front)} of {len(found):,} configurations are beaten by no other"),
        Paragraph("More output tokens per second of a user (1/TPOT) costs output per GPU:"),
        Paragraph(""),
        Table(columns, front),
        Paragraph(""),
        *(Paragraph(f"{len(failed):,} could not be evaluated; the first: {failed[0]['error']}", bullet="·") for _ in failed[:1]),
        Paragraph(_method(loaded), bullet="·"),
        Paragraph(f"All records: {place}", bullet="·"),
    ]
    more = [key for key in (found[0] if found else {}) if key not in {column.key for column in columns}]
    table = Table(columns, found, more=(*more, *(() if "error" in more else ("error",))))
    code = 0 if front else 3
    emit(Answer("sweep", {"spec": spec, "backend": backend}, data, table, page, [], code), as_json=as_json, as_csv=as_csv, path=output)


def _method(spec: Spec) -> str:
    """How each row was got."""
    if spec.method == "closed":
        return "Closed form: even arrivals, no queue in TTFT; a rate beyond what a replica takes is served as far as it goes and misses."
    few = "" if spec.axes.trace == [None] else "up to "
    return f"Each configuration is a simulation of {few}{spec.num_requests:,} requests (num_requests in the file)."


def _interrupted(place: Path) -> int:
    print(f"interrupted; the same command resumes from {place}", file=sys.stderr)
    return 130


def _progress(done: int, of: int) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{done:,} of {of:,}")
        sys.stderr.flush()


def _clear(stream: Any = None) -> None:
    stream = stream or sys.stderr
    if stream is not None and stream.isatty():
        stream.write("\r\x1b[K")
