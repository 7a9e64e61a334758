"""`roofline chart`: a figure as PDF, PNG or SVG, with its data as CSV beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.charts import KINDS, Chart, build
from roofline.charts.save import check_place, format_of, save
from roofline.cli import options
from roofline.cli.drawing import BatchSize, Devices, command_line, request_of
from roofline.cli.output import Answer, emit
from roofline.cli.plan import EngineName, EngineVersion, Fraction, Goodput, MaxBatchedTokens, MaxModelLen, MaxNumSeqs
from roofline.cli.render import Block, Column, Paragraph, Table
from roofline.cli.shell import GoodputCommand, new_app
from roofline.errors import InputError

app = new_app()

KIND_HELP = "One of: " + "; ".join(f"{name} ({shows})" for name, (_, shows) in KINDS.items()) + "."


@app.command(cls=GoodputCommand)
def chart(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar="KIND", help=KIND_HELP)],
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="As for plan: a profile name, a YAML file, a config.json. `error` needs none.")
    ] = None,
    hardware: Devices = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="The figure: .pdf, .png or .svg; its data goes beside it as .csv.")
    ] = None,
    input_len: options.InputLength = 1024,
    output_len: options.OutputLength = 256,
    batch: BatchSize = None,
    goodput: Goodput = None,
    tp: options.Tp = 1,
    pp: options.Pp = 1,
    ep: options.Ep = 1,
    dp: options.Dp = 1,
    weights: options.Weights = None,
    kv_dtype: options.KvDtype = None,
    engine: EngineName = "vllm",
    engine_version: EngineVersion = None,
    utilization: Fraction = None,
    max_model_len: MaxModelLen = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxBatchedTokens = None,
    full: options.FullAttention = False,
    table: Annotated[
        Path | None,
        typer.Option("--table", "--records", metavar="CSV", help="Measured products (roofline, gemm-curve) or predictions (error)."),
    ] = None,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
) -> None:
    """A figure with one finding as its title, and its data as CSV beside it.

    Decode figures stand in the middle of the output: input + output/2 tokens cached. The same input gives the same bytes.
    --json and --csv print the data; then -o may be left out.
    """
    if output is not None:
        format_of(output)
        check_place(output)
        check_place(output.with_suffix(".csv"))
    elif not (as_json or as_csv):
        raise InputError(f"where to? add -o {kind}.pdf (or .png, .svg), or --csv or --json for the data alone")
    memory = {
        "engine_version": engine_version, "utilization": utilization, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }  # fmt: skip
    request = request_of(context.params, model=model, hardware=hardware, memory=memory, command=command_line(context))
    found = build(kind, request)
    files = save(found, output) if output is not None else []
    emit(_answer(found, files, {"kind": kind, **_inputs(context.params)}), as_json=as_json, as_csv=as_csv)


def _inputs(parameters: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in parameters.items() if name not in ("kind", "output", "as_json", "as_csv", "context")}


def _answer(found: Chart, files: list[Path], inputs: dict[str, Any]) -> Answer:
    """The finding and where it went; data: the rows of the figure."""
    data = {"title": found.title, "subtitle": found.subtitle, "rows": list(found.rows), "files": [str(path) for path in files]}
    columns = [Column(key, key, "text") for key in (found.rows[0] if found.rows else {})]
    blocks: list[Block] = [Paragraph(found.title + ".", style="bold"), *(Paragraph(str(path), bullet="→") for path in files)]
    blocks += [Paragraph(note + ".", bullet="·") for note in found.notes]
    return Answer("chart", inputs, data, Table(columns, found.rows), blocks, [*([found.basis] if found.basis else []), *found.notes])
