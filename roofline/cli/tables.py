"""What `predict`, `score` and `calibrate` share: reading tables with the product's predictors, and writing them."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from roofline.cli.output import check_target, write_atomically
from roofline.errors import InputError, MissingDependencyError

if TYPE_CHECKING:
    import pandas as pd

    from roofline.calibration.predict import Blocks

_SILICON = "or silicon, silicon:gemm, … for the public tables of an installed aiconfigurator-core"
TableName = Annotated[str, typer.Argument(metavar="TABLE", help=f"A CSV or parquet file, {_SILICON}.")]
TableNames = Annotated[list[str], typer.Argument(metavar="TABLE…", help=f"CSV or parquet files, {_SILICON}.")]
Op = Annotated[str, typer.Option("--op", metavar="KIND", help="Kind of every row, for a table without a column op: gemm, moe, serving, …")]
Operands = Annotated[
    Literal["hot", "cold"], typer.Option(help="hot: operands may sit in cache, as in tables of single kernels; cold: as in a model.")
]
Calibration = Annotated[
    list[Path], typer.Option("--calibration", metavar="FILE", help="Blocks that `roofline calibrate` wrote, before the shipped ones.")
]
Hardware = Annotated[
    str,
    typer.Option(
        "--hardware", "-H", metavar="HW", help="Device of every row, for a table without a column hardware, as a profiler's list."
    ),
]
FORMATS = (".csv", ".parquet", ".pq", ".json")


def read(name: str, op: str = "", hardware: Sequence[str] = ()) -> pd.DataFrame:
    """The table of a file, of a profiler's kernel list, or of the installed public tables. hardware: device ids that matter, for
    the last; the one device that matters is that of every row of a list that does not name its own.

    Raises RecordError, InputError and MissingDependencyError.
    """
    from roofline.calibration import kernels_csv, silicon, tables

    if name == "silicon" or name.startswith("silicon:"):
        return silicon.read(name.removeprefix("silicon").removeprefix(":") or op, hardware)
    if op or not kernels_csv.is_kernel_list(name):
        return tables.read(name)
    rows = kernels_csv.read(name)
    if "hardware" not in rows and len(hardware) != 1:
        raise InputError(f"{name}: this kernel list does not name its device: give it to predict with --hardware, or add a column hardware")
    lines = "\n".join(kernels_csv.overview(rows))
    print(f"{name}: {len(rows):,} kernels; a list has no shapes: fill in the columns of docs/reference/tables.md\n{lines}", file=sys.stderr)
    return rows if "hardware" in rows else rows.assign(hardware=hardware[0])


def with_predictions(frame: pd.DataFrame, op: str, operands: str, calibration: Sequence[Path]) -> pd.DataFrame:
    """The table with predictions of every kind of row that the product knows; blocks of the files go before shipped ones."""
    from roofline.calibration.predict import predict_table

    blocks = _blocks(calibration)

    def serving(rows: pd.DataFrame, hot: bool) -> pd.DataFrame:
        from roofline.serving.points import predict_points

        return predict_points(rows, hot, [block for of_device in blocks.values() for block in of_device])

    return predict_table(frame, operands=operands, op=op, blocks=blocks, others={"serving": serving})


def _blocks(files: Sequence[Path]) -> Blocks:
    from roofline.profiles.calibration import load_file
    from roofline.profiles.catalog import load_hardware

    found = [load_file(path) for path in files]
    return {file.id: (*file.blocks, *load_hardware(file.id).calibration) for file in found}


def check_output(path: Path | None) -> None:
    """Refuses a file that could not be written, before any work is done."""
    if path is None:
        return
    check_target(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: the ending must be {', '.join(FORMATS)}")
    if path.suffix.lower() in (".parquet", ".pq"):
        try:
            import pyarrow  # noqa: F401  only whether it is there
        except ImportError:
            raise MissingDependencyError("pyarrow", "parquet", "writing parquet") from None


def write(frame: pd.DataFrame, path: Path) -> None:
    """The table as CSV or parquet, by the file's ending; whole or not at all."""
    if path.suffix.lower() == ".csv":
        write_atomically(path, frame.to_csv(index=False))
        return
    buffer = io.BytesIO()
    plain = frame.copy()
    plain.attrs = {}
    plain.to_parquet(buffer, index=False)
    write_atomically(path, buffer.getvalue())
