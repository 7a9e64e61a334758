"""Kernels as Nsight Compute measured them: times and DRAM bytes, without shapes, so only the memory roof can judge them."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from roofline.calibration.kernels_csv import kind_of
from roofline.errors import RecordError

NAME = "Kernel Name"
_TIME = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_BYTES = ("dram__bytes.sum",)
_PARTS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9, "": 1.0,
}  # fmt: skip
Metrics = dict[str, float]


def is_ncu(path: Path) -> bool:
    """Whether the file is a CSV of `ncu --csv`: a header with the column "Kernel Name"."""
    try:
        return path.suffix.lower() == ".csv" and _header(path.read_text(encoding="utf-8", errors="replace").splitlines()) is not None
    except OSError:
        return False


def read(path: Path) -> list[dict[str, Any]]:
    """One row per launch: kernel, op (as far as the name tells), seconds, bytes (of DRAM; None where they were not collected).

    Reads both layouts of `ncu --csv`: a line per metric, and `--page raw` with a column per metric and a line of units. Raises
    RecordError for a unit that is unknown, and when no launch has a time.
    """
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    start = _header(lines)
    table = list(csv.DictReader(lines[start:])) if start is not None else []
    launches = _long(path, table) if table and "Metric Name" in table[0] else _wide(path, table)
    found: list[dict[str, Any]] = [
        {"kernel": name, "op": kind_of(name), "seconds": seconds, "bytes": _moved(metrics)}
        for name, metrics in launches
        if (seconds := next((metrics[key] for key in _TIME if key in metrics), None))
    ]
    if not found:
        raise RecordError(f"{path}: no launch with a time: collect gpu__time_duration.sum and dram__bytes.sum with ncu --metrics … --csv")
    return found


def _header(lines: Sequence[str]) -> int | None:
    return next((i for i, line in enumerate(lines[:200]) if f'"{NAME}"' in line or NAME in line.split(",")), None)


def _long(path: Path, table: Sequence[Mapping[str, str]]) -> list[tuple[str, Metrics]]:
    """Lines of one metric each, by the launch's ID."""
    launches: dict[str, tuple[str, Metrics]] = {}
    for row in table:
        _, metrics = launches.setdefault(row["ID"], (row[NAME], {}))
        _take(path, metrics, row["Metric Name"], row["Metric Unit"], row["Metric Value"])
    return list(launches.values())


def _wide(path: Path, table: Sequence[Mapping[str, str]]) -> list[tuple[str, Metrics]]:
    """A line per launch; the first line has the units."""
    units: Mapping[str, str] = {}
    launches: list[tuple[str, Metrics]] = []
    for number, row in enumerate(table):
        if number == 0 and not row[NAME]:
            units = row
            continue
        metrics: Metrics = {}
        for column, value in row.items():
            _take(path, metrics, column, units.get(column) or "", value)
        launches.append((row[NAME], metrics))
    return launches


def _take(path: Path, metrics: Metrics, name: str, unit: str, text: str) -> None:
    if name not in (*_TIME, *_BYTES, *_PARTS):
        return
    if unit not in _UNITS:
        raise RecordError(f"{path}: {name} in {unit!r}: known units are {', '.join(filter(None, _UNITS))}")
    scale = 1e-9 if name in _TIME and not unit else _UNITS[unit]
    try:
        metrics[name] = float(text.replace(",", "")) * scale
    except ValueError:
        return


def _moved(metrics: Metrics) -> float | None:
    if "dram__bytes.sum" in metrics:
        return metrics["dram__bytes.sum"]
    return sum(metrics[part] for part in _PARTS) if all(part in metrics for part in _PARTS) else None
