"""`roofline calibrate`: a device's constants from measured kernels."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from roofline.cli import jsonout, options, tables
from roofline.cli.output import check_target, print_text, write_atomically
from roofline.cli.render import READING_WIDTH, Block, Column, Heading, Ink, Paragraph, Table, page
from roofline.cli.shell import new_app
from roofline.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from roofline.calibration.calibrate import Calibrated
    from roofline.profiles.hardware import Hardware

app = new_app()

COLUMNS = (
    Column("group", "kernels", most=60),
    Column("rows", "rows", "integer"),
    Column("suspect", "suspect", "integer", drop=2),
    Column("error_before", "error before", "percent"),
    Column("held_out_error", "held out", "percent"),
    Column("started_from", "started from", most=50, drop=1),
)


@app.command()
def calibrate(
    table: tables.TableNames,
    hardware: options.HardwareName,
    op: tables.Op = "",
    as_json: options.AsJson = False,
    output: options.OutFile = None,
) -> None:
    """Fits the constants of the kernel forms on the measured rows of HW and writes them as YAML, with where they come from.

    About 30 shapes per kernel and dtype suffice, 15 are the least. Serving rows (op serving, tpot_ms) give each stack a pace of its
    own, from 3 points on. Rows whose split is not fit are not read. The error held out is that of rows predicted from constants that
    have not seen them. Without -o the YAML goes to standard output.
    """
    import pandas as pd

    from roofline.calibration import calibrate as fitting
    from roofline.calibration.tables import normalised
    from roofline.profiles.catalog import load_hardware

    check_target(output)
    device = load_hardware(hardware)
    frames = [tables.read(name, op, (device.id,)) for name in table]
    whole = frames[0] if len(frames) == 1 else pd.concat([normalised(f, op) for f in frames], ignore_index=True)
    found = _calibrated(whole, device, op, ", ".join(table))
    text = fitting.text(found)
    if as_json:
        data = {"groups": found.report, "warnings": found.warnings, "skipped": _skipped(found), "blocks": _blocks(found)}
        print_text(jsonout.document("calibrate", {"tables": table, "hardware": device.id, "op": op or None}, data, ()), utf8=True)
    elif output is None:
        print_text(text, utf8=True)
    if output is not None:
        write_atomically(output, text)
    print(page(list(_page(found)), READING_WIDTH, Ink()), end="", file=sys.stdout if output and not as_json else sys.stderr)


def _calibrated(whole: pd.DataFrame, device: Hardware, op: str, name: str) -> Calibrated:
    """Constants from kernels, from serving rows, or from both."""
    from roofline.calibration import calibrate as fitting
    from roofline.profiles.calibration import CalibrationFile
    from roofline.serving.own_points import FEWEST, calibrate_points

    frame = whole.assign(op=op) if op else whole
    serving = frame["op"].eq("serving") if "op" in frame else frame.index != frame.index
    if not serving.any():
        return fitting.calibrate(whole, device, op=op, name=name)
    rows = frame[serving]
    own = calibrate_points(rows if "hardware" in rows else rows.assign(hardware=device.id), device, name)
    if serving.all():
        if not own.blocks:
            few = ", ".join(f"{label}: {count}" for label, count in own.skipped) or "no row that can be priced"
            raise InputError(f"too few serving points of {device.id} to calibrate: at least {FEWEST} per stack ({few})")
        return fitting.Calibrated(CalibrationFile(id=device.id, blocks=tuple(own.blocks)), own.report, own.warnings, own.skipped)
    found = fitting.calibrate(frame[~serving], device, name=name)
    return fitting.Calibrated(
        CalibrationFile(id=device.id, blocks=(*found.file.blocks, *own.blocks)),
        found.report + own.report,
        found.warnings + own.warnings,
        found.skipped + own.skipped,
    )


def _blocks(found: Calibrated) -> list[dict[str, Any]]:
    return [block.model_dump(mode="json") for block in found.file.blocks]


def _skipped(found: Calibrated) -> list[dict[str, Any]]:
    return [{"group": label, "rows": rows} for label, rows in found.skipped]


def _page(found: Calibrated) -> list[Block]:
    blocks: list[Block] = [Heading(f"Constants of {found.file.id}"), Table(COLUMNS, found.report)]
    blocks += [Paragraph(f"warning: {text}", bullet="·") for text in found.warnings]
    blocks += [Paragraph(f"too few rows, left out: {label} ({rows})", bullet="·") for label, rows in found.skipped]
    return blocks
