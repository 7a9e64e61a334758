"""`roofline report`: the whole story of a plan as a document."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from roofline.charts.save import check_place
from roofline.cli import options
from roofline.cli.drawing import BatchSize, command_line, request_of
from roofline.cli.output import Answer, emit, readable
from roofline.cli.plan import EngineName, EngineVersion, Fraction, Goodput, MaxBatchedTokens, MaxModelLen, MaxNumSeqs
from roofline.cli.render import Column, Paragraph, Table
from roofline.cli.shell import GoodputCommand, new_app
from roofline.planning.document import plan_document
from roofline.planning.plan import make_plan
from roofline.report import format_of, read_result, tell, write

app = new_app()


@app.command(cls=GoodputCommand)
def report(
    context: typer.Context,
    model: options.ModelName,
    hardware: options.HardwareName,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The document: .pdf, .html or .md.")],
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
    include: Annotated[
        list[Path] | None,
        typer.Option("--include", metavar="JSON", help="What plan, simulate, validate or loadtest found (their --json), as a section."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """The plan as a document: the answer, what was asked and assumed, tables, figures, how each number was got, and its limits.

    HTML is one file that opens offline. The same input gives the same bytes. Exit code 3: it does not fit, or misses --goodput.
    """
    format_of(output)
    check_place(output)
    results = [read_result(path) for path in include or []]
    memory = {
        "engine_version": engine_version, "utilization": utilization, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }  # fmt: skip
    command = readable(f"{command_line(context)} -o {shlex.quote(output.name)}")
    request = request_of(context.params, model=model, hardware=[hardware], memory=memory, command=command)
    plan = make_plan(request.setup, request.load, **request.memory_options)
    document = tell(plan, request, results)
    files = [str(path) for path in write(document, output)]
    inputs = {name: value for name, value in context.params.items() if name not in ("output", "as_json", "context")}
    code = 0 if plan.fits and plan.meets_load else 3
    blocks = [Paragraph(document.verdict, style="bold"), *(Paragraph(path, bullet="→") for path in files)]
    data = {"verdict": document.verdict, "files": files, "plan": plan_document(plan)}
    emit(Answer("report", inputs, data, Table([Column("file", "file")], []), blocks, plan.assumptions, code), as_json=as_json)
