"""Constants of a server from a few of its own points: a planted pace is found, and unseen points gain by it."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.errors import InputError, RecordError
from roofline.profiles.catalog import load_hardware
from roofline.serving.own_points import calibrate_points
from roofline.serving.points import predict_points
from tests.cli.conftest import Cli, cli  # noqa: F401  a fixture

H100 = "h100-sxm"


def points(pace: float, seed: int = 0, noise: float = 0.0) -> pd.DataFrame:
    """Points of one stack whose steps all take `pace` times as long as predicted."""
    loads = [(concurrency, isl) for concurrency in (2, 8, 32, 128) for isl in (512, 2048)]
    table = pd.DataFrame(
        {"op": "serving", "model": "llama-3.1-8b", "hardware": H100, "software": "vllm", "isl": isl, "osl": 256, "concurrency": c, "tp": 1}
        for c, isl in loads
    )
    wander = np.exp(noise * np.random.default_rng(seed).standard_normal(len(table)))
    return table.assign(tpot_ms=predict_points(table)["tpot_s_expected"] * 1e3 * pace * wander)


def median_error(table: pd.DataFrame, predicted: pd.DataFrame) -> float:
    return float(np.median(np.abs(predicted["tpot_s_expected"] * 1e3 / table["tpot_ms"] - 1)))


@pytest.mark.parametrize("pace", [0.8, 1.5])
def test_three_points_improve_the_others(pace: float) -> None:
    table = points(pace, noise=0.03)
    seen, unseen = table.iloc[[0, 3, 6]], table.iloc[[1, 2, 4, 5, 7]]
    found = calibrate_points(seen, load_hardware(H100))
    before, after = median_error(unseen, predict_points(unseen)), median_error(unseen, predict_points(unseen, own=found.blocks))
    assert after < before / 2
    (block,) = found.blocks
    assert block.provenance.rows == 3
    assert found.report[0]["error_before"] == pytest.approx(abs(1 / pace - 1), abs=0.06)


def test_the_factor_counts_one_more_point_that_is_right() -> None:
    table = points(1.5)
    (block,) = calibrate_points(table.iloc[:4], load_hardware(H100)).blocks
    plain = predict_points(table)["tpot_s_expected"]
    ratio = (predict_points(table, own=[block])["tpot_s_expected"] / plain).to_numpy()
    assert ratio == pytest.approx(1.5 ** (4 / 5), rel=0.02)  # what comes before the first token is not scaled


def test_other_stacks_keep_their_constants() -> None:
    blocks = calibrate_points(points(2.0), load_hardware(H100)).blocks
    other = points(1.0).assign(software="sglang")
    pd.testing.assert_frame_equal(predict_points(other), predict_points(other, own=blocks))


def test_few_unusable_and_held_back_rows_are_said() -> None:
    table = points(1.2)
    hardware = load_hardware(H100)
    assert calibrate_points(table.iloc[:2], hardware).skipped == [("serving vllm h100-sxm llama-3.1-8b bf16", 2)]
    odd = table.assign(tpot_ms=[float("nan"), 0, -1, "x", *table["tpot_ms"][4:]])
    assert "4 rows without a time" in calibrate_points(odd, hardware).warnings[0]
    unknown = table.assign(model=["no-such-model", *table["model"][1:]])
    assert "1 rows were left out: unknown model" in calibrate_points(unknown, hardware).warnings[0]
    split = table.assign(split=["fit"] * 3 + ["dev"] * 5, suspect=[None] * 8)
    assert calibrate_points(split, hardware).blocks[0].provenance.rows == 3
    with pytest.raises(InputError, match="milliseconds"):
        calibrate_points(table.assign(tpot_ms=table["tpot_ms"] / 1e3), hardware)
    with pytest.raises(RecordError, match="tpot_ms"):
        calibrate_points(table.drop(columns="tpot_ms"), hardware)
    with pytest.raises(RecordError, match="no serving row is of a100"):
        calibrate_points(table, load_hardware("a100-sxm-80gb"))


def test_command_writes_what_predict_reads(cli: Cli, tmp_path: Path) -> None:  # noqa: F811  the fixture
    table = points(1.5)
    path, constants = tmp_path / "own.csv", tmp_path / "own.yaml"
    table.to_csv(path, index=False)
    assert cli("calibrate", str(path), "-H", H100, "-o", str(constants)).code == 0
    out = cli("predict", str(path), "--calibration", str(constants)).out
    after = pd.read_csv(io.StringIO(out))
    assert median_error(table, after) < 0.1 < median_error(table, predict_points(table))
    few = cli("calibrate", str(path), "-H", "a100-sxm-80gb")
    assert few.code != 0
    assert "a100" in few.err
    table[:2].to_csv(path, index=False)
    few = cli("calibrate", str(path), "-H", H100)
    assert few.code == 2
    assert "at least 3 per stack" in few.err
