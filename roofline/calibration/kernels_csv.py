"""Kernel lists of Nsight Systems and Nsight Compute: CSV exports as rows of measured kernels, as far as names tell what they are."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pandas as pd

from roofline.errors import RecordError
from roofline.timing.forms import FORMS

_KINDS = (  # first match wins: attention before GEMM, since attention kernels are full of GEMM words
    ("mla_decode", r"flashmla|flash_mla|mla_(fwd|decode)|mqa_decode"),
    ("decode_attention", r"paged_attention|flash_fwd_splitkv|decode_attention|batchdecode|mmha|masked_multihead|xqa"),
    ("prefill_attention", r"flash_fwd|fmha|batchprefill|prefill_attention|flash_attn|extend_attention|unified_attention"),
    ("moe", r"fused_moe|moe_gemm|grouped_gemm|grouped_mm|expert"),
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|one_?shot|two_?shot"),
    ("gemm", r"gemm|gemv|cutlass|cublas|nvjet|matmul|wgmma|xmma|marlin|machete"),
    ("elementwise", r"norm|rope|rotary|silu|gelu|act_and_mul|elementwise|quant|copy|cat|softmax|topk|argmax|sampl|index|embedding"),
)  # fmt: skip
UNMAPPED = "unmapped"  # op of a kernel whose name no rule knows
_NAME = ("Kernel Name", "Name")
_TIMES = ("gpu__time_duration.sum", "Duration (ns)", "Duration:dur_ns", "Med (ns)", "Avg (ns)", "Duration")
_UNITS = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3, "s": 1.0, "second": 1.0, "": 1e-9,
}  # fmt: skip
_DEVICE = "device__attribute_display_name"
_PREAMBLE = 200  # lines in which a header is looked for: what a profiled program printed comes before it


def kind_of(kernel: str) -> str:
    """The kind of op that a CUDA kernel's name says it is; "" when no rule knows it."""
    lower = kernel.lower()
    return next((kind for kind, pattern in _KINDS if re.search(pattern, lower)), "")


def is_kernel_list(path: Path | str) -> bool:
    """Whether a file is such an export and no table of ours: a column of kernel names and one of times, and no column op."""
    path = Path(path)
    if path.suffix.lower() != ".csv" or not path.is_file():
        return False
    header = _header(path)
    return header is not None and "op" not in header[1]


def read(path: Path | str) -> pd.DataFrame:
    """Rows of a kernel list: op (as far as the name tells), kernel_name, seconds of one run, calls where the list counts them,
    hardware where it names the device; further columns that somebody added (m, n, k, software …) are kept.

    Reads `nsys stats --format csv` of cuda_gpu_trace and cuda_gpu_kern_sum (the median of a kernel's runs) and `ncu --csv` with
    --page raw (its line of units is heeded) or details. Exports have no shapes: the columns of numbers that a kind needs are there,
    blank, to be filled in. Raises RecordError when no column of names and times is found.
    """
    path = Path(path)
    found = _header(path)
    if found is None:
        raise RecordError(
            f"{path}: no header with a column of kernel names and one of times: export with nsys stats --format csv or ncu --csv --page raw"
        )
    skip, columns = found
    frame = pd.read_csv(path, skiprows=skip, dtype=str, keep_default_na=False, skip_blank_lines=True)
    frame = _durations(frame) if "Metric Name" in columns else frame
    name = next(column for column in _NAME if column in frame)
    time = next(column for column in _TIMES if column in frame)
    units = frame.pop("Metric Unit") if "Metric Unit" in frame else _unit_of(frame, name, time)
    frame = frame[frame[name] != ""]
    rows = pd.DataFrame({"op": frame[name].map(lambda kernel: kind_of(kernel) or UNMAPPED), "kernel_name": frame[name]})
    rows["seconds"] = _number(frame[time]) * (units if isinstance(units, float) else units[frame.index].map(_unit))
    if "Instances" in frame:
        rows["calls"] = _number(frame["Instances"])
    if _DEVICE in frame:
        rows["hardware"] = frame[_DEVICE]
    ours = {column for form in FORMS.values() for column in (*form.columns, *form.keys)} | {"hardware", "software", "collective", "routing"}
    for column in sorted(ours & set(frame)):
        rows[column] = frame[column]
    for kind in sorted(set(rows["op"]) & set(FORMS)):
        for column in FORMS[kind].columns:
            if column not in rows and column not in ("alpha", "matrices"):
                rows[column] = np.nan
    rows = rows[rows["seconds"].notna()].reset_index(drop=True)
    rows.attrs["path"] = str(path)
    return rows


def overview(rows: pd.DataFrame) -> list[str]:
    """Time by kind of op, the longest first, and the kernels of unknown name that take most of it, as lines of text."""
    calls = rows["calls"] if "calls" in rows else pd.Series(1.0, index=rows.index)
    total = rows["seconds"] * calls
    whole = float(total.sum()) or 1.0
    lines = []
    for op, seconds in total.groupby(rows["op"]).sum().sort_values(ascending=False).items():
        lines.append(f"  {op}: {calls[rows['op'] == op].sum():,.0f} runs, {1e3 * seconds:.4g} ms, {100 * seconds / whole:.3g} %")
    unknown = rows["op"] == UNMAPPED
    names = total[unknown].groupby(rows["kernel_name"][unknown]).sum().sort_values(ascending=False)
    lines += [f"  unmapped: {str(name)[:90]} ({1e3 * seconds:.4g} ms)" for name, seconds in names[:5].items()]
    return lines


def _header(path: Path) -> tuple[int, list[str]] | None:
    """(lines before the header, its fields), or None without one."""
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            lines = list(islice(file, _PREAMBLE))
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    for number, fields in _fields(lines):
        names, times = (any(column in fields for column in wanted) for wanted in (_NAME, (*_TIMES, "Metric Name")))
        if names and times:
            return number, fields
    return None


def _fields(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines):
        if not line.startswith("=="):
            yield number, [field.strip() for field in next(csv.reader([line]), [])]


def _durations(frame: pd.DataFrame) -> pd.DataFrame:
    """Of the details page, one line per metric, those of the duration."""
    rows = frame[frame["Metric Name"].isin(("Duration", "gpu__time_duration.sum"))]
    return rows.rename(columns={"Metric Value": "Duration"})


def _unit_of(frame: pd.DataFrame, name: str, time: str) -> float:
    """Seconds per unit of a column of times: of its name, or of the line of units below the header of a raw page."""
    if len(frame) and frame[name].iloc[0] == "":
        return _unit(frame[time].iloc[0])
    return _UNITS["ns"]


def _unit(word: str) -> float:
    if word.strip().lower() not in _UNITS:
        raise RecordError(f"unit of time {word!r}: known are {', '.join(filter(None, _UNITS))}")
    return _UNITS[word.strip().lower()]


def _number(column: pd.Series) -> pd.Series:
    """Numbers, with or without separators of thousands."""
    return pd.Series(pd.to_numeric(column.str.replace(",", ""), errors="coerce"), index=column.index, dtype=np.float64)
