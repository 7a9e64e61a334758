"""`roofline score`: predictions against measurements, by kind of kernel, device, dtype and size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer

from roofline.cli import options, tables
from roofline.cli.output import Answer, check_target, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.errors import RecordError

app = new_app()

FIGURES = (
    Column("rows", "rows", "integer"),
    Column("unpredicted", "not predicted", "percent", drop=3),
    Column("median_error", "median error", "percent"),
    Column("p90_error", "p90 error", "percent"),
    Column("bias", "bias", "percent", drop=1),
    Column("coverage", "in interval", "percent", drop=2),
    Column("width", "high/low", "number", drop=4),
    Column("below_bound", "beat the bound", "percent", drop=5),
)
_LISTED = 10  # suspect rows on the page; JSON has all
_SYNONYMS = {"device": "hardware"}


@app.command()
def score(
    table: tables.TableNames,
    by: Annotated[
        list[str], typer.Option("--by", metavar="COLUMNS", help="Group by these columns, as op,hardware; may be given again.")
    ] = [],  # noqa: B006  Typer reads it, nobody changes it
    split: Annotated[str, typer.Option(metavar="NAME", help="Only rows whose column split says so, as dev.")] = "",
    op: tables.Op = "",
    operands: tables.Operands = "hot",
    calibration: tables.Calibration = [],  # noqa: B006  as above
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Error, bias, coverage of the interval and rows that beat the bound, by kind, device, dtype and size band.

    A table without predictions is predicted first. A row without a prediction counts as 100 % wrong.
    """
    import pandas as pd

    from roofline.calibration.score import GROUPINGS, score_table, suspects, with_bands

    check_target(output)
    frames = [_selected(tables.read(name, op), split, name) for name in table]
    done = [f if "expected_s" in f else tables.with_predictions(f, op, operands, calibration) for f in frames]
    whole = pd.concat([f.assign(op=op) if op else f for f in done], ignore_index=True)
    groupings = tuple(tuple(_SYNONYMS.get(word, word) for word in text.split(",")) for text in by) or GROUPINGS
    _check(groupings, [*whole.columns, "band"])
    rows = score_table(whole, groupings)
    words = list(dict.fromkeys(name for grouping in groupings for name in grouping))
    fast = _listed(suspects(with_bands(whole)))
    inputs = {"tables": table, "by": by, "split": split or None, "op": op or None, "operands": operands, "calibration": calibration}
    main = Table((Column("measure", "measure"), Column("by", "by"), *(Column(w, w) for w in words), *FIGURES), rows)
    answer = Answer("score", inputs, {"scores": rows, "suspects": fast}, main, list(_page(rows, fast)), _ASSUMED)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


_ASSUMED = ("a row without a prediction counts as 100 % wrong", "bias is the median of predicted / measured − 1")


def _selected(frame: Any, split: str, name: str) -> Any:
    if not split:
        return frame
    if "split" not in frame:
        raise RecordError(f"{name}: has no column split, so --split {split} selects nothing")
    part = frame[frame["split"] == split]
    if not len(part):
        known = ", ".join(sorted(map(str, frame["split"].dropna().unique()))[:10])
        raise RecordError(f"{name}: no row has split {split}; there are {known}")
    return part.reset_index(drop=True)


def _check(groupings: Iterable[tuple[str, ...]], columns: list[str]) -> None:
    if (unknown := [name for grouping in groupings for name in grouping if name not in columns]) and unknown != ["dtype"]:
        raise RecordError(f"--by {unknown[0]}: no such column; there are {', '.join(columns)}")


def _listed(rows: Any) -> list[dict[str, Any]]:
    """Suspect rows as row number (1 = first), words, measured time and bound."""
    names = [name for name in ("op", "hardware", "software", "dtype", "seconds", "bound_s") if name in rows]
    return [{"row": number + 1, **row} for number, row in zip(rows.index, rows[names].to_dict("records"), strict=True)]


def _page(rows: list[dict[str, Any]], fast: list[dict[str, Any]]) -> Iterable[Block]:
    for measure, by in dict.fromkeys((row["measure"], row["by"]) for row in rows):
        part = [row for row in rows if (row["measure"], row["by"]) == (measure, by)]
        yield Heading(f"{measure[0].upper()}{measure[1:]}, by {by}")
        yield Table((*(Column(word, word) for word in by.split(" × ")), *FIGURES), part)
    if fast:
        yield Heading(f"{len(fast):,} rows are faster than their hard bound: mislabelled, or timed wrongly")
        yield Table(_SUSPECT_COLUMNS, [dict(row) for row in fast[:_LISTED]])
        if len(fast) > _LISTED:
            yield Paragraph(f"and {len(fast) - _LISTED:,} more; --json lists all", style="dim")


_SUSPECT_COLUMNS = (
    Column("row", "row", "integer"), Column("op", "op"), Column("hardware", "device"), Column("software", "software"),
    Column("dtype", "dtype"), Column("seconds", "measured", "time"), Column("bound_s", "bound", "time"),
)  # fmt: skip
