"""Batch-1 rows: facts of models by hand, devices by name, and what a device left out is missed by."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.calibration import tables
from roofline.calibration.local_models import local_model
from roofline.calibration.predict import predict_table
from roofline.calibration.single_stream import leave_devices_out, streams
from roofline.ledger import kv_bytes_per_token
from roofline.profiles.catalog import load_model

SHARED = Path(os.environ.get("ROOFLINE_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "batch1" / "single_stream.csv"
ROW = {
    "op": "single_stream", "hardware": "rtx-4090", "model": "Llama-3.1-8B", "engine": "llama.cpp", "quant": "GGUF Q4_0", "weights_gb": 4.7,
    "bits_per_weight": 4.65, "params_b": 8.03, "context": 0.0, "gen_len": 128.0, "prompt_len": 512.0, "decode_tok_s": 120.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("gpt-oss-20b-F16", "gpt-oss-20b"), ("gpt-oss-120b", "gpt-oss-120b"), ("Qwen3-30B-A3B-UD-Q4_K_XL", "qwen3-30b-a3b"),
        ("Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"), ("Qwen3-32B-Q8_0", "qwen3-32b"), ("Qwen3-4B", "qwen3-4b"),
        ("Mixtral-8x7B", "mixtral-8x7b"), ("CodeLlama-34B", "codellama-34b"), ("Llama-2-13B", "llama-2-13b"),
        ("Llama-2-70B", "llama-2-70b"), ("llama-2-7b.Q4_0", "llama-2-7b"), ("Llama-3.1-8B", "llama-3.1-8b"), ("Mistral-7B", "mistral-7b"),
        ("gemma-3-27b-it-UD-Q4_K_XL", "gemma-3-27b"), ("gemma-3-4b", "gemma-3-4b"), ("Llama-4-Scout-17B-16E", "llama-4-scout"),
        ("Mistral-Small-3.1-24B-Instruct", "mistral-small-24b"), ("Llama-3.1-405B", "llama-3.1-405b"),
    ],
)  # fmt: skip
def test_facts_of_models_are_those_of_their_profiles(name: str, profile: str) -> None:
    facts, model = local_model(name), load_model(profile)
    assert facts.layers == model.num_layers
    assert facts.kv_bytes(100) == pytest.approx(100 * kv_bytes_per_token(model))  # within every window


def test_a_window_is_read_once_it_is_full() -> None:
    model = local_model("gpt-oss-20b")  # 12 layers see 128 positions, 12 all; 8 KV heads of 64
    assert model.kv_bytes(1000) == 2 * 2 * 8 * 64 * (12 * 128 + 12 * 1000)


def test_a_device_without_a_profile_name_is_found_by_the_name_of_the_table() -> None:
    named = ROW | {"hardware": "", "device": "RX 6800 XT 16GB"}
    unknown = ROW | {"hardware": "", "device": "Some new card"}
    found = predict_table(pd.DataFrame([named, unknown | {"spec_bw_gbs": 512.0}, unknown, ROW | {"hardware": "Some new card"}]))
    assert found["decode_tok_s_expected"][0] == pytest.approx(found["decode_tok_s_expected"][1])  # 512 GB/s both
    assert found["prefill_tok_s_expected"][0] > 0
    assert np.isnan(found["prefill_tok_s_expected"][1])  # no peak is known
    assert found["error"].map(bool).tolist() == [False, False, True, True]
    assert "unknown device" in found["error"][3]


def test_weights_follow_from_the_quantisation_where_the_table_has_none() -> None:
    bare = ROW | {"weights_gb": np.nan, "bits_per_weight": np.nan, "quant": "GGUF Q3_K_S", "params_b": 6.738}
    rows, errors = streams(tables.normalised(pd.DataFrame([bare, bare | {"params_b": np.nan}])))
    assert rows.weight_bytes[0] == pytest.approx(6.738e9 * 3.5 / 8)
    assert errors.tolist()[0] == ""
    assert "weights_gb" in errors.tolist()[1]


@pytest.mark.skipif(not SHARED.is_file(), reason="the shared tables are not here")
def test_devices_left_out_are_predicted() -> None:
    table = tables.normalised(tables.read(SHARED))
    table = table[tables.number(table, "decode_tok_s") > 0]
    left = leave_devices_out(table)
    error = left["error"].reindex(table.index).fillna(1.0)
    names = table["hardware"].where(table["hardware"] != "", table["device"])
    assert error.groupby(names).median().median() <= 0.15
    assert error[table["hardware"] != ""].groupby(table["hardware"]).median().median() <= 0.15
