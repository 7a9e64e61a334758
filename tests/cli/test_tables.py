"""predict, score and calibrate from the command line."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pandas as pd
import pytest

from roofline.profiles.calibration import load_file
from tests.cli.conftest import CHECKOUT, Cli

DATA = CHECKOUT / "tests" / "data" / "kernels"
SAMPLE, FIT = DATA / "dev_sample.csv", DATA / "gemm_h100_trtllm_fp8_fit.csv"
ROW = "gemm,h100-sxm,vllm,bf16,64,4096,4096,2e-5"
HEAD = "op,hardware,software,dtype,m,n,k,seconds"


def csv(folder: Path, *rows: str, head: str = HEAD) -> Path:
    path = folder / "t.csv"
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_predict_adds_columns_and_keeps_the_rest(cli: Cli, tmp_path: Path) -> None:
    done = cli("predict", SAMPLE)
    assert done.code == 0
    out, given = pd.read_csv(io.StringIO(done.out), low_memory=False), pd.read_csv(SAMPLE, low_memory=False)
    pd.testing.assert_frame_equal(out[given.columns], given)
    assert (out["bound_s"] <= out["low_s"]).all()
    assert (out["low_s"] <= out["expected_s"]).all()
    assert (out["expected_s"] <= out["high_s"]).all()
    assert f"{len(given)} rows: {len(given)} predicted, 0 with an error" in done.err
    for name in ("o.csv", "o.parquet", "o.json"):
        assert cli("predict", SAMPLE, "-o", tmp_path / name).out == ""
    assert (tmp_path / "o.csv").read_text() == done.out
    parquet = pd.read_parquet(tmp_path / "o.parquet")
    assert parquet["expected_s"].to_numpy() == pytest.approx(out["expected_s"].to_numpy())


def test_bad_rows_are_named_and_the_others_come(cli: Cli, tmp_path: Path) -> None:
    path = csv(
        tmp_path, ROW, ROW.replace("h100-sxm", "h900"), ROW.replace("bf16", "fp7"), ROW.replace(",64,", ",,"), ROW.replace("h100-sxm", "")
    )
    done = cli("predict", path, "--json")
    rows = done.json["rows"]
    assert done.code == 0
    assert [bool(row["error"]) for row in rows] == [False, True, True, True, True]
    assert rows[0]["expected_s"] > 0
    assert rows[1]["expected_s"] is None
    for words in ("5 rows: 1 predicted, 4 with an error", "unknown device 'h900'", "(first in row 2)", "unknown GEMM dtype 'fp7'"):
        assert words in done.err


def test_the_kind_may_come_from_an_option(cli: Cli, tmp_path: Path) -> None:
    path = csv(tmp_path, ROW.removeprefix("gemm,"), head=HEAD.removeprefix("op,"))
    assert cli("predict", path).code == 2
    assert cli("predict", path, "--op", "gemm").code == 0


@pytest.mark.parametrize(
    ("head", "row", "words"),
    [
        (HEAD.replace("k,", ""), ROW.replace("4096,2e", "2e"), "missing: k"),
        (HEAD.replace("hardware", "device"), ROW, "'hardware' is missing"),
        (HEAD + ",ms", ROW + ",0.02", "seconds and ms"),
    ],
)
def test_a_table_that_cannot_be_used_ends_with_code_2(cli: Cli, tmp_path: Path, head: str, row: str, words: str) -> None:
    path = csv(tmp_path, row, head=head)
    for command in (("predict",), ("score",)):
        done = cli(*command, path)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
        assert "t.csv" in done.err


def test_files_that_are_no_tables(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "e.csv").write_text("")
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    for name in ("none.csv", "e.csv", "b.parquet"):
        done = cli("predict", tmp_path / name)
        assert done.code == 2
        assert name in done.err
    assert "the ending must be" in cli("predict", SAMPLE, "-o", tmp_path / "o.xls").err


def test_parquet_without_pyarrow_names_the_extra(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = cli("predict", SAMPLE, "-o", tmp_path / "o.parquet")
    assert done.code == 2
    assert "pip install 'roofline[parquet]'" in done.err


def test_score_groups_and_lists_suspects(cli: Cli, tmp_path: Path) -> None:
    done = cli("score", SAMPLE, "--json")
    scores = done.json["scores"]
    assert {row["by"] for row in scores} == {"op", "op × hardware", "op × dtype", "op × band"}
    assert all(row["unpredicted"] == 0 for row in scores)
    page = cli("score", SAMPLE, "--by", "op,device", "--by", "software")
    assert "By" not in page.err
    assert "Kernel time, by op × hardware" in page.out
    assert "Kernel time, by software" in page.out
    fast = cli("score", csv(tmp_path, ROW.replace("2e-5", "1e-9")), "--json").json["suspects"]
    assert [row["row"] for row in fast] == [1]
    assert "no such column" in cli("score", SAMPLE, "--by", "colour").err
    assert "no row has split dev" in cli("score", FIT, "--split", "dev").err
    assert cli("score", FIT, "--split", "fit").code == 0


def test_score_takes_what_predict_wrote_and_batch_1_rows(cli: Cli, tmp_path: Path) -> None:
    cli("predict", SAMPLE, "-o", tmp_path / "p.csv")
    assert cli("score", tmp_path / "p.csv", "--json").json["scores"] == cli("score", SAMPLE, "--json").json["scores"]
    row = "single_stream,rtx-4090,Llama-3-8B,llama.cpp,4.9,512,4000,120"
    path = csv(tmp_path, row, head="op,hardware,model,engine,weights_gb,prompt_len,prefill_tok_s,decode_tok_s")
    measures = {line["measure"] for line in cli("score", path, "--json").json["scores"]}
    assert measures == {"prefill rate", "decode rate"}


def test_calibrate_writes_blocks_that_predict_takes(cli: Cli, tmp_path: Path) -> None:
    table = pd.read_csv(FIT).sample(40, random_state=1)
    table["seconds"] *= 1.5
    table.to_csv(tmp_path / "mine.csv", index=False)
    done = cli("calibrate", tmp_path / "mine.csv", "-H", "h100-sxm", "-o", tmp_path / "mine.yaml")
    assert done.code == 0
    assert "held out" in done.out
    (block,) = load_file(tmp_path / "mine.yaml").blocks
    assert (block.provenance.rows, block.family) == (40, "gemm")
    assert cli("calibrate", tmp_path / "mine.csv", "-H", "h100-sxm").out == (tmp_path / "mine.yaml").read_text()
    score = ("score", tmp_path / "mine.csv", "--by", "op", "--json")
    before, after = (cli(*score, *more).json["scores"][0]["median_error"] for more in ((), ("--calibration", tmp_path / "mine.yaml")))
    assert before > 0.25
    assert after < 0.1


def test_calibrate_refuses_and_warns(cli: Cli, tmp_path: Path) -> None:
    table = pd.read_csv(FIT)
    table.head(10).to_csv(tmp_path / "ten.csv", index=False)
    assert "too few measurements" in cli("calibrate", tmp_path / "ten.csv", "-H", "h100-sxm").err
    table.loc[:4, "seconds"] = 0.0
    table.loc[5:6, "dtype"] = "fp7"
    table.loc[7, "m"] = -1
    table.to_csv(tmp_path / "holes.csv", index=False)
    done = cli("calibrate", tmp_path / "holes.csv", "-H", "h100-sxm", "-o", tmp_path / "h.yaml")
    assert done.code == 0
    for words in ("5 rows without a time above zero", "2 rows were left out: unknown GEMM dtype 'fp7'", "1 rows were left out: m: must be"):
        assert words in " ".join(done.out.split())
    assert not list(tmp_path.glob(".h.yaml*"))


@pytest.mark.parametrize("command", [("predict",), ("score",), ("calibrate", "-H", "h100-sxm")])
def test_a_file_that_cannot_be_written_is_refused_before_the_work(cli: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "o.csv").mkdir()
    for target, words in ((tmp_path / "none" / "o.csv", "there is no folder"), (tmp_path / "o.csv", "is a folder")):
        done = cli(command[0], tmp_path / "no such table.csv", *command[1:], "-o", target)
        assert (done.code, done.out) == (2, "")
        assert words in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["o.csv"]
