"""Measured matrix products and tables of predictions, read from records or CSV for the figures that compare."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from roofline.dtypes import DType, dtype
from roofline.errors import InputError, RecordError
from roofline.ledger import Op
from roofline.profiles.hardware import Hardware
from roofline.records import Measurement, read_jsonl

MEASURED = ("measured_s", "seconds", "latency_s")


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV with a header. Raises RecordError for a file that is not one, or has no rows."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, strict=True))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (csv.Error, UnicodeDecodeError) as error:
        raise RecordError(f"{path}: is not CSV text in UTF-8: {error}") from None
    if not rows:
        raise RecordError(f"{path}: has no rows below its header")
    return [{key: value or "" for key, value in row.items() if key is not None} for row in rows]


def number(row: Mapping[str, str], key: str, place: str) -> float:
    """A positive number of a row. Raises RecordError that names place and key."""
    try:
        value = float(row[key])
    except KeyError:
        raise RecordError(f"{place}: the column {key!r} is missing; there are {', '.join(row)}") from None
    except ValueError:
        raise RecordError(f"{place}:{key}: {row[key]!r} is not a number") from None
    if not (math.isfinite(value) and value > 0):
        raise RecordError(f"{place}:{key}: {row[key]} must be a positive number")
    return value


@dataclass(frozen=True)
class MeasuredGemm:
    """A matrix product that was run: the op as the ledger counts it, and how long it took."""

    op: Op
    seconds: float

    @property
    def label(self) -> str:
        """Its shape in words."""
        return f"{self.op.m:g}×{self.op.n:g}×{self.op.k:g}"


def measured_gemms(path: Path, device: Hardware) -> list[MeasuredGemm]:
    """The matrix products of a records file (.jsonl, as `bench` writes it) or of a table (m, n, k, dtype, seconds).

    Other ops and other devices are passed over. Raises RecordError when none is left.
    """
    rows = _recorded(path) if path.suffix.lower() == ".jsonl" else _tabled(path)
    names = {device.id, device.name, *device.aliases}
    found = [
        MeasuredGemm(_product(row, place), number(row, measured_column(row, place), place))
        for place, row in rows
        if row.get("op", "gemm") in ("gemm", "gemv") and row.get("hardware", device.id) in names
    ]
    if not found:
        raise RecordError(f"{path}: no matrix product of {device.id}: rows need op gemm (or none), m, n, k, seconds and this hardware")
    return found


def _tabled(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    return ((f"{path}:{line}", row) for line, row in enumerate(read_rows(path), start=2))


def _recorded(path: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Measurements as rows of a table, the last one of each case; what the run repeated to watch the machine is left out."""
    last: dict[str, tuple[str, Measurement]] = {}
    for line, row in read_jsonl(path, skip_cut_lines=True):
        if row.get("kind") == "measurement":
            place = f"{path}:{line}"
            one = Measurement.from_json(row, place)
            if not one.notes.get("sentinel"):
                last[str(one.notes.get("case", line))] = place, one
    for place, one in last.values():
        sizes = {key: str(value) for key, value in one.shape.items()}
        yield place, sizes | {"op": one.op, "hardware": one.device, "dtype": one.dtype, "seconds": str(one.median_s)}


def _product(row: Mapping[str, str], place: str) -> Op:
    m, n, k = (number(row, key, place) for key in "mnk")
    return gemm_op(m, n, k, _dtype(row.get("dtype") or "bf16", place))


def measured_column(row: Mapping[str, str], place: str) -> str:
    """The column that holds the measured time in seconds. Raises RecordError when there is none."""
    for name in MEASURED:
        if name in row:
            return name
    raise RecordError(f"{place}: no column with the measured time in seconds: name it {' or '.join(MEASURED)}")


def _dtype(name: str, place: str) -> DType:
    try:
        return dtype(name)
    except InputError as error:
        raise RecordError(f"{place}:dtype: {error}") from None


def gemm_op(m: float, n: float, k: float, stored: DType) -> Op:
    """One m × n × k product with weights of type `stored`: input and output in 16 bits unless the type multiplies as it is stored."""
    own = not stored.weight_only and stored.bits < 16
    element = stored.bytes_per_element if own else 2.0 if stored.weight_only else stored.bytes_per_element
    return Op(
        name="gemm",
        kind="gemm",
        layer="",
        count=1,
        compute=stored.compute,
        formula="2·m·n·k",
        m=m,
        n=n,
        k=k,
        flops_each=2 * m * n * k,
        weight_bytes_each=stored.matrix_bytes(int(n), int(k)),
        activation_bytes_each=m * k * element + m * n * 2.0,
        weight_dtype=stored.name,
    )
