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

BEYOND = 1.02  # of the memory bandwidth, above which a launch beats the roof
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

    hardware: of all rows, where the table does not say. split: only rows with this word in the column split. Kernels of an ncu CSV
    have no shapes: they are held against the memory roof (see ncu.py). Raises RecordError for a table without measured times.
    """
    from roofline.validation import ncu

    if ncu.is_ncu(path):
        return _check_ncu(path, hardware)
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
    return TableCheck(groups, _records(beaten), warnings, rows)


def _check_ncu(path: Path, hardware: str) -> TableCheck:
    """Bytes of DRAM per second of each launch against the datasheet: above it the counters or the profile are wrong."""
    import pandas as pd

    from roofline.profiles.catalog import load_hardware
    from roofline.validation import ncu

    if not hardware:
        raise RecordError(f"{path}: an ncu CSV does not say on which device: add -H NAME")
    rows = pd.DataFrame(ncu.read(path)).assign(hardware=hardware)
    rows["op"] = rows["op"].replace("", "unknown")
    rows["of_bandwidth"] = rows["bytes"].astype(float) / rows["seconds"] / load_hardware(hardware).memory_bandwidth
    beats = rows["of_bandwidth"] > BEYOND
    rows["verdict"] = beats.map({True: FAIL, False: PASS}).where(rows["of_bandwidth"].notna(), "")
    groups = []
    for op, mine in rows.groupby("op", sort=False):
        seen, wrong = mine["of_bandwidth"].dropna(), int((mine["verdict"] == FAIL).sum())
        word = AMBIGUOUS if not len(seen) else FAIL if 2 * wrong > len(seen) else AMBIGUOUS if wrong else PASS
        share = float(seen.median()) if len(seen) else None
        counts = {"rows": len(mine), "violations": wrong, "unpredicted": 1 - len(seen) / len(mine)}
        groups.append({"op": op, "verdict": word, "of_bandwidth": share, **counts})
    warnings = (
        [f"{beats.sum()} launches move more DRAM bytes than {hardware} can: another device, or wrong counters"] if beats.any() else []
    )
    if rows["of_bandwidth"].isna().any():
        warnings.append("launches without DRAM bytes cannot be judged: collect dram__bytes.sum with ncu --metrics")
    return TableCheck(groups, _records(rows[beats]), warnings, rows)


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """The first hundred rows, as objects."""
    return [{str(key): value for key, value in row.items()} for row in rows.head(100).to_dict("records")]


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
