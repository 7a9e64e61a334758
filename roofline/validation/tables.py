"""Validation of what others measured: a table of kernels against predictions and roofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from roofline.errors import RecordError
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS

if TYPE_CHECKING:
    import pandas as pd

COVERED, HALF = 0.70, 0.50  # shares of rows in an 80 % interval from which a kernel passes, below which it fails


@dataclass(frozen=True)
class TableCheck:
    """groups: one row per kind of kernel; violations: rows that beat a hard bound; rows: the table with predictions and verdicts."""

    groups: Sequence[dict[str, Any]]
    violations: Sequence[dict[str, Any]]
    warnings: Sequence[str]
    rows: pd.DataFrame

    @property
    def verdict(self) -> str:
        """The worst of the groups."""
        words = {group["verdict"] for group in self.groups}
        return FAIL if FAIL in words else AMBIGUOUS if AMBIGUOUS in words else PASS

    def rows_csv(self) -> str:
        """All rows as CSV."""
        return str(self.rows.to_csv(index=False))


def check_table(path: Path, *, hardware: str = "", split: str = "", operands: str = "hot") -> TableCheck:
    """Predicts and judges each row of a table (schema of docs/reference/tables.md, or an ncu CSV).

    hardware: of all rows, where the table does not say. split: only rows with this word in the column split.
    Raises RecordError for a table without measured times.
    """
    from roofline.calibration import tables
    from roofline.calibration.predict import predict_table
    from roofline.calibration.score import score_table, suspects

    frame = tables.read(path)
    if hardware:
        frame = frame.assign(hardware=hardware)
    if split:
        frame = _split(frame, split, path)
    predicted = predict_table(frame, operands=operands)
    rows = tables.normalised(predicted)
    if "seconds" not in rows:
        raise RecordError(f"{path}: no measured times: a column seconds, milliseconds or microseconds is needed")
    rows = rows.assign(verdict=_verdicts(rows))
    beaten = suspects(rows)
    groups = [_group(score, rows, beaten) for score in score_table(predicted, (("op",),)) if score["measure"] == "kernel time"]
    if not groups:
        raise RecordError(f"{path}: no row has a measured kernel time above zero")
    errors = rows["error"].replace("", None).dropna().value_counts()
    warnings = [f"{count} rows: {text}" for text, count in errors.head(5).items()]
    if len(beaten):
        warnings.append(f"{len(beaten)} rows are faster than their hard bound: mislabelled, cached, or mistimed; see violations in --json")
    return TableCheck(
        groups, [{str(key): value for key, value in row.items()} for row in beaten.head(100).to_dict("records")], warnings, rows
    )


def _split(frame: pd.DataFrame, split: str, path: Path) -> pd.DataFrame:
    if "split" not in frame or not (frame["split"] == split).any():
        known = ", ".join(sorted(map(str, set(frame["split"])))) if "split" in frame else "no column split"
        raise RecordError(f"{path}: no row of split {split!r}; the table has {known}")
    kept = frame[frame["split"] == split]
    kept.attrs.update(frame.attrs)
    return kept


def _verdicts(rows: pd.DataFrame) -> pd.Series:
    """A table has one time per row and no spread: PASS in the interval, FAIL beyond it, nothing for what was not predicted."""
    seconds = rows["seconds"]
    word = (seconds >= rows["low_s"]) & (seconds <= rows["high_s"])
    return word.map({True: PASS, False: FAIL}).where(rows["expected_s"].notna() & (seconds > 0), "")


def _group(score: dict[str, Any], rows: pd.DataFrame, beaten: pd.DataFrame) -> dict[str, Any]:
    covered = float(score.get("coverage", 0.0))
    keys = ("rows", "median_error", "p90_error", "bias", "coverage", "width", "unpredicted")
    return {
        "op": score["op"], "verdict": PASS if covered >= COVERED else AMBIGUOUS if covered >= HALF else FAIL,
        **{key: score.get(key) for key in keys}, "violations": int((beaten["op"] == score["op"]).sum()),
    }  # fmt: skip
