"""The four cases that every figure is drawn for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from roofline.charts import Request
from roofline.ledger import Parallel, Precision
from roofline.planning.load import Load
from roofline.profiles.catalog import load_hardware, load_model
from tests.cli.conftest import cli  # noqa: F401  the fixture is used here too

CASES: dict[str, dict[str, Any]] = {
    "llama-2-7b on A100": {"model": "llama-2-7b", "device": "a100-sxm-80gb", "load": Load(2048, 256), "batch": 16},
    "llama-3.1-70b tp 4 on H100": {
        "model": "llama-3.1-70b", "device": "h100-sxm", "parallel": Parallel(tp=4), "load": Load(2048, 256, tpot_s=0.05),
        "batch": 32,
    },
    "deepseek-v3 on 8 H200": {
        "model": "deepseek-v3", "device": "h200-sxm", "parallel": Parallel(tp=8, ep=8), "load": Load(4096, 512), "batch": 64,
    },
    "llama-3.1-8b in 4 bits on RTX 4090": {
        "model": "llama-3.1-8b", "device": "rtx-4090", "precision": Precision(weights="int4"), "engine": "llamacpp",
        "load": Load(1024, 256),
    },
}  # fmt: skip

Ask = Callable[..., Request]


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    """ask(case, **changes) → the Request of a case; a table for the kinds that need one."""
    table = tmp_path / "table.csv"
    rows = ["op,m,n,k,dtype,seconds,expected_s,uncalibrated_expected_s"]
    for m in range(1, 400, 20):
        times = (2e-5 + m * 2e-8, 2.2e-5 + m * 2.1e-8, 3e-5 + m * 1e-8)
        rows.append(f"{'gemv' if m < 16 else 'gemm'},{m},4096,4096,bf16,{','.join(map(str, times))}")
    table.write_text("\n".join(rows) + "\n")

    def request(case: str, **changes: Any) -> Request:
        facts = dict(CASES[case])
        model, device = load_model(facts.pop("model")), load_hardware(facts.pop("device"))
        made = Request(model, (device,), **facts, table=table, command=f"roofline chart … {model.name} -H {device.id}")
        return replace(made, **changes)

    return request
