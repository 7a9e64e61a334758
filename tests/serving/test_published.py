"""The report on published throughput tables: one batch and the offline maximum, against loops."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.ledger import Parallel
from tests.scripting import load_script


@pytest.fixture(scope="module")
def report() -> ModuleType:
    return load_script("published_report")


def test_rate_of_one_batch_is_its_tokens_over_all_its_steps(report: ModuleType) -> None:
    row = report.Row(layers=32, log_ranks=1.0, running=16.0, copies=1.0, decode_s=5e-3, prompt_s=80e-3, kv_s=1e-3, output_len=100.0)
    fixed, per_layer, per_rank, decode, kv, prompt, per_sequence = 1e-3, 1e-5, 2e-5, 1.2, 0.5, 1.1, 3e-5
    seconds = prompt * 80e-3
    for _ in range(100):
        seconds += fixed + 32 * per_layer + 32 * per_rank + decode * 5e-3 + kv * 1e-3 + 16 * per_sequence
    found = report.rates([row], np.array([fixed, per_layer, per_rank, decode, kv, prompt, per_sequence]))
    assert found[0] == pytest.approx(16 * 100 / seconds)


def test_offline_maximum_fills_the_memory_and_stages_share_the_sequences(report: ModuleType) -> None:
    asked = ("llama-3.1-8b", "fp8", "h100-sxm", "trtllm")
    one = report.price(*asked, Parallel(), "fp8", (1000.0, 1000.0), 0.0)
    two = report.price(*asked, Parallel(pp=2), "fp8", (1000.0, 1000.0), 0.0)
    per_token = 2 * 8 * 128 * 32  # keys and values of 8 heads in one byte
    held = one.running * 1500 * per_token + 8.03e9
    assert 0.8 < (held + report.RUNTIME_BYTES) / (0.9 * 85.5e9) < 1.1
    assert two.running > 2 * one.running  # half of the layers and half of the weights on each
    assert two.kv_s == pytest.approx(two.running / 2 * 1500 * per_token / 3.35e12, rel=0.01)


def test_a_pair_is_priced_without_its_own_rows(report: ModuleType) -> None:
    import pandas as pd

    rng = np.random.default_rng(1)
    rows = [report.Row(32, 0.0, b, 1.0, 4e-3 + 1e-5 * b, 1e-3 * b, 1e-5 * b, 200.0) for b in rng.integers(1, 65, 40).astype(float)]
    truth = report.rates(rows, np.array([2e-3, 0.0, 0.0, 1.3, 0.0, 1.0, 0.0]))
    model = np.where(np.arange(40) < 20, "one", "two")
    table = pd.DataFrame({"hardware": "device", "model_canonical": model, "output_tok_s": truth})
    usual = report.left_out(table, rows)
    assert np.median(np.abs(usual / truth - 1)) < 0.05
    own = table.assign(output_tok_s=np.where(model == "one", 0.5, 1.0) * truth)
    assert np.array_equal(report.left_out(own, rows)[:20], usual[:20])
    others = table.assign(output_tok_s=np.where(model == "two", 0.5, 1.0) * truth)
    assert report.left_out(others, rows)[:20] == pytest.approx(usual[:20] / 2, rel=0.1)
    alone = report.left_out(table[:20], rows[:20])
    assert np.isnan(alone).all()


def test_formats_of_other_engines_are_not_priced(report: ModuleType) -> None:
    assert (report.weight_format("fp8 (amd quark)"), report.weight_format("mxfp4 (doc label fp8)"), report.weight_format("bf16")) == (
        "fp8",
        "",
        "",
    )
    with pytest.raises(InputError, match="q8_0"):
        report.weight_format("q8_0 (gguf)")
