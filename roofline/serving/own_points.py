"""A server's own pace: from a few measured points of a stack, one factor on the constants that would price it without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from roofline.errors import InputError, RecordError, RooflineError
from roofline.profiles.calibration import CalibrationBlock, Provenance
from roofline.profiles.hardware import Hardware
from roofline.serving.points import APART, UNSTATED, WIDER, Stack, choose, read_row
from roofline.serving.steady import Asked, Constants, Float, loads, settle

if TYPE_CHECKING:
    import pandas as pd

FEWEST = 3
_STEP = ("fixed_s", "decode_scale", "expert_scale", "prompt_scale", "per_layer_rank_s", "per_layer_s", "per_sequence_s")
_OTHER_UNIT = 30.0  # measured over predicted beyond this is a wrong unit, not a fast or slow server


@dataclass
class OwnPoints:
    """blocks: one per stack. report: a row per stack, with the keys of calibration.calibrate's; warnings: sentences to show;
    skipped: stacks with fewer than FEWEST points, as (label, points)."""

    blocks: list[CalibrationBlock] = field(default_factory=list)
    report: list[dict[str, object]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    skipped: list[tuple[str, int]] = field(default_factory=list)


def calibrate_points(table: pd.DataFrame, hardware: Hardware, name: str = "") -> OwnPoints:
    """Constants of each stack (engine, version, model, precision) on `hardware` from its serving rows with a measured `tpot_ms`.

    Every step constant is multiplied by the geometric mean of measured over predicted TPOT, drawn to 1 as by one more point that
    is predicted rightly. Three points do; the curve over their number is in reports/accuracy/serving.md. The interval stays that
    of the constants which priced the stack before. Rows of a `split` other than fit, or marked `suspect`, are not read.
    Raises RecordError where no time is usable, InputError for times in another unit.
    """
    if "tpot_ms" not in table:
        raise RecordError("the table has no measured times of serving rows: calibrate needs a column tpot_ms")
    found = OwnPoints()
    for stack, asked, measured in _stacks(_usable(table, hardware, found), found):
        label = " ".join(word for word in ("serving", stack.engine, stack.version, hardware.id, stack.model, stack.precision) if word)
        if len(asked) < FEWEST:
            found.skipped.append((label, len(asked)))
            continue
        level, prior = choose(stack)
        logs = np.log(measured / _tpot(asked, prior))
        _check_units(label, logs)
        alone = (logs.sum() - logs) / len(logs)  # the factor of the others, for each point
        held_out = float(np.median(np.abs(np.expm1(alone - logs))))
        found.blocks.append(_block(stack, level, prior, float(np.exp(logs.sum() / (len(logs) + 1))), held_out, len(logs), name))
        found.report.append(
            {
                "group": label, "rows": len(logs), "started_from": prior.label, "at_bounds": [], "suspect": 0,
                "error_before": float(np.median(np.abs(np.expm1(-logs)))), "held_out_error": held_out,
            }
        )  # fmt: skip
    return found


def _usable(table: pd.DataFrame, hardware: Hardware, found: OwnPoints) -> pd.DataFrame:
    """Rows of this device with a time, of the fit split, not suspect; what is left out is said."""
    if "split" in table:
        table = table[table["split"].isin(("fit", "")) | table["split"].isna()]
    mine = table[table["hardware"].isin({hardware.id, hardware.name, *hardware.aliases})]
    if not len(mine):
        raise RecordError(f"no serving row is of {hardware.id}")
    if "suspect" in mine:
        marked = mine["suspect"].notna() & (mine["suspect"].astype(str).str.strip() != "")
        if marked.any():
            found.warnings.append(f"serving: {int(marked.sum())} rows marked suspect were left out")
        mine = mine[~marked]
    times = mine["tpot_ms"].map(_number)
    good = np.isfinite(times) & (times > 0)
    if not good.any():
        raise RecordError("no serving row has a time above zero in the column tpot_ms")
    if not good.all():
        found.warnings.append(f"serving: {int((~good).sum())} rows without a time above zero were left out")
    return mine[good].assign(tpot_ms=times[good])


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return float("nan")


def _stacks(table: pd.DataFrame, found: OwnPoints) -> list[tuple[Stack, list[Asked], Float]]:
    """Rows by stack, with measured TPOT in seconds; rows that cannot be priced become warnings."""
    groups: dict[Stack, tuple[list[Asked], list[float]]] = {}
    wrong: dict[str, int] = {}
    for row in table.to_dict("records"):
        try:
            asked, stack = read_row(row)
            choose(stack)
        except RooflineError as error:
            wrong[str(error)] = wrong.get(str(error), 0) + 1
            continue
        rows, times = groups.setdefault(stack, ([], []))
        rows.append(asked)
        times.append(row["tpot_ms"] / 1e3)
    found.warnings += [f"serving: {count} rows were left out: {text}" for text, count in wrong.items()]
    return [(stack, rows, np.array(times)) for stack, (rows, times) in groups.items()]


def _tpot(asked: Sequence[Asked], block: CalibrationBlock) -> Float:
    return settle(loads(asked), Constants.stacked([block.constants] * len(asked)))[0].tpot_s


def _check_units(label: str, logs: Float) -> None:
    odd = np.abs(logs) > np.log(_OTHER_UNIT)
    if odd.any():
        raise InputError(
            f"{label}: {int(odd.sum())} of {len(logs)} times are {_OTHER_UNIT:g} × off any prediction: is tpot_ms in milliseconds?"
        )


def _block(stack: Stack, level: str, prior: CalibrationBlock, factor: float, held_out: float, rows: int, name: str) -> CalibrationBlock:
    constants = {key: value * (factor if key in _STEP else 1.0) for key, value in prior.constants.items()}
    wider = WIDER.get(level, 1.0)
    return CalibrationBlock(
        family="serving", software=f"{stack.engine} {APART}" if stack.apart else stack.engine,
        software_version=stack.version or UNSTATED, kernel=f"{stack.hardware} {stack.model}", dtype=stack.precision,
        constants=constants,
        interval_log_quantiles={key: (wider * low, wider * high) for key, (low, high) in prior.interval_log_quantiles.items()},
        provenance=Provenance(source=name or "measurements", rows=rows, split="all rows", held_out_error=held_out),
    )  # fmt: skip
