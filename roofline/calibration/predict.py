"""Predicts a table of kernels: each row gets a bound, an expectation, an interval, and what constants were used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd

from roofline.calibration import tables
from roofline.calibration.single_stream import predict_streams
from roofline.errors import InputError, RooflineError
from roofline.profiles.calibration import CalibrationBlock
from roofline.profiles.catalog import load_hardware
from roofline.profiles.hardware import Hardware
from roofline.timing.forms import FORMS, Form, Key
from roofline.timing.kernels import kernel_times
from roofline.timing.spec import device_spec

TIMES = ("bound_s", "expected_s", "low_s", "high_s")
Blocks = Mapping[str, Sequence[CalibrationBlock]]  # device id → blocks that go before the shipped ones
Predictor = Callable[[pd.DataFrame, bool], pd.DataFrame]  # rows of one other kind, hot → columns to add, same index


def predict_table(
    source: Path | str | pd.DataFrame,
    *,
    operands: str = "hot",
    op: str = "",
    blocks: Blocks | None = None,
    others: Mapping[str, Predictor] | None = None,
) -> pd.DataFrame:
    """The table with bound_s, expected_s, low_s, high_s (seconds), `calibration` (constants used) and `error` added to each row.

    source: a CSV or parquet file or a frame, one kernel per row (columns of docs/reference/tables.md). operands: "hot" (kernel
    tables) or "cold" (plans). op: kind of all rows where there is no column `op`. blocks: by device id, instead of shipped ones.
    others: predictors of further kinds of row (serving). A row that cannot be predicted gets an `error`.
    Raises RecordError for a table that is none.
    """
    if operands not in ("hot", "cold"):
        raise InputError(f"operands must be hot or cold, not {operands!r}")
    frame = tables.read(source) if not isinstance(source, pd.DataFrame) else source
    table = tables.normalised(frame, op)
    out = frame.copy()
    added = pd.DataFrame({**dict.fromkeys(TIMES, np.nan), "calibration": "", "error": ""}, index=table.index)
    further: dict[str, Predictor] = {"single_stream": predict_streams, **(others or {})}
    known = [*FORMS, *further]
    unknown = ~table["op"].isin(known)
    added.loc[unknown, "error"] = table.loc[unknown, "op"].map(lambda kind: f"op: unknown kind {kind!r}; known: {', '.join(known)}")
    for name in tables.kinds(table):
        _predict_kind(FORMS[name], table[table["op"] == name], added, operands == "hot", blocks or {})
    for name, predictor in further.items():
        rows = table[table["op"] == name]
        if len(rows):
            extra = predictor(rows, operands == "hot")
            for column in extra:
                added.loc[rows.index, column] = extra[column]
    for column in added:
        out[column] = added[column]
    return out


def _predict_kind(form: Form, table: pd.DataFrame, added: pd.DataFrame, hot: bool, blocks: Blocks) -> None:
    """Fills the added columns of the rows of one kernel family."""
    shape, errors = tables.shape_errors(form, table)
    position = pd.Series(np.arange(len(table)), index=table.index)
    columns = ["hardware", *(name for name in form.keys if name in table)]
    for values, part in table.groupby(columns, sort=False):
        words = dict(zip(columns, map(str, values), strict=True))
        at = position[part.index].to_numpy()
        try:
            hardware = _hardware(words.pop("hardware"))
            own = blocks.get(hardware.id, hardware.calibration)
            rows = {name: column[at] for name, column in shape.items()}
            times, used = kernel_times(form.family, rows, Key(**{"software": "", **words}), device_spec(hardware), hot=hot, own=own)
        except RooflineError as error:
            added.loc[part.index, "error"] = str(error)
            continue
        for name in TIMES:
            added.loc[part.index, name] = getattr(times, name)
        added.loc[part.index, "calibration"] = used
    wrong = errors != ""
    if wrong.any():
        added.loc[errors.index[wrong], [*TIMES]] = np.nan
        added.loc[errors.index[wrong], "error"] = errors[wrong]


@lru_cache(maxsize=256)
def _hardware(name: str) -> Hardware:
    if not name:
        raise InputError("hardware: is empty; name a device profile (roofline hardware list)")
    return load_hardware(name)
