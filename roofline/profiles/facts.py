"""Hardware profiles as rows of data, for tables and JSON: one device with its sources, or several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from roofline.errors import InputError
from roofline.profiles.hardware import COMPUTE_TYPES, Hardware

Value = float | int | str | bool | None

# attribute of Hardware → how units.format shows it ("" = as it is)
_ATTRIBUTES = {
    "vendor": "", "architecture": "", "compute_capability": "", "form_factor": "", "launch_year": "",
    "memory_type": "", "unified_memory": "", "memory_bytes": "bytes", "memory_reported_bytes": "bytes",
    "memory_bandwidth": "bandwidth", "l2_bytes": "bytes", "l2_bandwidth": "bandwidth", "sm_count": "",
    "boost_hz": "frequency", "peak_clock_hz": "frequency", "tdp_w": "power",
}  # fmt: skip
_LINKS = {"link": "", "link_bandwidth": "bandwidth", "pcie": "", "pcie_bandwidth": "bandwidth"}
_NAMES = {
    "launch_year": "launched", "memory_type": "memory type", "unified_memory": "memory shared with the CPU", "memory_bytes": "memory",
    "memory_reported_bytes": "memory, as the driver reports", "l2_bytes": "L2 cache", "l2_bandwidth": "L2 bandwidth",
    "sm_count": "multiprocessors", "boost_hz": "boost clock", "peak_clock_hz": "clock of the peaks", "tdp_w": "power",
    "link": "link between GPUs", "link_bandwidth": "link bandwidth, each way", "pcie": "PCIe", "pcie_bandwidth": "PCIe bandwidth, each way",
    "ridge": "ridge, 16-bit",
}  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One line about one device. unit: the kind for units.format, "" for text and counts. key: as Hardware.provenance takes it."""

    key: str
    value: Value
    unit: str
    source: str = ""
    kind: str = ""
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One property of several devices, in their order; None where a device lacks it or it is not known."""

    key: str
    values: tuple[Value, ...]
    unit: str


def name_of(key: str) -> str:
    """What people call a property: "dense peak, FP8" for peaks.fp8, "L2 cache" for l2_bytes."""
    if key.startswith("peaks."):
        return f"dense peak, {key.removeprefix('peaks.').upper()}"
    return _NAMES.get(key, key.replace("_", " "))


def _cells(hardware: Hardware) -> dict[str, tuple[Value, str]]:
    """Key → (value, unit kind), in the order of a datasheet."""
    cells: dict[str, tuple[Value, str]] = {key: (getattr(hardware, key), unit) for key, unit in _ATTRIBUTES.items()}
    cells |= {f"peaks.{compute}": (hardware.peaks.get(compute), "flop_rate") for compute in COMPUTE_TYPES}
    cells |= {key: (getattr(hardware, key), unit) for key, unit in _LINKS.items()}
    fastest = hardware.peaks.get("bf16") or hardware.peaks.get("fp16")
    cells["ridge"] = (fastest / hardware.memory_bandwidth if fastest else None, "intensity")
    return cells


def facts(hardware: Hardware) -> list[Fact]:
    """All that is known of one device, with sources; the ridge (FLOP/B) is that of the 16-bit peak. Unknown things are left out."""
    rows = []
    for key, (value, unit) in _cells(hardware).items():
        if value in (None, ""):
            continue
        figure = hardware.figures.get(key)
        rows.append(Fact(key, value, unit, figure.source, figure.kind, figure.note) if figure else Fact(key, value, unit))
    return rows


def compare(devices: Sequence[Hardware]) -> list[Row]:
    """Devices side by side: one row per property that any of them has. Raises InputError for no device."""
    if not devices:
        raise InputError("name at least one device to compare")
    columns = [_cells(device) for device in devices]
    rows = [Row(key, tuple(column[key][0] for column in columns), unit) for key, (_, unit) in columns[0].items()]
    return [row for row in rows if any(value not in (None, "") for value in row.values)]
