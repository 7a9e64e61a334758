"""Tables that were measured elsewhere: verdicts by kernel, rows that beat a roof, and the figures of the accuracy report."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from roofline.errors import RecordError
from roofline.validation.tables import check_table
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS

CHECKOUT = Path(__file__).parents[2]
KERNELS = Path(os.environ.get("ROOFLINE_SHARED", CHECKOUT.parent / "shared")) / "data" / "kernels"


def table(path: Path, factor: float, beaten: int = 0) -> Path:
    """bf16 products of an H100 at `factor` × what is expected of them; `beaten` rows at a tenth of their bound."""
    from roofline.calibration.predict import predict_table
    from roofline.calibration.tables import read

    shapes = [(m, n, k) for m in (1, 16, 256, 4096) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336))]
    lines = [f"gemm,h100-sxm,vllm,bf16,{m},{n},{k},1" for m, n, k in shapes]
    path.write_text("\n".join(["op,hardware,software,dtype,m,n,k,seconds", *lines]) + "\n")
    frame = predict_table(read(path))
    frame["seconds"] = factor * frame["expected_s"]
    frame.loc[: beaten - 1, "seconds"] = 0.1 * frame["bound_s"]
    frame[["op", "hardware", "software", "dtype", "m", "n", "k", "seconds"]].to_csv(path, index=False)
    return path


@pytest.mark.parametrize(("factor", "word"), [(1.0, PASS), (3.0, FAIL), (0.4, FAIL)])
def test_a_kernel_is_judged_by_how_many_rows_lie_in_their_interval(tmp_path: Path, factor: float, word: str) -> None:
    found = check_table(table(tmp_path / "rows.csv", factor))
    assert (found.verdict, found.groups[0]["rows"]) == (word, 12)
    assert found.groups[0]["median_error"] == pytest.approx(abs(1 / factor - 1))
    assert set(found.rows["verdict"]) == {word}


def test_rows_that_beat_a_roof_are_flagged(tmp_path: Path) -> None:
    found = check_table(table(tmp_path / "rows.csv", 1.0, beaten=5))
    assert (found.groups[0]["violations"], found.verdict) == (5, AMBIGUOUS)
    assert [row["seconds"] < row["bound_s"] for row in found.violations] == [True] * 5
    assert "5 rows are faster than their hard bound" in found.warnings[0]


def test_a_doubled_time_unit_or_no_time_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("op,hardware,dtype,m,n,k\ngemm,h100-sxm,bf16,1,2,3\n")
    with pytest.raises(RecordError, match="no measured times"):
        check_table(path)
    with pytest.raises(RecordError, match="no column split"):
        check_table(path, split="dev")


@pytest.mark.slow
@pytest.mark.skipif(not KERNELS.is_dir(), reason="the public kernel tables are not here")
@pytest.mark.parametrize("op", ["gemm", "decode_attention", "prefill_attention", "mla_decode", "mla_prefill", "moe", "collective"])
def test_dev_rows_give_the_figures_of_the_accuracy_report(op: str) -> None:
    with (CHECKOUT / "reports" / "accuracy" / "scores.csv").open(newline="") as file:
        published = next(row for row in csv.DictReader(file) if row["by"] == "op" and row["op"] == op)
    (group,) = check_table(KERNELS / f"{op}.parquet", split="dev").groups
    for figure in ("rows", "median_error", "p90_error", "coverage"):
        assert group[figure] == pytest.approx(float(published[figure]), abs=6e-5)
