"""`roofline kv`: what the KV cache weighs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from roofline.batch import Batch
from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Table, assumed
from roofline.cli.shell import new_app
from roofline.ledger import Parallel, Precision, build_ledger, kv_bytes_per_token, kv_bytes_stored
from roofline.profiles.catalog import load_model
from roofline.profiles.layouts import with_layout
from roofline.profiles.model import Model

app = new_app()

COLUMNS = (
    Column("model", "model", most=28),
    Column("layout", "layout"),
    Column("layers", "layers", "integer", drop=3),
    Column("kv_bytes_per_token", "per token", "memory"),
    Column("kv_bytes_stored", "stored", "memory"),
    Column("kv_bytes_read_per_step", "read per step", "memory", drop=1),
    Column("kv_bytes_stored_all_ranks", "all ranks", "memory", drop=2),
    Column("of_first", "of the first", "percent", drop=4),
)


@app.command()
def kv(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", autocompletion=options.complete_model, help="Profile names, hub ids or files.")
    ],
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Cached tokens of one sequence.")] = 8192,
    tp: options.Tp = 1,
    kv_dtype: options.KvDtype = None,
    layouts: Annotated[str, typer.Option("--as", metavar="LIST", help="Also as other layouts: mha,gqa:8,mqa,mla")] = "",
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """KV cache per token and in total, stored and read, on one rank.

    Stored: what a sequence keeps (a sliding window keeps only what can still be seen). Read: what one decode step reads.
    """
    parallel, precision = Parallel(tp=tp), Precision(kv=kv_dtype)
    rows = [row for name in models for row in _rows(load_model(name), layouts, tokens, parallel, precision)]
    for row in rows:
        row["of_first"] = row["kv_bytes_stored"] / rows[0]["kv_bytes_stored"] if rows[0]["kv_bytes_stored"] else None
    table = Table(COLUMNS, rows, more=("kv_dtype",))
    assumptions = _assumptions(layouts, tp)
    on = "one GPU" if tp == 1 else f"one of {tp} tensor-parallel GPUs"
    blocks: list[Block] = [
        Heading(f"KV cache of one sequence with {tokens:,} cached tokens, on {on}"),
        table,
        *assumed(assumptions),
    ]
    inputs = {"models": models, "tokens": tokens, "tp": tp, "kv_dtype": kv_dtype, "layouts": layouts}
    emit(Answer("kv", inputs, {"models": rows}, table, blocks, assumptions), as_json=as_json, as_csv=as_csv, path=output)


def _rows(model: Model, layouts: str, tokens: int, parallel: Parallel, precision: Precision) -> Iterator[dict[str, Any]]:
    """The model as shipped, then as each layout of the comma-separated list."""
    yield _row(model, "as shipped", tokens, parallel, precision)
    for layout in (part.strip() for part in layouts.split(",") if layouts):
        yield _row(with_layout(model, layout), layout, tokens, parallel, precision)


def _row(model: Model, layout: str, tokens: int, parallel: Parallel, precision: Precision) -> dict[str, Any]:
    step = build_ledger(model, Batch.decode(1, tokens), parallel=parallel, precision=precision)
    stored = float(kv_bytes_stored(model, tokens, parallel=parallel, precision=precision))
    return {
        "model": model.name,
        "layout": layout,
        "layers": sum(model.layers[name].mixer is not None for name in model.stack),
        "kv_dtype": precision.kv_cache_dtype(model).name,
        "kv_bytes_per_token": kv_bytes_per_token(model, parallel=parallel, precision=precision),
        "kv_bytes_stored": stored,
        "kv_bytes_read_per_step": float(step.total("kv_read_bytes")),
        "kv_bytes_stored_all_ranks": stored * parallel.tp,
    }


def _assumptions(layouts: str, tp: int) -> list[str]:
    notes = ["per token: while no window is full; a sliding or chunked layer then keeps and reads only what can still be seen"]
    if tp > 1:
        notes.append(
            f"tp {tp}: KV heads are split over the ranks, and copied where there are fewer heads than ranks; an MLA latent is on every rank"
        )
    if "mla" in layouts.lower():
        notes.append("as MLA: a latent of 4·head_dim and a rotary key of head_dim/2 per token and layer, DeepSeek-V2's ratio")
    return notes
