"""Against LLM-Viewer (MIT) on Llama-2-7B, A6000, 2048 tokens: conformance under its conventions, not truth.

Its conventions: the full square of scores, naive attention with the scores stored, element-wise ops counted. Its four known
errors are listed in ERRORS with what they do to its figures.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from roofline.batch import Batch
from roofline.ledger import Conventions, Op, build_ledger
from roofline.profiles.catalog import load_model

ROWS = list(csv.DictReader((Path(__file__).parent / "llmviewer_table.csv").read_text().splitlines()))
TOKENS = 2048
NAMES = {"out_proj": "o_proj", "attn_norm": "norm", "mlp_norm": "norm", "attn_add": "residual_add", "mlp_add": "residual_add"}

# layer → (column, theirs / right): what its known errors do.
ERRORS = {
    "lm_head": {"OPs": 1 / 2},  # 2·m·n·k counted once
    "mlp_act": {"OPs": 4096 / 11008, "memory_access": 4096 / 11008},  # sized by hidden, not by intermediate
    "attn_add": {"memory_access": 2 / 3},  # two inputs are added, one read is counted
    "mlp_add": {"memory_access": 2 / 3},
    # The query activations of Q·Kᵀ are sized by KV heads: no difference here, where kv_heads = heads; wrong for GQA.
}


def _ours(stage: str) -> dict[str, Op]:
    batch = Batch.prefill(1, TOKENS) if stage == "prefill" else Batch.decode(1, TOKENS - 1)  # its context includes the new token
    conventions = Conventions(causal=False, naive_attention=True, elementwise=True)
    return {op.name: op for op in build_ledger(load_model("llama-2-7b"), batch, conventions=conventions)}


def test_there_are_32_rows() -> None:
    assert len(ROWS) == 32
    assert {row["stage"] for row in ROWS} == {"prefill", "decode"}


@pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['stage']}-{r['layer']}")
def test_row(row: dict[str, str]) -> None:
    op = _ours(row["stage"])[NAMES.get(row["layer"], row["layer"])]
    wrong = ERRORS.get(row["layer"], {})
    assert float(row["OPs"]) == pytest.approx(float(op.flops_each) * wrong.get("OPs", 1.0), rel=1e-9)
    assert float(row["memory_access"]) == pytest.approx(float(op.bytes_each) * wrong.get("memory_access", 1.0), rel=1e-9)
