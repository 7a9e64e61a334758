"""The article's numbers (its errata marked in the file), each through the public API."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from roofline import envelope
from roofline.batch import Batch
from roofline.ledger import Conventions, Precision, build_ledger, kv_bytes_per_token, kv_bytes_stored
from roofline.profiles.catalog import load_model

SEED = list(csv.DictReader((Path(__file__).parent / "seed.csv").read_text().splitlines()))

FORMULAS: dict[str, Callable[..., float]] = {
    "ridge_point": lambda peak_flops, bandwidth: envelope.ridge_intensity(peak_flops, bandwidth),
    "prefill_intensity_weights_only": lambda params, bytes_per_param, tokens: envelope.weights_only_intensity(tokens, bytes_per_param),
    "decode_intensity_weights_only": lambda params, bytes_per_param, batch: envelope.weights_only_intensity(batch, bytes_per_param),
    "prefill_linear_flops": lambda params, tokens: envelope.linear_flops(params, tokens),
    "attention_flops_full": lambda layers, d, tokens: envelope.attention_flops(layers, d, tokens, causal=False),
    "attention_share_full": lambda params, layers, d, tokens: envelope.attention_share(params, layers, d, tokens, causal=False),
    "attention_share_causal_T2_over_2": lambda params, layers, d, tokens: envelope.attention_share(params, layers, d, tokens, causal=True),
    "decode_time": lambda weights, kv_per_token, batch, context, bandwidth: envelope.decode_seconds(
        weights, kv_per_token, batch, context, bandwidth
    ),
    "decode_ceiling": lambda weights, kv_per_token, batch, context, bandwidth: envelope.decode_tokens_per_s(
        weights, kv_per_token, batch, context, bandwidth
    ),
    "kv_bytes_per_token": lambda layers, kv_heads, head_dim, bytes_: envelope.kv_bytes_per_token(layers, kv_heads, head_dim, bytes_),
    "kv_bytes": lambda layers, kv_heads, head_dim, bytes_, tokens: tokens * envelope.kv_bytes_per_token(layers, kv_heads, head_dim, bytes_),
    "token_budget": lambda kv_memory, kv_per_token: envelope.token_budget(kv_memory, kv_per_token),
    "tokens_used": lambda sequences, context: sequences * context,
    "naive_score_bytes": lambda tokens, bytes_: envelope.naive_score_bytes(tokens, bytes_),
    "kv_read_time": lambda kv_bytes, bandwidth: envelope.decode_seconds(0, kv_bytes, 1, 1, bandwidth),
    "reserved_waste": lambda reserved, used: envelope.reserved_waste(int(reserved), int(used)),
}


def _inputs(text: str) -> dict[str, float]:
    return {"bytes_" if key == "bytes" else key: float(value) for key, value in (part.split("=") for part in text.split(";"))}


@pytest.mark.parametrize("row", SEED, ids=lambda r: f"{r['row']}-{r['quantity']}-{r['inputs']}")
def test_every_row_of_the_seed(row: dict[str, str]) -> None:
    tolerance = float(row["relative_tolerance"])
    if row["quantity"] == "prefill_ratio_full":
        longer, shorter = (_total(6.7e9, 32, 4096, tokens) for tokens in (4096, 2048))
        assert longer / shorter == pytest.approx(float(row["value"]), rel=tolerance)
        return
    assert FORMULAS[row["quantity"]](**_inputs(row["inputs"])) == pytest.approx(float(row["value"]), rel=tolerance, abs=0)


def _total(params: float, layers: int, d: float, tokens: float) -> float:
    return envelope.linear_flops(params, tokens) + envelope.attention_flops(layers, d, tokens, causal=False)


def test_the_ledger_agrees_with_the_article_on_llama_2_7b() -> None:
    model = load_model("llama-2-7b")
    assert kv_bytes_per_token(model) == 524288
    assert kv_bytes_stored(model, 2048) == 2**30
    assert kv_bytes_stored(model, 32768) == 16 * 2**30
    full = build_ledger(model, Batch.prefill(1, 2048), conventions=Conventions(causal=False))
    attention = sum(op.count * op.flops_each for op in full if op.kind == "prefill_attention")
    assert attention == 2199023255552
    causal = build_ledger(model, Batch.prefill(1, 2048))
    assert sum(op.count * op.flops_each for op in causal if op.kind == "prefill_attention") == 4 * 2048 * 2049 / 2 * 4096 * 32
    naive = build_ledger(
        model, Batch.prefill(1, 8192), conventions=Conventions(naive_attention=True, causal=False), precision=Precision(activations="fp16")
    )
    scores = next(op for op in naive if op.name == "qk_matmul")
    assert scores.activation_bytes_each - 8192 * 4096 * 2 == 32 * 128 * 2**20  # 128 MiB per head, and the queries
