"""What `chart` and `report` share: options that make a Request, and the command line that makes the same output again."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from roofline.charts.chart import Request
from roofline.cli.output import readable
from roofline.cli.plan import service_levels
from roofline.ledger import Conventions, Parallel, Precision
from roofline.planning.load import Load
from roofline.profiles.catalog import load_hardware, load_model

Devices = Annotated[
    list[str] | None,
    typer.Option("--hardware", "-H", metavar="HW", help="A device; several -H share the axes where a figure can compare."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch",
        "--concurrency",
        "--max-concurrency",
        min=1,
        metavar="N",
        help="Sequences in a decode step, 1 unless given; of a simulated run, the requests in flight.",
    ),
]
_NOT_INPUT = ("output", "chart", "as_json", "as_csv")


def request_of(
    options: Mapping[str, Any], *, model: str | None, hardware: Sequence[str] | None, memory: Mapping[str, Any], command: str
) -> Request:
    """A Request from a command's parameters by name (input_len, output_len, batch, goodput, tp …). Raises InputError."""
    goals = service_levels(options["goodput"] or [])
    engine = options["engine"]
    return Request(
        model=load_model(model) if model else None,
        devices=tuple(load_hardware(name) for name in hardware or ()),
        parallel=Parallel(**{name: options[name] for name in ("tp", "pp", "ep", "dp")}),
        precision=Precision(weights=options["weights"], kv=options["kv_dtype"]),
        conventions=Conventions(causal=not options["full"]),
        engine="reference" if engine == "plain" else engine,
        batch=options["batch"] or 1,
        load=Load(options["input_len"], options["output_len"], options["batch"], ttft_s=goals.get("ttft"), tpot_s=goals.get("tpot")),
        memory_options={"engine": engine, **memory},
        table=options.get("table"),
        command=command,
    )


def command_line(context: typer.Context) -> str:
    """The command with what was given, without where its output went: the same text wherever the file is."""
    words = ["roofline", context.info_name or ""]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _NOT_INPUT or value in (None, [], ()) or value == parameter.default:
            continue
        named = parameter.param_type_name == "option"
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*([_flag(parameter)] if named else []), *([] if value is True else [str(each)])]
    return readable(shlex.join(words))


def _flag(parameter: Any) -> str:
    """-H where it exists, else the first spelling."""
    return next((name for name in parameter.opts if len(name) == 2), str(parameter.opts[0]))
