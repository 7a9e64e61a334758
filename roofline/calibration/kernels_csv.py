"""Kernel lists of Nsight Systems and Nsight Compute: CSV exports as rows of (kernel name, kind of op, seconds)."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

from roofline.errors import RecordError

_KINDS = (  # first match wins: attention before GEMM, since attention kernels are full of GEMM words
    ("mla_decode", r"flashmla|flash_mla|mla_(fwd|decode)|mqa_decode"),
    ("decode_attention", r"paged_attention|flash_fwd_splitkv|decode_attention|batchdecode|mmha|masked_multihead|xqa"),
    ("prefill_attention", r"flash_fwd|fmha|batchprefill|prefill_attention|flash_attn|extend_attention|unified_attention"),
    ("moe", r"fused_moe|moe_gemm|grouped_gemm|grouped_mm|expert"),
    ("collective", r"nccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|one_?shot|two_?shot"),
    ("gemm", r"gemm|gemv|cutlass|cublas|nvjet|matmul|wgmma|xmma|marlin|machete"),
    ("elementwise", r"norm|rope|rotary|silu|gelu|act_and_mul|elementwise|quant|copy|cat|softmax|topk|argmax|sampl|index|embedding"),
)  # fmt: skip
_NAME = ("Name", "Kernel Name", "name")
_TIME = {
    "Duration (ns)": 1e-9, "Duration:dur_ns": 1e-9, "Avg (ns)": 1e-9, "Med (ns)": 1e-9, "Total Time (ns)": 1e-9,
    "gpu__time_duration.sum": 1e-9, "Duration (us)": 1e-6, "Duration (usecond)": 1e-6, "Duration": 1e-9,
}  # fmt: skip


def kind_of(kernel: str) -> str:
    """The kind of op that a CUDA kernel's name says it is; "" when no rule knows it."""
    lower = kernel.lower()
    return next((kind for kind, pattern in _KINDS if re.search(pattern, lower)), "")


def read(path: Path | str) -> pd.DataFrame:
    """Rows of a kernel list: kernel_name, op (as far as the name tells), seconds. No shapes: exports do not have them.

    Reads `nsys stats --report cuda_gpu_trace|cuda_gpu_kern_sum --format csv` and `ncu --csv` (lines before the header, starting
    with "==", are skipped). Raises RecordError when no column of names and times is found.
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    start = next((i for i, line in enumerate(lines) if any(f'"{name}"' in line or name in line.split(",") for name in _NAME)), None)
    if start is None:
        columns = " or ".join(map(repr, _NAME[:2]))
        raise RecordError(f"{path}: no header with a column {columns}: export with nsys stats --format csv or ncu --csv")
    frame = pd.read_csv(path, skiprows=start, low_memory=False)
    name = next(column for column in _NAME if column in frame)
    time = next((column for column in _TIME if column in frame), None)
    if time is None:
        raise RecordError(f"{path}: no column of times; known: {', '.join(_TIME)}")
    seconds = pd.to_numeric(frame[time].astype(str).str.replace(",", ""), errors="coerce") * _TIME[time]
    rows = pd.DataFrame({"kernel_name": frame[name].astype(str), "seconds": seconds}).dropna()
    return rows.assign(op=rows["kernel_name"].map(kind_of))
