"""`roofline hardware`: the devices that are known, and the one that is here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roofline import units
from roofline.cli import options
from roofline.cli.output import Answer, emit
from roofline.cli.render import Block, Column, Heading, Paragraph, Table
from roofline.cli.shell import new_app
from roofline.profiles import catalog, facts
from roofline.profiles.detect import Detected, detect
from roofline.profiles.hardware import Hardware

app = new_app(no_args_is_help=True, help="The devices that are known, and the one that is here.")

LIST = (
    Column("id", "id"),
    Column("name", "name", drop=3, most=34),
    Column("architecture", "architecture", drop=4),
    Column("memory_bytes", "memory", "bytes"),
    Column("memory_bandwidth", "bandwidth", "bandwidth"),
    Column("bf16", "16-bit dense", "flop_rate"),
    Column("fp8", "fp8 dense", "flop_rate", drop=2),
    Column("ridge", "ridge FLOP/B", "number", drop=1),
    Column("tdp_w", "power", "power", drop=5),
)
FACTS = (
    Column("key", "property"),
    Column("text", "value"),
    Column("kind", "kind", drop=1),
    Column("source", "source", drop=2, most=40),
    Column("note", "note", drop=3, most=60),
)


@app.command("list")
def list_(
    contains: Annotated[
        str, typer.Argument(metavar="[TEXT]", help="Only devices whose id, name, vendor or architecture has this text.")
    ] = "",
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """All devices: memory, bandwidth, dense peaks, ridge."""
    rows = [_summary(device) for device in catalog.list_hardware() if _matches(device, contains)]
    table = Table(LIST, rows, more=("vendor", "aliases"))
    blocks: list[Block] = [
        table,
        Paragraph(f"{len(rows)} devices; `roofline hardware show ID` has every number with its source.", style="dim"),
    ]
    assumptions = ["peaks are dense, with FP32 accumulation where the device has it; ridge is that of the 16-bit peak"]
    answer = Answer("hardware list", {"contains": contains}, {"hardware": rows}, table, blocks, assumptions)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


@app.command()
def show(
    name: Annotated[
        str, typer.Argument(metavar="HW", autocompletion=options.complete_hardware, help="A profile name or alias, a YAML file, or auto.")
    ],
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """All that is known of one device, each number with its source and how far to trust it."""
    device = catalog.load_hardware(name)
    rows = [
        {"key": f.key, "value": f.value, "text": _text(f.value, f.unit), "kind": f.kind, "source": f.source, "note": f.note}
        for f in facts.facts(device)
    ]
    table = Table(FACTS, rows, more=("value",))
    named = catalog.sources()
    used = {key.strip() for row in rows for key in str(row["source"]).split(";")}
    blocks: list[Block] = [Heading(f"{device.name} ({device.id})"), table, Paragraph("")]
    blocks += [Paragraph(f"{key}: {text}", bullet="·", style="dim") for key, text in named.items() if key in used]
    blocks += [Paragraph(device.notes, style="dim")]
    data = _summary(device) | {"facts": [{k: v for k, v in row.items() if k != "text"} for row in rows], "notes": device.notes}
    answer = Answer("hardware show", {"hardware": device.id}, data, table, blocks)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


@app.command()
def compare(
    names: Annotated[list[str], typer.Argument(metavar="HW...", autocompletion=options.complete_hardware, help="Two or more devices.")],
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """Devices side by side."""
    devices = [catalog.load_hardware(name) for name in names]
    found = facts.compare(devices)
    columns = [Column("key", "property"), *(Column(str(i), device.id) for i, device in enumerate(devices))]
    shown = [
        {"key": facts.name_of(row.key), **{str(i): _text(value, row.unit) or "–" for i, value in enumerate(row.values)}} for row in found
    ]
    raw = [{"key": row.key, **{str(i): value for i, value in enumerate(row.values)}} for row in found]
    ids = [device.id for device in devices]
    data = {"hardware": ids, "rows": [{"key": row.key, "values": row.values} for row in found]}
    answer = Answer("hardware compare", {"hardware": ids}, data, Table(columns, raw), [Table(columns, shown)])
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


@app.command("detect")
def detect_(
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure this CPU (two minutes) and write a calibrated profile, this-machine.yaml.")
    ] = False,
    as_json: options.AsJson = False,
    as_csv: options.AsCsv = False,
    output: options.OutFile = None,
) -> None:
    """The devices of this machine, which profile each is, and why. What cannot be read is said to be unknown."""
    if measure:
        from roofline.cli.bench import measure_machine

        measure_machine(120.0, Path("bench-cpu.jsonl"), Path("this-machine.yaml"))
    devices = detect()
    columns = (
        Column("kind", "kind"),
        Column("name", "name"),
        Column("profile_id", "profile"),
        Column("memory_bytes", "memory", "memory"),
        Column("probe", "read with", drop=1),
    )
    rows = [_detected(device) for device in devices]
    table = Table(columns, rows)
    blocks: list[Block] = [table, Paragraph("")]
    for device in devices:
        blocks += [Paragraph(f"{device.name}: {line}", bullet="·", style="dim") for line in _evidence(device)]
    answer = Answer("hardware detect", {}, {"devices": rows}, table, blocks)
    emit(answer, as_json=as_json, as_csv=as_csv, path=output)


def _summary(device: Hardware) -> dict[str, Any]:
    sixteen = device.peaks.get("bf16") or device.peaks.get("fp16")
    return {
        "id": device.id,
        "name": device.name,
        "vendor": device.vendor,
        "architecture": device.architecture,
        "aliases": " ".join(alias.replace(" ", "-") for alias in device.aliases),
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth": device.memory_bandwidth,
        "bf16": sixteen,
        "fp8": device.peaks.get("fp8"),
        "ridge": sixteen / device.memory_bandwidth if sixteen else None,
        "tdp_w": device.tdp_w,
    }


def _matches(device: Hardware, text: str) -> bool:
    wanted = text.lower()
    return any(wanted in field.lower() for field in (device.id, device.name, device.vendor, device.architecture))


def _text(value: Any, unit: str) -> str:
    """A fact as people read it."""
    if value is None or isinstance(value, bool) or not unit:
        return {True: "yes", False: "no", None: ""}.get(value, str(value))
    return units.format(value, unit, digits=4)


def _detected(device: Detected) -> dict[str, Any]:
    keys = (
        "kind",
        "name",
        "profile_id",
        "memory_bytes",
        "sm_count",
        "compute_capability",
        "pci_id",
        "cores",
        "threads",
        "caches",
        "probe",
        "evidence",
        "unknown",
    )
    return {key: getattr(device, key) for key in keys}


def _evidence(device: Detected) -> list[str]:
    lines = list(device.evidence)
    if device.cores or device.threads:
        caches = ", ".join(f"{name} {units.format(size, 'bytes', binary=True)}" for name, size in device.caches.items())
        lines.append(
            f"{_counted(device.cores, 'core')}, {_counted(device.threads, 'thread')} for this process; caches {caches or 'unknown'}"
        )
    if device.unknown:
        lines.append(f"unknown: {', '.join(device.unknown)}")
    return lines


def _counted(count: int | None, noun: str) -> str:
    return units.counted(count, noun) if count else f"? {noun}s"
