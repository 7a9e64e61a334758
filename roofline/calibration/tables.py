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
_LARGEST = 1e15  # of any count: products of a few still are finite numbers
_SIXTEEN_BITS = {"kv_dtype": ("decode_attention", "prefill_attention", "mla_decode", "mla_prefill"), "dtype": ("prefill_attention",)}


def read(path: Path | str) -> pd.DataFrame:
    """The table in a CSV or parquet file, as written. Raises RecordError for what is no table, with the file's name."""
    path = Path(path)
    if not path.exists():
        raise RecordError(f"{path}: there is no such file")
    if path.is_dir():
        raise RecordError(f"{path}: is a folder; name a CSV or parquet file in it")
    try:
        parquet = path.suffix.lower() in (".parquet", ".pq")
        frame = pd.read_parquet(path) if parquet else _csv(path)
    except ImportError:
        raise MissingDependencyError("pyarrow", "parquet", "reading parquet") from None
    except (ValueError, OSError, UnicodeDecodeError) as error:  # pandas and pyarrow errors are ValueErrors
        raise RecordError(f"{path}: is not a table that can be read: {str(error).splitlines()[0]}") from None
    if not len(frame):
        raise RecordError(f"{path}: the table has no rows")
    frame.attrs["path"] = str(path)
    return frame


def _csv(path: Path) -> pd.DataFrame:
    """A CSV file whose header fits its rows. Raises RecordError where it does not."""
    header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].astype(str)
    if twice := header[header.duplicated()].tolist():
        raise RecordError(f"{path}: the column {twice[0]!r} is there twice; keep one")
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        raise RecordError(f"{path}: columns are separated by semicolons or tabs; write them with commas")
    frame = pd.read_csv(path, low_memory=False)
    if not isinstance(frame.index, pd.RangeIndex):
        raise RecordError(f"{path}: rows have more fields than the header has columns")
    return frame


def normalised(frame: pd.DataFrame, op: str = "") -> pd.DataFrame:
    """A copy with one spelling for each word, `seconds` in seconds, and the numeric columns that forms need.

    Adds `alpha` (from routing) and `matrices` to MoE rows, `kernel` to collectives, 0 for a missing window or past_tokens, and
    bf16 for a blank type of attention or its cache.
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
    for column, ops in _SIXTEEN_BITS.items():
        rows = table["op"].isin(ops)
        if rows.any():
            words = table[column] if column in table else pd.Series("", index=table.index, dtype=object)
            table[column] = words.mask(rows & (words == ""), "bf16")
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
        exponent = float(name.removeprefix("power_law_"))
    except ValueError:
        return float("nan")
    return exponent if 0 < exponent <= 10 else float("nan")


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
    """(numeric columns of `form` as float arrays, an error text per row or ""). Raises RecordError for a missing column.

    Rows with an error hold harmless numbers.
    """
    require(table, form.columns, form.family)
    errors = pd.Series("", index=table.index, dtype=object)
    shape: dict[str, np.ndarray] = {}
    for name in form.columns:
        values = pd.to_numeric(table[name], errors="coerce").to_numpy(dtype=np.float64)
        floor = -np.inf if name == "alpha" else 0.0 if name in _MAY_BE_ZERO else 1.0
        bad = ~((values >= floor) & (values < _LARGEST))
        if bad.any():
            text = f"{name}: must be a number ≥ {floor:g} and < {_LARGEST:g}"
            errors[bad & (errors == "").to_numpy()] = text if name != "alpha" else "routing: unknown; balanced, uniform or power_law_NUMBER"
        shape[name] = np.where(bad, np.nan, values)
    for text, rows in form.impossible(shape).items():
        errors[rows & (errors == "").to_numpy()] = text
    wrong = (errors != "").to_numpy()
    shape = {name: np.where(wrong, 0.0 if name in _MAY_BE_ZERO else 2.0, values) for name, values in shape.items()}
    return shape, errors


def kinds(table: pd.DataFrame) -> list[str]:
    """The kernel families among the table's ops, in the order of FORMS."""
    return [name for name in FORMS if (table["op"] == name).any()]
