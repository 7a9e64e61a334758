"""CSV exports of Nsight Compute: both layouts, units, and launches that beat the memory roof."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline.errors import RecordError
from roofline.validation import ncu
from roofline.validation.tables import check_table
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS

LONG = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","ampere_bf16_gemm_128x64","gpu__time_duration.sum","usecond","100.0"
"0","7","ampere_bf16_gemm_128x64","dram__bytes.sum","Mbyte","{moved}"
"1","7","flash_fwd_splitkv_kernel","gpu__time_duration.sum","nsecond","50,000"
"1","7","flash_fwd_splitkv_kernel","dram__bytes_read.sum","Kbyte","80,000"
"1","7","flash_fwd_splitkv_kernel","dram__bytes_write.sum","Kbyte","20,000"
"""
RAW = """"ID","Kernel Name","gpu__time_duration.sum","dram__bytes.sum"
"","","ms","Gbyte"
"0","ampere_bf16_gemm_128x64","0.1","0.2"
"1","my_kernel","0.1",""
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_line_per_metric(tmp_path: Path) -> None:
    first, second = ncu.read(write(tmp_path / "a.csv", LONG.format(moved=200)))
    assert (first["op"], first["seconds"], first["bytes"]) == ("gemm", pytest.approx(100e-6), pytest.approx(200e6))
    assert (second["op"], second["seconds"], second["bytes"]) == ("decode_attention", pytest.approx(50e-6), pytest.approx(100e6))


def test_a_column_per_metric_with_a_line_of_units(tmp_path: Path) -> None:
    first, second = ncu.read(write(tmp_path / "a.csv", RAW))
    assert (first["seconds"], first["bytes"]) == (pytest.approx(1e-4), pytest.approx(2e8))
    assert (second["op"], second["bytes"]) == ("", None)


@pytest.mark.parametrize(("moved", "word"), [(200, PASS), (500, FAIL)])  # 2.0 and 5.0 TB/s of the 3.35 of an H100
def test_launches_are_held_against_the_memory_roof(tmp_path: Path, moved: int, word: str) -> None:
    found = check_table(write(tmp_path / "a.csv", LONG.format(moved=moved)), hardware="h100-sxm")
    groups = {group["op"]: group for group in found.groups}
    assert groups["gemm"]["verdict"] == word
    assert groups["decode_attention"]["verdict"] == PASS
    assert groups["decode_attention"]["of_bandwidth"] == pytest.approx(2.0 / 3.35, rel=0.01)
    assert len(found.violations) == (word == FAIL)
    assert any("more DRAM bytes than h100-sxm can" in text for text in found.warnings) == (word == FAIL)


def test_what_cannot_be_judged_is_said(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", RAW)
    found = check_table(path, hardware="h100-sxm")
    assert [(group["op"], group["verdict"]) for group in found.groups] == [("gemm", PASS), ("unknown", AMBIGUOUS)]
    assert "dram__bytes.sum" in found.warnings[0]
    with pytest.raises(RecordError, match="add -H NAME"):
        check_table(path)
    with pytest.raises(RecordError, match="no launch with a time"):
        check_table(write(tmp_path / "b.csv", '"ID","Kernel Name"\n"0","x"\n'), hardware="h100-sxm")
    with pytest.raises(RecordError, match="'fortnight'"):
        check_table(write(tmp_path / "c.csv", RAW.replace('"ms"', '"fortnight"')), hardware="h100-sxm")
