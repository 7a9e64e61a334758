"""Rates, roofs and intervals, worked by hand."""

from __future__ import annotations

import pytest

from microbench.summary import TABLE, Roofs, kernel_rows, measured_roofs, rows, sustained
from roofline.records import Measurement


def made(op: str, samples: list[float], flops: float, moved: float, *, sentinel: str = "", dtype: str = "fp32", **shape) -> Measurement:
    notes = {"flops": flops, "bytes": moved, "compute": "fp32", "stop": "precise"} | ({"sentinel": sentinel} if sentinel else {})
    return Measurement(op, shape, "cpu", dtype, tuple(samples), "m", "e", {"torch": "2"}, True, notes=notes)


def test_roofs_are_the_fastest_samples() -> None:
    found = measured_roofs(
        [
            made("gemm", [1.0, 2.0], 100.0, 1.0, m=1, n=1, k=1),
            made("gemm", [1.0], 1e6, 1.0, dtype="int4", m=1, n=1, k=1),
            made("stream", [2.0, 4.0], 0.0, 80.0, kernel="copy", level="memory"),
            made("stream", [1.0], 0.0, 1e9, kernel="copy", level="L2"),
        ]
    )
    assert found == Roofs({"fp32": 100.0}, 40.0, "measured in this run")


def test_bound_is_the_larger_of_two_times() -> None:
    of = Roofs({"fp32": 100.0}, 10.0, "x")
    assert of.bound_s(1000.0, 10.0, "fp32") == 10.0
    assert of.bound_s(10.0, 1000.0, "fp32") == 100.0
    assert of.bound_s(0.0, 5.0, "") == 0.5
    assert of.bound_s(1.0, 1.0, "fp8") is None
    assert Roofs({}, None, "x").bound_s(0.0, 1.0, "") is None


def test_sustained_tells_a_device_that_slows_down() -> None:
    assert sustained(made("gemm", [1.0] * 10 + [1.2] * 10, 1.0, 1.0, m=1, n=1, k=1)) == pytest.approx(1.2)
    assert sustained(made("gemm", [1.0] * 10, 1.0, 1.0, m=1, n=1, k=1)) is None


def test_rows_have_rates_and_shares_and_leave_sentinels_out() -> None:
    found = rows(
        [
            made("gemm", [2.0], 100.0, 10.0, m=16, n=1, k=1),
            made("gemm", [2.0], 100.0, 10.0, m=2, n=1, k=1),
            made("gemm", [2.0], 1.0, 1.0, sentinel="start", m=9, n=1, k=1),
            made("gemm", [3.0], 1.0, 1.0, sentinel="end", m=9, n=1, k=1),
        ],
        Roofs({"fp32": 100.0}, 100.0, "x"),
    )
    assert [row["shape"] for row in found] == ["m=2 n=1 k=1", "m=16 n=1 k=1"]
    assert found[0]["flop_per_s"] == 50.0
    assert found[0]["bytes_per_s"] == 5.0
    assert found[0]["of_bound"] == 0.5
    assert found[0]["high_s"] == pytest.approx(3.0)  # the sentinels moved by half


def test_a_stream_that_stays_in_a_cache_has_no_share_of_the_roof_of_memory() -> None:
    streams = [made("stream", [1.0], 0.0, 80.0, level=level) for level in ("L1d", "L3", "memory")]
    cached, also, memory = rows(streams, Roofs({}, 40.0, "x"))
    assert [(row["level"], row["bound_s"], row["of_bound"]) for row in (cached, also)] == [("L1d", None, None), ("L3", None, None)]
    assert (memory["level"], memory["bound_s"], memory["of_bound"]) == ("", 2.0, 2.0)


def test_kernel_rows_are_the_columns_of_a_table() -> None:
    shape = {"batch": 2, "context": 7, "heads": 4, "kv_heads": 2, "head_dim": 8, "window": 0, "kv_dtype": "fp32", "kernel": "flash"}
    (row,) = kernel_rows([made("decode_attention", [1.0, 3.0], 1.0, 1.0, **shape), made("stream", [1.0], 0.0, 1.0, level="L2")])
    assert set(row) <= set(TABLE)
    assert row["seconds"] == 2.0
    assert row["hardware"] == "cpu"
    assert row["operands"] == "cold"
