"""What each knob buys and what runs out first for a model of two layers on ten thousand bytes, and the whole answer as data."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.capacity import Gain, Known, MemoryPlan, first_limit, knob_gains, memory_plan
from roofline.ledger import Parallel, Precision
from roofline.profiles.model import MLP, Attention, Layer, Model, MoE
from tests.capacity.logs import device

KNOWN = Known(10_000, 2_000, 500, 300)
LIMITS: dict[str, Any] = {"utilization": 0.8, "max_model_len": 40, "known": KNOWN}
ATTENTION = Attention(heads=4, kv_heads=4, head_dim=3)  # 4 · (3 + 3) · 2 = 48 bytes a token and layer


def _model(layer: Layer, order: str = "2*a") -> Model:
    return Model(name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, layers={"a": layer}, order=order)


def _plan(known: Known = KNOWN, **options: Any) -> MemoryPlan:
    return memory_plan(_model(Layer(mixer=ATTENTION)), device(1e6), **LIMITS | {"known": known} | options)


def test_the_answer_as_data() -> None:
    """96 bytes a token, blocks of 1,536: three of 5,200 bytes, one of them empty; forty tokens would take three beside it."""
    assert _plan().as_dict() == {
        "total_bytes": 10_000, "usable_bytes": 8000, "weight_bytes": 2000, "weight_bytes_total": 2000, "kv_bytes_per_token": 96,
        "kv_bytes_total": 5200, "kv_tokens": 48, "kv_tokens_low": 48, "kv_tokens_high": 48, "kv_tokens_total": 48,
        "kv_tokens_windows_honoured": 40, "kv_tokens_printed": 48, "max_sequences": 0, "max_model_len": 40, "largest_model_len": 32,
        "request_fixed_bytes": 0, "request_bytes_per_token": 96, "shortfall_bytes": 4 * 1536 - 5200,
        "activation_bytes": 500, "activation_bytes_low": 500, "activation_bytes_high": 500,
        "runtime_bytes": 300, "runtime_bytes_low": 300, "runtime_bytes_high": 300,
        "kv_bytes": 5200, "kv_bytes_low": 5200, "kv_bytes_high": 5200,
    }  # fmt: skip
    none = _plan(Known(3000, 2000, 500, 300)).as_dict()
    assert [none[key] for key in ("kv_bytes", "kv_bytes_low", "kv_bytes_high", "kv_tokens", "kv_bytes_total")] == [0] * 5


def _gains(layer: Layer, parallel: Parallel = Parallel(), precision: Precision = Precision(), **options: Any) -> list[Gain]:  # noqa: B008 - frozen
    return knob_gains(_model(layer), device(1e6), parallel, precision, length=9, **LIMITS | options)


def test_each_knob_is_another_plan() -> None:
    """Sequences of nine take one block of 1,536 bytes; before, 5,200 bytes are 48 tokens and two sequences beside the empty block."""
    found = {gain.change: gain for gain in _gains(Layer(mixer=ATTENTION))}
    assert list(found) == [
        "memory fraction 0.8 → 0.81", "fp8 KV cache", "tp 1 → 2 (+1 GPU)", "dp 1 → 2 (+1 GPU)", "sequences of 4 tokens",
        "token budget 2048 → 1024", "running sequences at most 256 → 128", "fp8 weights", "int4 weights",
    ]  # fmt: skip
    assert found["memory fraction 0.8 → 0.81"] == Gain("utilization", "memory fraction 0.8 → 0.81", 9, 48, 0, 2, 0, False)
    assert found["fp8 KV cache"] == Gain("kv_dtype", "fp8 KV cache", 9, 96, 48, 5, 3, True)  # six blocks of 768
    assert found["tp 1 → 2 (+1 GPU)"] == Gain("tp", "tp 1 → 2 (+1 GPU)", 9, 96, 48, 5, 3, True)
    assert found["dp 1 → 2 (+1 GPU)"] == Gain("dp", "dp 1 → 2 (+1 GPU)", 9, 96, 48, 4, 2, False)
    assert found["sequences of 4 tokens"] == Gain("length", "sequences of 4 tokens", 4, 48, 0, 2, 0, False)
    assert found["token budget 2048 → 1024"].knob == "max_num_batched_tokens"
    assert found["running sequences at most 256 → 128"].knob == "max_num_seqs"
    assert found["fp8 weights"].knob == found["int4 weights"].knob == "weights"


def test_knobs_turn_what_they_name() -> None:
    """Without measured figures a smaller budget, fewer sequences and smaller weights each leave more."""
    model = _model(Layer(mixer=Attention(heads=64, kv_heads=8, head_dim=128), ffn=MLP(intermediate=4096))).model_copy(
        update={"hidden_size": 2048, "vocab_size": 32000, "max_position_embeddings": 4096}
    )
    before = memory_plan(model, device(8e9))
    gains = {gain.change: gain for gain in knob_gains(model, device(8e9), length=100)}
    settings = before.settings
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (2048, 256)
    for change, options in (
        ("token budget 2048 → 1024", {"max_num_batched_tokens": 1024}),
        ("running sequences at most 256 → 128", {"max_num_seqs": 128}),
        ("memory fraction 0.92 → 0.93", {"utilization": 0.93}),
    ):
        after = memory_plan(model, device(8e9), **options)
        assert gains[change].kv_tokens == after.kv_tokens
        assert gains[change].kv_tokens_gained == after.kv_tokens - before.kv_tokens > 0
        assert after.max_sequences(100) > before.max_sequences(100) > 256
        assert gains[change].sequences == options.get("max_num_seqs", 256)
        assert gains[change].sequences_gained == options.get("max_num_seqs", 256) - 256
    for change in ("fp8", "int4"):
        after = memory_plan(model, device(8e9), precision=Precision(weights=change))
        assert gains[f"{change} weights"].kv_tokens == after.kv_tokens > before.kv_tokens


@pytest.mark.parametrize(
    ("heads", "parallel", "change"),
    [
        (4, Parallel(tp=2), "tp 2 → 4 (+2 GPUs)"),
        (4, Parallel(tp=4), None),  # four heads are on four ranks
        (48, Parallel(tp=3), "tp 3 → 6 (+3 GPUs)"),
        (48, Parallel(tp=16), None),
        (4, Parallel(pp=2), "tp 1 → 2 (+2 GPUs)"),
        (3, Parallel(), None),
    ],
)
def test_the_next_wider_tensor_parallel(heads: int, parallel: Parallel, change: str | None) -> None:
    layer = Layer(mixer=Attention(heads=heads, kv_heads=heads, head_dim=3))
    found = [gain.change for gain in _gains(layer, parallel) if gain.knob == "tp"]
    assert found == ([change] if change else [])


def test_wider_layouts_take_their_experts_along() -> None:
    """Experts of eight spread over two ranks, then over four; where three ranks do not divide them, dp is left out."""
    layer = Layer(mixer=Attention(heads=16, kv_heads=16, head_dim=3), ffn=MoE(experts=8, top_k=1, intermediate=9))
    spread = {gain.knob: gain.change for gain in _gains(layer, Parallel(tp=2, ep=2))}
    assert (spread["tp"], spread["dp"]) == ("tp 2 → 4 (+2 GPUs)", "dp 1 → 2 (+2 GPUs)")
    uneven = {gain.knob for gain in _gains(layer, Parallel(dp=2, ep=2))}
    assert "dp" not in uneven
    assert "tp" in uneven
    odd = Layer(mixer=Attention(heads=16, kv_heads=16, head_dim=3), ffn=MLP(intermediate=8))
    assert [gain.change for gain in _gains(odd, Parallel(tp=1, dp=2)) if gain.knob == "dp"] == ["dp 2 → 3 (+1 GPU)"]


def test_what_is_cached_in_a_byte_cannot_be_halved() -> None:
    knobs = {gain.knob for gain in _gains(Layer(mixer=ATTENTION), precision=Precision(kv="fp8", weights="int4"))}
    assert not knobs & {"kv_dtype", "weights"}
    assert {gain.change for gain in _gains(Layer(mixer=ATTENTION), precision=Precision(weights="int8")) if gain.knob == "weights"} == {
        "int4 weights"
    }


@pytest.mark.parametrize(
    ("plan", "length", "name", "sentence"),
    [
        (_plan(Known(3000, 2000, 500, 300)), 9, "weights", "weights and working memory leave nothing for KV: 400 B too much"),
        (_plan(), 33, "length", "not one sequence of 33 tokens fits; the longest that does has 32"),
        (_plan(), 9, "kv", "KV memory: 2 sequences of 9 tokens; the cap is 256"),
        (_plan(max_num_seqs=2), 9, "max_num_seqs", "the cap of 2 running sequences; KV would hold 2"),
        (_plan(max_num_seqs=3), 9, "kv", "KV memory: 2 sequences of 9 tokens; the cap is 3"),
        (_plan(max_num_seqs=1, parallel=Parallel(dp=2)), 9, "max_num_seqs", "the cap of 2 running sequences; KV would hold 4"),
        (_plan(Known(3500, 2000, 500, 300)), 9, "weights", "weights and working memory leave nothing for KV: 0 B too much"),
    ],
)  # fmt: skip
def test_what_runs_out_first(plan: MemoryPlan, length: int, name: str, sentence: str) -> None:
    assert first_limit(plan, length) == (name, sentence)
