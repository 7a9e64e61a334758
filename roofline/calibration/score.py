"""How good predictions are: error, bias, coverage, width and roof violations, by kind, device, dtype and size band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from roofline.calibration import tables
from roofline.errors import RecordError
from roofline.timing.forms import FORMS, Key

GROUPINGS = (("op",), ("op", "hardware"), ("op", "dtype"), ("op", "band"))


def summary(rows: pd.DataFrame, measured: str = "seconds", predicted: str = "expected_s", rate: bool = False) -> dict[str, float]:
    """Figures of predicted against measured rows, shares and errors as fractions (0.05 = 5 %).

    A row without a prediction counts as 100 % wrong, and outside of every interval for `median_error` and `p90_error` only.
    bias: median of predicted / measured − 1. width: median of high / low. below_bound: share of rows that beat the bound.
    rate: values are rates, whose bound is a ceiling.
    """
    value = pd.to_numeric(rows[measured], errors="coerce")
    rows = rows[np.isfinite(value) & (value > 0)]
    value = value[rows.index]
    guess = rows[predicted]
    done = guess.notna()
    error = (guess / value - 1.0).abs().fillna(1.0)
    found = {
        "rows": float(len(rows)),
        "unpredicted": float(1.0 - done.mean()) if len(rows) else 0.0,
        "median_error": float(error.median()),
        "p90_error": float(error.quantile(0.9)),
        "bias": float((guess / value - 1.0)[done].median()),
    }
    if {"low_s", "high_s"} <= set(rows.columns) and done.any():
        inside = (value >= rows["low_s"]) & (value <= rows["high_s"])
        found["coverage"] = float(inside[done].mean())
        found["width"] = float((rows["high_s"] / rows["low_s"])[done].median())
    if "bound_s" in rows and done.any():
        beaten = value > rows["bound_s"] if rate else value < rows["bound_s"]
        found["below_bound"] = float(beaten[done].mean())
    return found


@dataclass(frozen=True)
class Measure:
    """A measured column and what predicts it. factor: from the measured column to SI; rate: more is better, its bound is a ceiling."""

    name: str
    measured: str
    predicted: str
    factor: float = 1.0
    rate: bool = False

    def rows(self, table: pd.DataFrame) -> pd.DataFrame:
        """The rows where it was measured, as columns seconds, expected_s, low_s, high_s, bound_s (of a rate: per second).

        Rows that the table itself calls suspect (a word in the column `suspect`) are left out.
        """
        value = tables.number(table, self.measured) * self.factor
        good = (value > 0) & np.isfinite(value)
        if "suspect" in table:
            good &= table["suspect"].isna() | (table["suspect"] == "")
        rows: pd.DataFrame = table.loc[good].copy()
        rows["seconds"] = value[rows.index]
        for column in ("expected", "low", "high", "bound"):
            rows[f"{column}_s"] = tables.number(rows, self.predicted.format(column))
        return rows


MEASURES = (
    Measure("kernel time", "seconds", "{}_s"),
    Measure("prefill rate", "prefill_tok_s", "prefill_tok_s_{}", rate=True),
    Measure("decode rate", "decode_tok_s", "decode_tok_s_{}", rate=True),
    Measure("TTFT", "ttft_ms", "ttft_s_{}", 1e-3),
    Measure("TPOT", "tpot_ms", "tpot_s_{}", 1e-3),
    Measure("output rate", "output_tokens_per_s", "output_tokens_per_s_{}", rate=True),
)


def score_table(predicted: pd.DataFrame, groupings: Sequence[tuple[str, ...]] = GROUPINGS) -> list[dict[str, object]]:
    """One row per measure and group of each grouping: what was measured, the group's words and its `summary`.

    predicted: what `predict_table` returned, with what was measured: `seconds` of kernels, `prefill_tok_s` and `decode_tok_s` of
    batch-1 rows, `ttft_ms` and `tpot_ms` of serving points. A grouping whose columns the table lacks is skipped.
    Raises RecordError when nothing was measured or predicted.
    """
    if "expected_s" not in predicted:
        raise RecordError("the table has no column expected_s: run predict on it first")
    table = with_bands(predicted)
    rows: list[dict[str, object]] = []
    for measure in MEASURES:
        if measure.predicted.format("expected") in table:
            rows += _score(measure, measure.rows(table), groupings)
    if not rows:
        raise RecordError("the table has no measured times: score needs a column seconds > 0 (or of another measure, ttft_ms …)")
    return rows


def _score(measure: Measure, table: pd.DataFrame, groupings: Sequence[tuple[str, ...]]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for grouping in groupings:
        if not len(table) or any(name not in table for name in grouping):
            continue
        for values, part in table.groupby(list(grouping), sort=True, dropna=False):
            figures = summary(part, rate=measure.rate)
            words = dict(zip(grouping, values, strict=True))
            rows.append({"measure": measure.name, "by": " × ".join(grouping), **words, **figures})
    return rows


def suspects(predicted: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured faster than their hard bound: mislabelled, cached where they should not be, or mistimed."""
    if "seconds" not in predicted:
        return predicted.iloc[:0]
    table = predicted.assign(seconds=tables.number(predicted, "seconds"))
    fast: pd.Series = (table["seconds"] > 0) & (table["seconds"] < table["bound_s"])
    return table.loc[fast]


def with_bands(predicted: pd.DataFrame) -> pd.DataFrame:
    """The table, words in one spelling, with the size band of each kernel row in `band`, and `seconds` in seconds.

    `dtype` of a row that only says its `kv_dtype` is that.
    """
    table = tables.normalised(predicted)
    band = pd.Series("", index=table.index, dtype=object)
    for name in tables.kinds(table):
        form = FORMS[name]
        part = table[table["op"] == name]
        shape, errors = tables.shape_errors(form, part)
        dtype = part["kv_dtype"] if "kv_dtype" in form.keys and "kv_dtype" in part else pd.Series("", index=part.index)
        for kind, rows in dtype.groupby(dtype):
            at = part.index.get_indexer(rows.index)
            index = form.band({n: v[at] for n, v in shape.items()}, Key("", kv_dtype=str(kind) if kind in ("fp8", "bf16") else "bf16"))
            band[rows.index] = np.asarray(form.bands, dtype=object)[index]
        band[part.index[(errors != "").to_numpy()]] = ""
    if "kv_dtype" in table:
        table["dtype"] = table["dtype"].where(table["dtype"] != "", table["kv_dtype"]) if "dtype" in table else table["kv_dtype"]
    return table.assign(band=band)
