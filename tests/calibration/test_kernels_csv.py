"""Kernel lists in the layouts that Nsight Systems and Nsight Compute write: names, units, what is known of them and what is not."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd
import pytest

from roofline.calibration.kernels_csv import is_kernel_list, overview, read
from roofline.errors import RecordError
from tests.cli.conftest import CHECKOUT, Cli, cli  # noqa: F401  a fixture

LISTS = CHECKOUT / "tests" / "data" / "kernel_lists"  # small, in the layouts of nsys 2025 and ncu 2025; names of public kernels
SUMMARY, RAW = ((LISTS / f"{name}.csv").read_text(encoding="utf-8") for name in ("nsys_kern_sum", "ncu_raw"))


def written(folder: Path, text: str) -> Path:
    path = folder / "kernels.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nsys_kern_sum", [("gemm", 19e-6), ("decode_attention", 12.5e-6), ("elementwise", 3.1e-6), ("unmapped", 20e-6)]),
        ("nsys_trace", [("gemm", 15.232e-6), ("unmapped", 0.9e-6)]),
        ("ncu_raw", [("gemm", 19.04e-6), ("unmapped", 1.2035e-3)]),
        ("ncu_details", [("collective", 14.5e-6), ("moe", 1.25e-3)]),
    ],
)
def test_every_layout_gives_kinds_and_seconds_of_one_run(name: str, expected: list[tuple[str, float]]) -> None:
    path = LISTS / f"{name}.csv"
    assert is_kernel_list(path)
    rows = read(path)
    assert rows["op"].tolist() == [op for op, _ in expected]
    assert rows["seconds"].tolist() == pytest.approx([seconds for _, seconds in expected])
    assert not rows["kernel_name"].str.startswith("==").any()


def test_times_of_kinds_count_every_run_and_unknown_kernels_are_listed(tmp_path: Path) -> None:
    lines = overview(read(written(tmp_path, SUMMARY)))
    assert lines[0] == "  gemm: 3,200 runs, 60.8 ms, 61.6 %"
    assert lines[-1].startswith("  unmapped: void who_knows_what<float>(float *, int) (8 ms)")
    assert len(lines) == 5


def test_the_device_that_a_raw_page_names_is_known(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    done = cli("predict", written(tmp_path, RAW))
    rows = pd.read_csv(io.StringIO(done.out))
    assert done.code == 0
    assert rows["hardware"].tolist() == ["NVIDIA H100 80GB HBM3"] * 2
    assert rows["error"][0] == "m: must be a number ≥ 1 and < 1e+15"
    assert "unknown kind 'unmapped'" in rows["error"][1]
    assert "2 kernels; a list has no shapes" in done.err
    rows.loc[0, ["m", "n", "k", "software", "dtype"]] = [64, 4096, 4096, "vllm", "bf16"]
    rows.drop(columns=["error", "calibration"]).to_csv(tmp_path / "filled.csv", index=False)
    filled = pd.read_csv(io.StringIO(cli("predict", tmp_path / "filled.csv").out))
    assert 5e-6 < filled["expected_s"][0] < 40e-6
    assert cli("score", tmp_path / "filled.csv", "--by", "op").code == 0


def test_a_list_without_a_device_asks_for_it(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    path = written(tmp_path, SUMMARY)
    asked = cli("predict", path)
    assert (asked.code, asked.out) == (2, "")
    assert "--hardware" in asked.err
    told = cli("predict", path, "-H", "h100-sxm", "-o", tmp_path / "out.csv")
    assert told.code == 0
    assert set(pd.read_csv(tmp_path / "out.csv")["hardware"]) == {"h100-sxm"}
    few = cli("calibrate", path, "-H", "h100-sxm")
    assert few.code == 2
    assert "too few measurements" in few.err


def test_shapes_that_somebody_added_to_a_list_are_kept(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    path = written(tmp_path, "Duration (ns),Name,m,n,k,dtype,software\n19000,nvjet_tst,64,4096,4096,bf16,vllm\n")
    row = pd.read_csv(io.StringIO(cli("predict", path, "-H", "h100-sxm").out)).iloc[0]
    assert row["expected_s"] > 0
    assert row["seconds"] == pytest.approx(19e-6)


def test_what_is_no_list_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "a,b\n1,2\n")
    assert not is_kernel_list(path)
    with pytest.raises(RecordError, match="no header"):
        read(path)
    assert not is_kernel_list(written(tmp_path, "op,Name,Duration (ns)\ngemm,a,1\n"))
    with pytest.raises(RecordError, match="unit of time 'fortnight'"):
        read(written(tmp_path, RAW.replace('"us"', '"fortnight"')))
