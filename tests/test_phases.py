"""Closed answers against step-by-step searches and against numbers that can be worked out on paper."""

from __future__ import annotations

import pytest

from roofline.batch import Batch
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision
from roofline.phases import (
    Setup,
    attention_crossover,
    batch_curve,
    compute_bound_prompt,
    kv_crossover,
    latency_limited_batch,
    phase,
    ridge,
)
from roofline.profiles.catalog import load_hardware, load_model

LLAMA = load_model("llama-3.1-8b")
H100 = load_hardware("h100-sxm")
SETUP = Setup(LLAMA, H100)


def test_decode_of_one_sequence_is_its_bytes_over_the_bandwidth() -> None:
    row = phase(SETUP, "decode", batch=1, new_tokens=1, past=4096)
    weights = 16060522496 - 128256 * 4096 * 2 - (2 * 32 + 1) * 4096 * 2  # all but the embedding table and the norms
    assert row.weight_bytes == weights
    assert row.kv_read_bytes == 4096 * 131072
    assert row.kv_write_bytes == 131072
    assert row.limited_by == "memory"
    assert row.time.bound_s == pytest.approx(row.bytes / 3.35e12, rel=1e-12)
    assert row.ridge == pytest.approx(989.4e12 / 3.35e12)


def test_prefill_computes() -> None:
    row = phase(SETUP, "prefill", batch=1, new_tokens=4096, past=0)
    per_token = 2 * (8030261248 - 2 * 128256 * 4096 - 65 * 4096)
    attention = 4 * 4096 * 4097 / 2 * 32 * 128 * 32
    assert row.flops == pytest.approx(4096 * per_token + 2 * 128256 * 4096 + attention, rel=1e-12)
    assert row.attention_flops == attention
    assert row.limited_by == "compute"
    assert row.time.bound_s == pytest.approx(row.flops / 989.4e12, rel=1e-12)


def test_the_knee_is_where_a_walk_over_batches_finds_it() -> None:
    curve = batch_curve(SETUP, 8192, [1, 2, 4])

    def rate(batch: int) -> float:
        return batch / float(SETUP.price(Batch.decode(batch, 8192)).estimate.expected_s)

    for share, found in ((0.5, curve.knee), (0.8, curve.eighty)):
        batch = 1
        while rate(batch) < share * curve.plateau_tokens_per_s:
            batch += 1
        assert found == batch


def test_curve_points_are_single_steps() -> None:
    sizes = [1, 3, 64, 500]
    curve = batch_curve(SETUP, 1000, sizes)
    for i, batch in enumerate(sizes):
        alone = phase(SETUP, "decode", batch=batch, new_tokens=1, past=1000)
        assert curve.tpot.expected_s[i] == pytest.approx(alone.time.expected_s, rel=1e-12)  # type: ignore[index]
        assert curve.tokens_per_s[i] == pytest.approx(alone.tokens_per_s, rel=1e-12)


def test_attention_is_half_of_a_prefill_from_the_crossover_on() -> None:
    length = attention_crossover(SETUP)
    assert length is not None
    for tokens, beyond in ((length - 1, False), (length, True)):
        row = phase(SETUP, "prefill", batch=1, new_tokens=tokens, past=0)
        assert (row.attention_flops >= 0.5 * row.flops) is beyond


def test_kv_passes_weights_at_the_crossover() -> None:
    context = kv_crossover(SETUP, 16)
    weights = phase(SETUP, "decode", batch=16, new_tokens=1, past=1).weight_bytes
    assert context == int(weights // (16 * 131072)) + 1


def test_a_window_never_lets_attention_dominate() -> None:
    layers = {
        name: layer.model_copy(update={"mixer": layer.mixer.model_copy(update={"window": 128})})  # type: ignore[union-attr]
        for name, layer in LLAMA.layers.items()
    }
    assert attention_crossover(Setup(LLAMA.model_copy(update={"layers": layers}), H100)) is None


def test_compute_bound_from_about_the_ridge() -> None:
    tokens = compute_bound_prompt(SETUP)
    assert tokens is not None
    assert 250 < tokens < 500  # 295 FLOP/B at 1 FLOP/B per token and parameter, later by the activations that move


def test_latency_limited_batch_is_the_last_that_keeps_the_promise() -> None:
    batch = latency_limited_batch(SETUP, 1024, 0.02)
    assert phase(SETUP, "decode", batch=batch, new_tokens=1, past=1024).time.expected_s <= 0.02
    assert phase(SETUP, "decode", batch=batch + 1, new_tokens=1, past=1024).time.expected_s > 0.02
    assert latency_limited_batch(SETUP, 1024, 1e-6) == 0


def test_four_pipeline_stages_hold_a_quarter_of_the_batch_each() -> None:
    split = Setup(LLAMA, H100, Parallel(pp=4))
    assert split.per_pass(64) == 16
    assert split.per_pass(65) == 17
    one, four = (phase(s, "decode", batch=64, new_tokens=1, past=1000) for s in (SETUP, split))
    assert four.weight_bytes == one.weight_bytes  # a turn of the pipeline reads every stage's weights once
    assert four.kv_read_bytes == one.kv_read_bytes / 4


def test_fp8_on_a_device_without_fp8_units_shrinks_bytes_not_flops() -> None:
    a100 = load_hardware("a100-sxm-80gb")
    row = phase(Setup(LLAMA, a100, precision=Precision(weights="fp8")), "prefill", batch=1, new_tokens=4096, past=0)
    assert row.ridge == pytest.approx(312e12 / a100.memory_bandwidth)
    assert any("no fp8 unit" in note for note in row.assumptions)
    assert ridge(a100, "fp8") == ridge(a100, "bf16")
    faster = phase(Setup(LLAMA, H100, precision=Precision(weights="fp8")), "prefill", batch=1, new_tokens=4096, past=0)
    assert faster.time.bound_s < phase(SETUP, "prefill", batch=1, new_tokens=4096, past=0).time.bound_s * 0.6


@pytest.mark.parametrize(("batch", "new", "past"), [(0, 1, 0), (1, 0, 0), (1, 1, -1)])
def test_nothing_to_do_is_refused(batch: int, new: int, past: int) -> None:
    with pytest.raises(InputError):
        phase(SETUP, "decode", batch=batch, new_tokens=new, past=past)
