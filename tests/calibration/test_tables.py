"""predict, score and calibrate on tables: good rows are priced, bad ones get an error of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.calibration.calibrate import calibrate, text
from roofline.calibration.kernels_csv import kind_of
from roofline.calibration.kernels_csv import read as read_kernels
from roofline.calibration.predict import predict_table
from roofline.calibration.score import score_table, summary, suspects
from roofline.errors import InputError, RecordError
from roofline.profiles.calibration import load_file
from roofline.profiles.catalog import load_hardware

DATA = Path(__file__).parents[1] / "data" / "kernels"
LIMITS = {  # median and p90 of the error on a few dev rows per device: a guard against breakage, not the acceptance figures
    "gemm": (0.08, 0.25), "decode_attention": (0.10, 0.40), "prefill_attention": (0.12, 0.60), "mla_prefill": (0.08, 0.30),
    "mla_decode": (0.10, 0.40), "moe": (0.20, 0.70), "collective": (0.12, 0.50),
}  # fmt: skip


@pytest.fixture(scope="module")
def predicted() -> pd.DataFrame:
    return predict_table(DATA / "dev_sample.csv")


def gemm(**changed: object) -> pd.DataFrame:
    row = {"op": "gemm", "hardware": "h100-sxm", "software": "vllm", "dtype": "bf16", "m": 64, "n": 4096, "k": 4096, "seconds": 2e-5}
    return pd.DataFrame([{**row, **changed}])


@pytest.mark.parametrize("op", LIMITS)
def test_rows_that_were_never_fitted_are_predicted(predicted: pd.DataFrame, op: str) -> None:
    figures = summary(predicted[predicted["op"] == op])
    assert figures["unpredicted"] == 0
    assert figures["median_error"] <= LIMITS[op][0]
    assert figures["p90_error"] <= LIMITS[op][1]


def test_four_of_five_rows_lie_in_their_interval(predicted: pd.DataFrame) -> None:
    assert 0.7 <= summary(predicted)["coverage"] <= 0.9


def test_bound_expected_and_interval_are_in_order(predicted: pd.DataFrame) -> None:
    assert (predicted["bound_s"] <= predicted["expected_s"]).all()
    assert (predicted["low_s"] <= predicted["expected_s"]).all()
    assert (predicted["expected_s"] <= predicted["high_s"]).all()
    assert (predicted["bound_s"] <= predicted["low_s"]).all()


def test_the_input_columns_come_back_unchanged(predicted: pd.DataFrame) -> None:
    original = pd.read_csv(DATA / "dev_sample.csv", low_memory=False)
    pd.testing.assert_frame_equal(predicted[original.columns], original)


def test_cold_operands_never_take_less() -> None:
    hot, cold = (predict_table(gemm(), operands=how)["expected_s"][0] for how in ("hot", "cold"))
    assert cold >= hot


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hardware": "h900"}, "unknown device 'h900'"),
        ({"hardware": ""}, "hardware: is empty"),
        ({"dtype": "fp7"}, "unknown GEMM dtype 'fp7'"),
        ({"m": np.nan}, "m: must be a number ≥ 1"),
        ({"n": -1}, "n: must be a number ≥ 1"),
        ({"op": "conv"}, "unknown kind 'conv'"),
    ],
)
def test_a_row_that_cannot_be_predicted_gets_its_error_and_the_rest_come(changed: dict[str, object], words: str) -> None:
    out = predict_table(pd.concat([gemm(**changed), gemm()], ignore_index=True))
    assert words in out["error"][0]
    assert np.isnan(out["expected_s"][0])
    assert out["error"][1] == ""
    assert out["expected_s"][1] > 0


@pytest.mark.parametrize("spelling", ["bfloat16", "half", "fp16", "BF16"])
def test_spellings_of_a_dtype_are_one(spelling: str) -> None:
    assert predict_table(gemm(dtype=spelling))["expected_s"][0] == predict_table(gemm())["expected_s"][0]


def test_missing_columns_are_named() -> None:
    with pytest.raises(RecordError, match="missing: k"):
        predict_table(gemm().drop(columns="k"))
    with pytest.raises(RecordError, match="'op' is missing"):
        predict_table(gemm().drop(columns="op"))
    assert predict_table(gemm().drop(columns="op"), op="gemm")["error"][0] == ""


def test_two_time_columns_are_refused() -> None:
    with pytest.raises(RecordError, match="seconds and us"):
        predict_table(gemm().assign(us=20.0))


def test_score_counts_an_unpredicted_row_as_wrong() -> None:
    out = predict_table(pd.concat([gemm(), gemm(hardware="nonsense-1")], ignore_index=True))
    row = next(r for r in score_table(out) if r["by"] == "op")
    assert row["rows"] == 2
    assert row["unpredicted"] == 0.5
    assert row["p90_error"] > 0.85


def test_rows_faster_than_the_bound_are_listed() -> None:
    out = predict_table(gemm(m=8192, seconds=1e-6))
    assert len(suspects(out)) == 1
    assert len(suspects(predict_table(gemm()))) == 0


def test_calibrate_learns_a_device_from_thirty_shapes(tmp_path: Path) -> None:
    table = pd.read_csv(DATA / "gemm_h100_trtllm_fp8_fit.csv").sample(30, random_state=3)
    table["seconds"] *= 1.4  # a device 40 % slower than the shipped constants say
    result = calibrate(table, load_hardware("h100-sxm"), name="test rows")
    (line,) = result.report
    assert line["error_before"] > 0.2  # type: ignore[operator]
    assert line["held_out_error"] < 0.1  # type: ignore[operator]
    (tmp_path / "mine.yaml").write_text(text(result), encoding="utf-8")
    blocks = load_file(tmp_path / "mine.yaml").blocks
    out = predict_table(table, blocks={"h100-sxm": blocks})
    assert summary(out)["median_error"] < 0.08


def test_calibrate_refuses_too_little_and_wrong_units() -> None:
    table = pd.read_csv(DATA / "gemm_h100_trtllm_fp8_fit.csv")
    device = load_hardware("h100-sxm")
    with pytest.raises(InputError, match="too few measurements"):
        calibrate(table.head(10), device)
    with pytest.raises(RecordError, match="another unit"):
        calibrate(table.assign(seconds=table["seconds"] * 1e3), device)
    mixed = table.assign(seconds=np.where(np.arange(len(table)) % 10 == 0, table["seconds"] * 1e3, table["seconds"]))
    with pytest.raises(RecordError, match="mixed units"):
        calibrate(mixed, device)
    with pytest.raises(RecordError, match="no row has a time above zero"):
        calibrate(table.assign(seconds=0.0), device)
    with pytest.raises(RecordError, match="no row is of a100"):
        calibrate(table, load_hardware("a100-sxm-80gb"))


def test_kernel_names_map_to_kinds(tmp_path: Path) -> None:
    assert kind_of("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_TNT") == "gemm"
    assert kind_of("flash_fwd_splitkv_kernel<...>") == "decode_attention"
    assert kind_of("ncclDevKernel_AllReduce_Sum_bf16_RING_LL") == "collective"
    assert kind_of("fused_moe_kernel") == "moe"
    assert kind_of("who_knows") == ""
    path = tmp_path / "nsys.csv"
    path.write_text('== a banner ==\n"Duration (ns)","Name"\n"1,500","sm90_xmma_gemm_bf16"\n', encoding="utf-8")
    rows = read_kernels(path)
    assert rows[["op", "seconds"]].to_numpy().tolist() == [["gemm", pytest.approx(1.5e-6)]]
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(RecordError, match="no header"):
        read_kernels(path)
