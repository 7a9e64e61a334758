"""Measurement tables: reading CSV and parquet, one spelling for each word, and an error for each row that cannot be used."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from roofline.errors import MissingDependencyError, RecordError
from roofline.timing.forms import FORMS, Form
from roofline.timing.forms.moe import UNIFORM

DTYPES = {
    "bfloat16": "bf16", "float16": "bf16", "half": "bf16", "fp16": "bf16", "16-bit": "bf16", "f16": "bf16", "auto": "bf16",
    "fp4": "nvfp4", "w4a4": "nvfp4", "fp8_e4m3": "fp8", "float8": "fp8", "float8_e4m3fn": "fp8", "fp8_dynamic": "fp8",
    "int4_wo": "w4a16", "int4": "w4a16", "awq": "w4a16", "gptq": "w4a16", "int8_wo": "w8a16", "int8": "w8a8",
}  # fmt: skip
SOFTWARE = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trt-llm": "trtllm"}
_TIME_UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "ms": 1e-3, "microseconds": 1e-6, "us": 1e-6}
_WORDS = ("op", "hardware", "software", "software_version", "kernel", "dtype", "kv_dtype", "collective", "routing", "split")
_OPTIONAL = {"window": 0.0, "past_tokens": 0.0, "tp": 1.0, "ep": 1.0}
_MAY_BE_ZERO = ("window", "past_tokens", "alpha")


def read(path: Path | str) -> pd.DataFrame:
    """The table in a CSV or parquet file, as written. Raises RecordError for what is no table, with the file's name."""
    path = Path(path)
    if not path.is_file():
        raise RecordError(f"{path}: there is no such file")
    try:
        parquet = path.suffix.lower() in (".parquet", ".pq")
        frame = pd.read_parquet(path) if parquet else pd.read_csv(path, low_memory=False)
    except ImportError:
        raise MissingDependencyError("pyarrow", "parquet", "reading parquet") from None
    except (ValueError, OSError, UnicodeDecodeError) as error:  # pandas and pyarrow errors are ValueErrors
        raise RecordError(f"{path}: is not a table that can be read: {str(error).splitlines()[0]}") from None
    if not len(frame):
        raise RecordError(f"{path}: the table has no rows")
    frame.attrs["path"] = str(path)
    return frame


def normalised(frame: pd.DataFrame, op: str = "") -> pd.DataFrame:
    """A copy with one spelling for each word, `seconds` in seconds, and the numeric columns that forms need.

    Adds `alpha` (from routing) and `matrices` to MoE rows, `kernel` to collectives, and 0 for a missing window or past_tokens.
    op: kind of all rows, where the table has no column `op`. Raises RecordError for a missing column or two time columns.
    """
    table = frame.copy()
    where = frame.attrs.get("path", "table")
    if op:
        table["op"] = op
    for column, what in (("op", "the kind of kernel (or pass --op)"), ("hardware", "a device profile's name")):
        if column not in table:
            raise RecordError(f"{where}: the column {column!r} is missing: it names {what}")
    for column in _WORDS:
        if column in table:
            table[column] = table[column].astype(object).where(table[column].notna(), "").astype(str).str.strip()
    for column in ("dtype", "kv_dtype"):
        if column in table:
            lower = table[column].str.lower()
            keep = table["op"] == "collective"
            table[column] = lower.where(keep, lower.map(lambda d: DTYPES.get(d, d)))
    if "software" in table:
        table["software"] = table["software"].str.lower().map(lambda s: SOFTWARE.get(s, s))
    _time(table, where)
    _moe(table)
    if "collective" in table:
        table["kernel"] = table["collective"].where(table["op"] == "collective", table.get("kernel", ""))
    for column, default in _OPTIONAL.items():
        table[column] = table[column].fillna(default) if column in table else default
    return table


def _time(table: pd.DataFrame, where: str) -> None:
    given = [name for name in _TIME_UNITS if name in table]
    if len(given) > 1:
        raise RecordError(f"{where}: times are given in {' and '.join(given)}; keep one column")
    if given and given[0] != "seconds":
        table["seconds"] = pd.to_numeric(table.pop(given[0]), errors="coerce") * _TIME_UNITS[given[0]]


def _moe(table: pd.DataFrame) -> None:
    rows = table["op"] == "moe"
    if not rows.any():
        return
    if "routing" in table:
        table["alpha"] = table["routing"].map(_alpha)
    elif "alpha" not in table:
        table["alpha"] = UNIFORM
    if "matrices" not in table:
        table["matrices"] = np.where(_plain_experts(table), 2.0, 3.0)


def _alpha(routing: str) -> float:
    """The exponent in a routing's name: balanced 0, uniform −1, power_law_1.2 → 1.2; NaN for an unknown one."""
    name = routing.lower()
    if name in ("balanced", "uniform", ""):
        return 0.0 if name == "balanced" else UNIFORM
    try:
        return float(name.removeprefix("power_law_"))
    except ValueError:
        return float("nan")


def _plain_experts(table: pd.DataFrame) -> pd.Series:
    """Nemotron's experts (top 22, or 2688 × 1856) have no gate: two matrices (their published configurations: relu²)."""
    top_k, hidden, inner = (number(table, name) for name in ("top_k", "hidden", "intermediate"))
    return pd.Series((top_k == 22) | ((hidden == 2688) & (inner == 1856)))


def number(table: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers, NaN where it holds none or does not exist."""
    return pd.Series(pd.to_numeric(table[name], errors="coerce") if name in table else np.nan, index=table.index, dtype=np.float64)


def require(table: pd.DataFrame, columns: Sequence[str], op: str) -> None:
    """Raises RecordError when a column that rows of `op` need is missing."""
    missing = [name for name in columns if name not in table]
    if missing:
        where = table.attrs.get("path", "table")
        raise RecordError(f"{where}: rows of {op} need the columns {', '.join(columns)}; missing: {', '.join(missing)}")


def shape_errors(form: Form, table: pd.DataFrame) -> tuple[dict[str, np.ndarray], pd.Series]:
    """(numeric columns of `form` as float arrays, an error text per row or ""). Raises RecordError for a missing column."""
    require(table, form.columns, form.family)
    errors = pd.Series("", index=table.index, dtype=object)
    shape: dict[str, np.ndarray] = {}
    for name in form.columns:
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
        floor = -np.inf if name == "alpha" else 0.0
        bad = ~np.isfinite(values) | (values < floor) | ((values == 0) & (name not in _MAY_BE_ZERO))
        if bad.any():
            text = f"{name}: must be a number {'≥' if name in _MAY_BE_ZERO else '>'} 0"
            errors[bad & (errors == "").to_numpy()] = text if name != "alpha" else "routing: unknown; balanced, uniform or power_law_NUMBER"
        shape[name] = np.where(bad, 1.0, values)
    return shape, errors


def kinds(table: pd.DataFrame) -> list[str]:
    """The kernel families among the table's ops, in the order of FORMS."""
    return [name for name in FORMS if (table["op"] == name).any()]
