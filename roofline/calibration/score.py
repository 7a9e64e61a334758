"""How good predictions are: error, bias, coverage, width and roof violations, by kind, device, dtype and size band."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from roofline.calibration import tables
from roofline.errors import RecordError
from roofline.timing.forms import FORMS, Key

GROUPINGS = (("op",), ("op", "hardware"), ("op", "dtype"), ("op", "band"))


def summary(rows: pd.DataFrame, measured: str = "seconds", predicted: str = "expected_s") -> dict[str, float]:
    """Figures of predicted against measured rows, shares and errors as fractions (0.05 = 5 %).

    A row without a prediction counts as 100 % wrong, and outside of every interval for `median_error` and `p90_error` only.
    bias: median of predicted / measured − 1. width: median of high / low. below_bound: share of rows faster than the bound.
    """
    value = pd.to_numeric(rows[measured], errors="coerce")
    rows = rows[value.notna() & (value > 0)]
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
        found["below_bound"] = float((value < rows["bound_s"])[done].mean())
    return found


def score_table(predicted: pd.DataFrame, groupings: Sequence[tuple[str, ...]] = GROUPINGS) -> list[dict[str, object]]:
    """One row per group of each grouping: the group's words and its `summary`.

    predicted: what `predict_table` returned, with measured `seconds`. A grouping whose columns the table lacks is skipped.
    Raises RecordError when nothing was measured or predicted.
    """
    if "expected_s" not in predicted:
        raise RecordError("the table has no column expected_s: run predict on it first")
    table = with_bands(predicted)
    if "seconds" not in table or not (pd.to_numeric(table["seconds"], errors="coerce") > 0).any():
        raise RecordError("the table has no measured times: score needs a column seconds > 0")
    rows: list[dict[str, object]] = []
    for grouping in groupings:
        columns = [name for name in grouping if name in table]
        if len(columns) < len(grouping):
            continue
        for values, part in table.groupby(columns, sort=True, dropna=False):
            figures = summary(part)
            if figures["rows"]:
                rows.append({"by": " × ".join(columns), **dict(zip(columns, values, strict=True)), **figures})
    return rows


def suspects(predicted: pd.DataFrame) -> pd.DataFrame:
    """Rows that were measured faster than their hard bound: mislabelled, cached where they should not be, or mistimed."""
    seconds = pd.to_numeric(predicted["seconds"], errors="coerce")
    return predicted[(seconds < predicted["bound_s"]) & predicted["bound_s"].notna()]


def with_bands(predicted: pd.DataFrame) -> pd.DataFrame:
    """The table, words in one spelling, with the size band of each kernel row in `band`, and `seconds` in seconds."""
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
    return table.assign(band=band)
