"""A user's measurements → calibration blocks of their device, pulled towards what is known of its relatives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from roofline.calibration import tables
from roofline.calibration.blocks import MIN_ROWS, Residuals, device_block, quantiles
from roofline.calibration.fit import Fit, fit_group, log_residual
from roofline.calibration.groups import Group, groups
from roofline.errors import InputError, RecordError
from roofline.profiles.calibration import CalibrationBlock, CalibrationFile, Provenance, dump
from roofline.profiles.hardware import Hardware
from roofline.timing.constants import choose
from roofline.timing.forms import FORMS, Form
from roofline.timing.forms.base import DeviceSpec, Key
from roofline.timing.spec import device_spec

_FEW = 100  # below this many rows the pull towards transferred constants is stronger
_SPREAD_FEW, _SPREAD = 0.2, 0.5
_OTHER_UNIT = 30.0  # measured / transferred prediction beyond this is a wrong unit, not a fast or slow kernel


@dataclass(frozen=True)
class Calibrated:
    """What `calibrate` found. file: the blocks; report: one row per group (rows, error before and held out, constants at bounds);
    warnings: sentences to show; skipped: groups with too few rows, as (label, rows)."""

    file: CalibrationFile
    report: list[dict[str, object]]
    warnings: list[str]
    skipped: list[tuple[str, int]]


def calibrate(source: Path | str | pd.DataFrame, hardware: Hardware, *, op: str = "", name: str = "") -> Calibrated:
    """Blocks for `hardware` from the measured rows of a table (`seconds`), all kernel families in it.

    Fits log(measured / predicted) robustly, starting from and pulled towards the constants that would price the kernel without
    these rows: 30 shapes per kernel and dtype suffice. Rows of a `split` other than fit are not read. name: of the source.
    Raises RecordError for unusable tables (columns, units, no times), InputError when every group has too few rows.
    """
    frame = tables.read(source) if not isinstance(source, pd.DataFrame) else source
    table, warnings = _measured(tables.normalised(frame if "hardware" in frame else frame.assign(hardware=hardware.id), op), hardware)
    spec = device_spec(hardware)
    provenance = Provenance(source=name or str(frame.attrs.get("path", "measurements")), split="fit" if "split" in frame else "all rows")
    blocks: list[CalibrationBlock] = []
    result = Calibrated(CalibrationFile(id=hardware.id, blocks=()), [], warnings, [])
    for kind in tables.kinds(table):
        form = FORMS[kind]
        measured = groups(form, _known(form, table[table["op"] == kind], warnings), lambda _: spec)
        fitted = [_fit(form, group, spec, result) for group in measured]
        done = [(g, f) for g, f in zip(measured, fitted, strict=True) if f is not None]
        if done:
            family = Residuals.joined(Residuals.of(form, g.rows, f.held_out) for g, f in done)
            for group, fit in done:
                interval = quantiles(form, Residuals.of(form, group.rows, fit.held_out), family)
                blocks.append(device_block(form, group, fit, interval, provenance))
    if not blocks:
        found = ", ".join(f"{label}: {rows}" for label, rows in result.skipped) or "no usable row"
        need = f"at least {MIN_ROWS} per kernel and dtype, better 30"
        raise InputError(f"too few measurements of {hardware.id} to calibrate: {need} ({found})")
    return replace(result, file=CalibrationFile(id=hardware.id, blocks=tuple(blocks)))


def text(result: Calibrated) -> str:
    """The blocks as YAML, as `roofline predict --calibration` reads them."""
    return dump(result.file, "Constants fitted by `roofline calibrate`; units are in the names, provenance in each block.")


def _measured(table: pd.DataFrame, hardware: Hardware) -> tuple[pd.DataFrame, list[str]]:
    """The rows of this device with a time, and what was left out, in words; rows that a split keeps back are not read."""
    if "seconds" not in table:
        raise RecordError("the table has no measured times: calibrate needs a column seconds")
    if "split" in table:
        table = table[table["split"].isin(("fit", ""))]
    names = {hardware.id, hardware.name, *hardware.aliases}
    mine = table[table["hardware"].isin(names)]
    if not len(mine):
        raise RecordError(f"no row is of {hardware.id}: the table has {', '.join(sorted(set(table['hardware'])))[:200] or 'no rows'}")
    times = pd.to_numeric(mine["seconds"], errors="coerce")
    bad = int((~np.isfinite(times) | (times <= 0)).sum())
    if bad == len(mine):
        raise RecordError("no row has a time above zero in the column seconds")
    return mine, [f"{bad} rows without a time above zero were left out"] if bad else []


def _known(form: Form, rows: pd.DataFrame, warnings: list[str]) -> pd.DataFrame:
    """The rows whose words and numbers the form understands; the others are counted in `warnings`."""
    words = [name for name in form.keys if name in rows]
    keep = pd.Series(True, index=rows.index)
    for values, part in rows.groupby(words, sort=True) if words else [((), rows)]:
        try:
            form.constants(Key(**{"software": "", **dict(zip(words, map(str, values), strict=True))}))
        except InputError as error:
            keep[part.index] = False
            warnings.append(f"{form.family}: {len(part)} rows were left out: {error}")
    rows = rows[keep]
    _, errors = tables.shape_errors(form, rows)
    warnings += [f"{form.family}: {count} rows were left out: {text}" for text, count in errors[errors != ""].value_counts().items()]
    return rows


def _fit(form: Form, group: Group, spec: DeviceSpec, result: Calibrated) -> Fit | None:
    """The fit of one group, with its line of the report; None when it has too few rows."""
    key = group.key
    label = " ".join(word for word in (form.family, key.software, key.kernel, key.dtype, key.kv_dtype) if word)
    if group.suspect:
        result.warnings.append(f"{label}: {group.suspect} rows are faster than the hard bound and were left out")
    if len(group.rows) < MIN_ROWS:
        result.skipped.append((label, len(group.rows)))
        return None
    prior = choose(form, key, spec)
    before = log_residual(form, group.rows, prior.constants)
    _check_units(label, before)
    spread = _SPREAD_FEW if len(group.rows) < _FEW else _SPREAD
    fit = fit_group(form, group.rows, prior.constants, spread=spread)
    if fit.at_bounds:
        names = ", ".join(fit.at_bounds)
        result.warnings.append(f"{label}: {names} ended at the edge of the allowed range; these rows do not determine it")
    result.report.append(
        {
            "group": label,
            "rows": len(group.rows),
            "started_from": prior.used,
            "error_before": float(np.median(np.abs(np.expm1(-before)))),
            "held_out_error": fit.held_out_error,
            "at_bounds": list(fit.at_bounds),
            "suspect": group.suspect,
        }
    )
    return fit


def _check_units(label: str, log_ratio: Sequence[float] | np.ndarray) -> None:
    """Times that are a factor of a unit away from anything a kernel does are refused, in whole or in part."""
    far = np.abs(np.asarray(log_ratio)) > np.log(_OTHER_UNIT)
    if far.mean() > 0.5:
        factor = float(np.exp(np.median(log_ratio)))
        raise RecordError(f"{label}: measured times are {factor:.3g} × what is expected: is the column seconds in another unit?")
    if far.sum() >= 3 and far.mean() > 0.02:
        raise RecordError(f"{label}: {int(far.sum())} of {far.size} times are far from the rest, as if the column seconds mixed units")
