"""The import of public kernel tables, on a small package tree built here with the layout of the real one."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from roofline.calibration import silicon
from roofline.calibration.predict import predict_table
from roofline.errors import InputError, MissingDependencyError, RecordError

GEMM = {"gemm_dtype": "bfloat16", "m": 64, "n": 4096, "k": 4096, "latency": 0.02, "kernel_source": "x", "op_name": "gemm"}


def table(root: Path, place: str, rows: list[dict[str, object]]) -> None:
    path = root / "aiconfigurator_core" / "systems" / "data" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(path)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable aiconfigurator_core without tables."""
    pytest.importorskip("pyarrow")
    folder = tmp_path / "aiconfigurator_core"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('its code is never run')")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_gemm_rows_come_in_our_columns_and_seconds(package: Path) -> None:
    rows = [
        GEMM,
        GEMM | {"latency": 0.04},
        GEMM | {"gemm_dtype": "int8_wo"},
        GEMM | {"gemm_dtype": "sq"},
        GEMM | {"gemm_dtype": "fp8_block"},
    ]
    table(package, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", rows)
    found = silicon.read("gemm", ["h100-sxm"])
    assert found["dtype"].tolist() == ["bf16", "w8a16", "w8a8"]  # fp8_block of vLLM is host time
    assert found["seconds"].tolist() == pytest.approx([30e-6, 20e-6, 20e-6])  # a repeated shape: the median
    assert set(found["software"]) == {"vllm"}
    assert set(found["software_version"]) == {"0.24.0"}
    assert (predict_table(found)["error"] == "").all()


def test_the_latest_version_that_is_not_a_fragment_wins(package: Path) -> None:
    many = [GEMM | {"m": m} for m in range(1, 11)]
    table(package, "h100_sxm/gemm/sglang/0.5.9/gemm_perf.parquet", many)
    table(package, "h100_sxm/gemm/sglang/0.5.14/gemm_perf.parquet", many[:8])
    table(package, "h100_sxm/gemm/sglang/0.5.16/gemm_perf.parquet", many[:3])
    assert set(silicon.read("gemm", ["h100-sxm"])["software_version"]) == {"0.5.14"}


def test_decode_attention_counts_the_new_token_and_drops_wide_groups(package: Path) -> None:
    row = {
        "kernel_source": "fa3", "kv_cache_dtype": "fp8", "attn_dtype": "bfloat16", "batch_size": 4, "num_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128, "window_size": 0, "isl": 1, "step": 2047, "latency": 0.05,
    }  # fmt: skip
    table(package, "h100_sxm/attention/sglang/0.5.14/generation_attention_perf.parquet", [row, row | {"num_key_value_heads": 1}])
    (found,) = silicon.read("decode_attention", ["h100-sxm"]).to_dict("records")
    assert (found["context"], found["kv_heads"], found["kv_dtype"], found["kernel"]) == (2048, 8, "fp8", "fa3")


def test_collectives_come_in_bytes_and_out_of_graphs(package: Path) -> None:
    row = {"allreduce_dtype": "bfloat16", "num_gpus": 8, "message_size": 1024, "latency": 0.01, "op_name": "all_reduce"}
    graph, eager = (row | {"kernel_source": f"vLLM_custom_{how}", "latency": ms} for how, ms in (("graph", 0.01), ("eager", 0.03)))
    table(package, "h100_sxm/comm/vllm/0.24.0/custom_allreduce_perf.parquet", [graph, eager])
    table(package, "b60/comm/vllm/0.26.0/custom_allreduce_perf.parquet", [eager])
    nccl = row | {"nccl_dtype": "int8", "op_name": "all_gather", "kernel_source": "NCCL"}
    table(package, "h100_sxm/comm/nccl/2.29.2/nccl_perf.parquet", [nccl])
    found = silicon.read("collective", ["h100-sxm", "arc-pro-b60"])
    assert found["bytes"].tolist() == [2048, 1024, 2048]
    assert found["seconds"].tolist() == pytest.approx([1e-5, 1e-5, 3e-5])
    assert found["collective"].tolist() == ["custom_all_reduce", "all_gather", "custom_all_reduce"]


def test_what_is_not_there_is_said(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="silicon:conv: unknown kind"):
        silicon.read("conv")
    with pytest.raises(InputError, match="no tables of mi300x"):
        silicon.read("gemm", ["mi300x"])
    with pytest.raises(RecordError, match="no table of gemm"):
        silicon.read("gemm", ["h100-sxm"])
    table(package, "h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet", [{"m": 1}])
    with pytest.raises(RecordError, match="the column 'gemm_dtype' is missing"):
        silicon.read("gemm", ["h100-sxm"])
    monkeypatch.setattr(silicon, "find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'roofline\[silicon\]'"):
        silicon.read("gemm")
