"""`roofline predict`: bound, expected time and interval for every row of a table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from roofline.cli import jsonout, options, tables
from roofline.cli.output import print_text, write_atomically
from roofline.cli.shell import new_app

if TYPE_CHECKING:
    import pandas as pd

app = new_app()

_SHOWN = 5  # different errors that are named on stderr; the column `error` has them all


@app.command()
def predict(
    table: tables.TableName,
    op: tables.Op = "",
    hardware: tables.Hardware = "",
    operands: tables.Operands = "hot",
    calibration: tables.Calibration = [],  # noqa: B006  Typer reads it, nobody changes it
    as_json: options.AsJson = False,
    output: options.OutFile = None,
) -> None:
    """Every row of TABLE with bound_s, expected_s, low_s, high_s, the constants used, and error for what cannot be predicted.

    Columns of each kind of row: docs/reference/tables.md; a kernel list of nsys or ncu (CSV) becomes such a table, to be filled in with
    shapes. The result is CSV on standard output, or the file of -o (.csv, .parquet
    or .json). A bad row never stops the others; what went wrong is summed up on standard error.
    """
    tables.check_output(output)
    frame = tables.read(table, op, (hardware,) if hardware else ())
    frame = frame if "hardware" in frame or not hardware else frame.assign(hardware=hardware)
    predicted = tables.with_predictions(frame, op, operands, calibration)
    if as_json or (output is not None and output.suffix == ".json"):
        inputs = {"table": table, "op": op or None, "hardware": hardware or None, "operands": operands, "calibration": calibration}
        text = jsonout.document("predict", inputs, {"rows": predicted.to_dict("records")}, _assumptions(operands))
        print_text(text, utf8=True) if output is None else write_atomically(output, text)
    elif output is None:
        print_text(predicted.to_csv(index=False), utf8=True)
    else:
        tables.write(predicted, output)
    print(summary(predicted), file=sys.stderr)


def summary(predicted: pd.DataFrame) -> str:
    """How many rows were predicted, and why others were not."""
    wrong = predicted[predicted["error"] != ""]
    lines = [f"{len(predicted):,} rows: {len(predicted) - len(wrong):,} predicted, {len(wrong):,} with an error"]
    counts = wrong["error"].value_counts()
    lines += [
        f"  {count:,} × {message} (first in row {wrong.index[wrong['error'] == message][0] + 1})"
        for message, count in counts[:_SHOWN].items()
    ]
    if len(counts) > _SHOWN:
        lines.append(f"  … and {len(counts) - _SHOWN} other messages in the column error")
    return "\n".join(lines)


def _assumptions(operands: str) -> list[str]:
    where = "may sit in cache" if operands == "hot" else "come from memory"
    return [f"operands {where}", "low to high holds 80 % of measurements", "column calibration names the constants of each row"]
