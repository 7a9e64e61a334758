"""Calibration blocks: the constants of one kernel family on one device, with where they come from."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Provenance(BaseModel):
    """Where constants come from: nobody has to believe a number that they cannot trace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    version: str = ""
    rows: int = 0
    split: str = ""
    held_out_error: float | None = None  # median |predicted / measured - 1| of rows that were not fitted
    date: str = ""


class CalibrationBlock(BaseModel):
    """Constants of a kernel family for (software, kernel, dtype) of one device; names of constants carry their unit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    family: str  # gemm, decode_attention, prefill_attention, mla_decode, mla_prefill, moe, collective, step, single_stream
    software: str
    software_version: str = ""
    dtype: str = ""
    kernel: str = ""
    form: str = ""
    constants: dict[str, float]
    correction_percent: tuple[int, ...] = ()
    interval_log_quantiles: dict[str, tuple[float, float]] = {}  # size band → 10 % and 90 % quantile of log(measured / expected)
    provenance: Provenance
