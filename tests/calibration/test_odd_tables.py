"""Tables as they should not be: a message that names the fix, or an error of that row alone; never a traceback, never a guess."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.calibration import tables
from roofline.calibration.calibrate import calibrate
from roofline.calibration.predict import predict_table
from roofline.calibration.score import score_table, suspects
from roofline.errors import InputError, RecordError
from roofline.profiles.catalog import load_hardware

ATTENTION = {"software": "vllm", "kernel": "fa3", "batch": 4, "heads": 32, "kv_heads": 8, "head_dim": 128}
ROWS = {
    "gemm": {"software": "vllm", "dtype": "bf16", "m": 64, "n": 4096, "k": 4096},
    "prefill_attention": {**ATTENTION, "dtype": "bf16", "kv_dtype": "bf16", "new_tokens": 512, "past_tokens": 0, "window": 0},
    "decode_attention": {**ATTENTION, "kv_dtype": "bf16", "context": 512, "window": 0},
    "mla_decode": {"software": "sglang", "kernel": "flashmla", "kv_dtype": "bf16", "batch": 4, "context": 512, "heads": 16},
    "mla_prefill": {"software": "sglang", "kernel": "fa3", "kv_dtype": "bf16", "batch": 4, "new_tokens": 512, "heads": 16},
    "moe": {
        "software": "vllm", "dtype": "bf16", "tokens": 64, "hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128,
        "tp": 1, "ep": 1, "routing": "balanced",
    },
    "collective": {"software": "nccl", "collective": "all_reduce", "dtype": "fp16", "ranks": 8, "bytes": 1 << 20},
}  # fmt: skip
OTHERWISE = ("op", "hardware", "software", "seconds", "kernel", "window", "past_tokens", "tp", "ep", "routing", "kv_dtype")


def row(op: str, **changed: object) -> dict[str, object]:
    return {"op": op, "hardware": "h100-sxm", **ROWS[op], "seconds": 1e-3, **changed}


@pytest.mark.parametrize("op", ROWS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -1, 0.5, 1e300, "word", ""])
def test_one_bad_number_is_an_error_of_its_row(op: str, bad: object) -> None:
    for column, value in ROWS[op].items():
        if isinstance(value, str) or (column in OTHERWISE and bad in ("", 0.5)) or (column in OTHERWISE and bad is np.nan):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            found = predict_table(pd.DataFrame([row(op, **{column: bad}), row(op)]).astype({column: object}))
        assert found["error"][0].startswith(f"{column}: must be a number"), column
        assert np.isnan(found["expected_s"][0])
        assert found["error"][1] == ""
        assert found["expected_s"][1] > 0


@pytest.mark.parametrize(
    ("op", "changed", "words"),
    [
        ("moe", {"top_k": 200}, "top_k: is more than experts"),
        ("moe", {"top_k": 200, "routing": "uniform"}, "top_k: is more than experts"),
        ("moe", {"experts": 1 << 20}, "experts: must be at most 65,536"),
        ("moe", {"routing": "by mood"}, "routing: unknown"),
        ("moe", {"routing": "power_law_1000"}, "routing: unknown"),
        ("decode_attention", {"kv_heads": 64}, "kv_heads: is more than heads"),
        ("prefill_attention", {"kv_dtype": "fp7"}, "unknown kv_dtype 'fp7'"),
        ("prefill_attention", {"dtype": "fp7"}, "unknown dtype 'fp7' of prefill attention"),
        ("mla_prefill", {"kv_dtype": "fp7"}, "unknown kv_dtype 'fp7'"),
        ("collective", {"collective": "gossip"}, "unknown collective 'gossip'"),
    ],
)
def test_what_no_kernel_can_be_is_said(op: str, changed: dict[str, object], words: str) -> None:
    found = predict_table(pd.DataFrame([row(op, **changed), row(op)]))
    assert words in found["error"][0]
    assert found["error"][1] == ""
    with pytest.raises(InputError, match="too few measurements"):
        calibrate(pd.DataFrame([row(op, **changed), row(op)]), load_hardware("h100-sxm"))


@pytest.mark.parametrize("op", ["prefill_attention", "decode_attention", "mla_decode", "mla_prefill"])
def test_a_cache_whose_type_is_not_said_is_in_16_bits(op: str) -> None:
    said = predict_table(pd.DataFrame([row(op)]))["expected_s"][0]
    blank = predict_table(pd.DataFrame([row(op, kv_dtype=""), row(op)]))
    missing = predict_table(pd.DataFrame([{k: v for k, v in row(op).items() if k not in ("kv_dtype", "dtype")}]))
    assert blank["expected_s"].tolist() == [said, said]
    assert missing["expected_s"].tolist() == [said]
    assert missing["error"].tolist() == [""]


def test_a_power_law_of_exponent_one_is_a_power_law() -> None:
    near, at = (predict_table(pd.DataFrame([row("moe", routing=f"power_law_{e}")]))["expected_s"][0] for e in (1.001, 1.0))
    assert at == pytest.approx(near, rel=0.02)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a table"),
        ("op,hardware\n", "no rows"),
        ("op,m,m\ngemm,1,2\n", "'m' is there twice"),
        ("op;m;n\ngemm;1;2\n", "write them with commas"),
        ("op,m\ngemm,1,2,3\ngemm\n", "more fields than the header"),
        ("op,m\ngemm,1\ngemm,1,2,3\n", "is not a table"),
    ],
)
def test_files_that_are_no_tables_are_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(RecordError, match=words) as found:
        tables.read(path)
    assert str(path) in str(found.value)


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is a folder"):
        tables.read(tmp_path)


def test_parquet_with_columns_of_other_types(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    good = row("gemm")
    pd.DataFrame(
        {
            **{name: pd.Categorical([value] * 3) for name, value in good.items() if isinstance(value, str)},
            "m": pd.array([64, None, 64], dtype="Int64"), "n": [4096, 4096, 4096], "k": ["4096", "4096", "many"], "seconds": ["1e-3"] * 3,
        }
    ).to_parquet(path)  # fmt: skip
    found = predict_table(path)
    assert (found["error"] == "").tolist() == [True, False, False]
    assert score_table(found, (("op",),))[0]["rows"] == 3


def test_times_that_are_none_are_neither_scored_nor_suspect() -> None:
    table = pd.DataFrame([row("gemm", seconds=value) for value in (2e-5, np.inf, -1.0, 0.0, "x", np.nan)])
    found = predict_table(table)
    assert score_table(found, (("op",),))[0]["rows"] == 1
    assert not len(suspects(found))
