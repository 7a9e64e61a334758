"""Start-up logs of real engines as test cases: rows of tests/data/startup_logs.csv and what they ran."""

from __future__ import annotations

import csv
from pathlib import Path

from roofline.ledger import Parallel, Precision
from roofline.profiles.catalog import load_model
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model

DATA = Path(__file__).parent.parent / "data"
GiB = 2**30
Row = dict[str, str]

_PROFILES = {
    "llama3-8b": "llama-3.1-8b",
    "llama3-70b": "llama-3.1-70b",
    "llama32-3b": "llama-3.2-3b",
    "mistral-7b": "mistral-7b-v0.1",
    "minimax-m2": "minimax-m2.5",
    "qwen25-0.5b": "qwen2.5-0.5b",
    "qwen25-1.5b": "qwen2.5-1.5b",
    "qwen25-7b": "qwen2.5-7b",
    "qwen25-14b": "qwen2.5-14b",
}
_FORMATS = {
    "int4": "int4",
    "awq int4": "int4",
    "gptq int4": "int4",
    "int4 bnb": "nf4",
    "fp8": "fp8",
    "int8 w8a8": "int8",
    "gguf q8_0": "w8a16",
    "mxfp4": "mxfp4",
}


def rows() -> list[Row]:
    with (DATA / "startup_logs.csv").open() as file:
        return list(csv.DictReader(file))


def row(name: str) -> Row:
    return next(r for r in rows() if r["id"] == name)


def model(key: str) -> Model:
    """The shipped profile of a row's model_key."""
    return load_model(_PROFILES.get(key, key))


def device(memory_bytes: float, name: str = "test-device", **facts: object) -> Hardware:
    return Hardware(id=name, vendor="NVIDIA", name=name, memory_bytes=memory_bytes, memory_bandwidth=1e12, peaks={"bf16": 1e14}, **facts)


def layout(r: Row) -> Parallel:
    return Parallel(tp=int(r["tp"] or 1), dcp=int(r["dcp"] or 1))


def precision(r: Row) -> Precision:
    kv = "bf16" if r["kv_dtype"] in ("", "f16") else r["kv_dtype"]
    return Precision(weights=_FORMATS.get(r["weight_dtype"]), kv=kv)


def number(r: Row, key: str) -> float | None:
    return float(r[key]) if r[key] else None


def count(r: Row, key: str) -> int | None:
    return int(float(r[key])) if r[key] else None
