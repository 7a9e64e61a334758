"""What must hold for any model, device and limit; block counts against loops over tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.capacity import ENGINES, Known, LayerKind, Pool, Share, grouped_shares, memory_plan, paged
from roofline.capacity.blocks import exact_shares, full_shares
from roofline.capacity.hybrid import group_size
from roofline.ledger import Parallel, Precision
from roofline.profiles.catalog import load_model
from roofline.profiles.model import MLP, Attention, Layer, Model
from tests.capacity.logs import device

LLAMA, QWEN, DEEPSEEK = (load_model(name) for name in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"))
WINDOWED = Model(
    name="windowed",
    model_type="test",
    source="test",
    hidden_size=512,
    vocab_size=1000,
    max_position_embeddings=32768,
    layers={
        "full": Layer(mixer=Attention(heads=8, kv_heads=2, head_dim=64), ffn=MLP(intermediate=1024)),
        "local": Layer(mixer=Attention(heads=8, kv_heads=2, head_dim=64, window=1024), ffn=MLP(intermediate=1024)),
    },
    order="4*(5*local + full)",
)
models = st.sampled_from([LLAMA, QWEN, DEEPSEEK, WINDOWED])
engines = st.sampled_from(ENGINES)
memories = st.floats(8e9, 2e12)
versions = st.sampled_from([None, "0.6.4", "0.11", "0.19", "0.21"])


@settings(max_examples=60, deadline=None)
@given(models, engines, memories, st.floats(1.0, 3.0), versions)
def test_more_memory_never_holds_fewer_tokens(model: Model, engine: str, memory: float, factor: float, version: str | None) -> None:
    limits = {"max_num_batched_tokens": 2048, "max_num_seqs": 64, "utilization": 0.8}
    less, more = (
        memory_plan(model, device(m), engine=engine, engine_version=version, known=Known(memory=m), **limits)
        for m in (memory, memory * factor)
    )
    assert more.kv_tokens >= less.kv_tokens
    assert more.max_sequences(1000) >= less.max_sequences(1000)
    assert more.shortfall_bytes <= less.shortfall_bytes
    assert more.fits >= less.fits


@settings(max_examples=60, deadline=None)
@given(models, engines, memories, st.integers(1, 40000), versions)
def test_a_plan_never_promises_more_than_it_has(model: Model, engine: str, memory: float, length: int, version: str | None) -> None:
    plan = memory_plan(model, device(memory), engine=engine, engine_version=version)
    sequences = plan.max_sequences(length)
    assert sequences * plan.pool.request_bytes(length) <= max(0.0, plan.kv.expected)
    assert plan.kv.low <= plan.kv.expected <= plan.kv.high
    assert plan.usable_bytes <= plan.total_bytes
    low, expected, high = plan.kv_tokens_range[0], plan.kv_tokens, plan.kv_tokens_range[1]
    assert 0 <= low <= expected <= high
    if plan.fits:
        assert plan.weight_bytes + plan.kv_bytes <= plan.total_bytes
        assert plan.max_sequences(1) >= 1
    else:
        assert plan.shortfall_bytes > 0


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([LLAMA, QWEN]), st.sampled_from([1, 2, 4]), st.sampled_from(["bf16", "fp8"]))
def test_shards_sum_to_the_whole(model: Model, tp: int, kv: str) -> None:
    whole = memory_plan(model, device(2e12), Parallel(), Precision(kv=kv), engine="plain")
    shard = memory_plan(model, device(2e12), Parallel(tp=tp), Precision(kv=kv), engine="plain")
    assert shard.kv_bytes_per_token * tp == whole.kv_bytes_per_token
    assert whole.weight_bytes <= shard.weight_bytes_total <= whole.weight_bytes * 1.01  # norms and routers on every rank


@settings(max_examples=60, deadline=None)
@given(models, st.integers(1, 60000), st.integers(1, 60000))
def test_longer_sequences_never_take_less(model: Model, a: int, b: int) -> None:
    plan = memory_plan(model, device(2e12), engine_version="0.33")
    short, long = sorted((a, b))
    for pool in (plan.pool, plan.pool_charged_full, plan.pool_windows_exact):
        assert pool.request_bytes(short) <= pool.request_bytes(long)
    bound = plan.pool.fixed_bytes + plan.pool.bytes_per_token * (long + plan.pool.shares[0].block_tokens)
    assert plan.pool.request_bytes(long) <= bound


@settings(max_examples=40, deadline=None)
@given(st.integers(512, 65536), st.integers(1, 2048), st.integers(2, 4))
def test_bigger_limits_never_leave_more(tokens: int, seqs: int, factor: int) -> None:
    base = memory_plan(LLAMA, device(80e9), max_num_batched_tokens=tokens, max_num_seqs=seqs)
    for changed in ({"max_num_batched_tokens": tokens * factor}, {"max_num_seqs": seqs * factor}):
        more = memory_plan(LLAMA, device(80e9), **({"max_num_batched_tokens": tokens, "max_num_seqs": seqs} | changed))
        assert more.kv_tokens <= base.kv_tokens


def touched_blocks(tokens: int, block: int, window: int | None) -> int:
    """Most blocks that hold a position the sequence can still see, at any time while it grows to `tokens` tokens."""
    most = 0
    for length in range(1, tokens + 1):
        first = 0 if window is None else max(0, length - window)
        most = max(most, len({position // block for position in range(first, length)}))
    return most


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 120), st.integers(1, 16), st.one_of(st.none(), st.integers(1, 60)), st.integers(1, 4))
def test_blocks_are_enough_and_at_most_one_more(tokens: int, block: int, window: int | None, copies: int) -> None:
    needed = touched_blocks(tokens, block, window)
    charged = Share(1.0, block, copies, window=window).blocks(tokens)
    assert copies * needed <= charged <= copies * (needed + (window is not None))


windows = st.one_of(st.none(), st.integers(16, 4096))
kinds = st.lists(st.builds(LayerKind, st.integers(1, 20), st.sampled_from([512.0, 1024.0]), windows), min_size=1, max_size=3)


@settings(max_examples=80, deadline=None)
@given(kinds, st.integers(1, 20000))
def test_groups_hold_every_layer_and_cost_at_least_the_windows(layers: list[LayerKind], tokens: int) -> None:
    alike = tuple({(k.kv_bytes, k.window): k for k in layers}.values())
    shares = grouped_shares(alike, 16)
    exact, full = Pool(1e9, exact_shares(alike, 16)), Pool(1e9, full_shares(alike, 16))
    assert Pool(1e9, shares).request_bytes(tokens) >= exact.request_bytes(tokens) - 1e-6
    assert exact.request_bytes(tokens) <= full.request_bytes(tokens) + sum(k.layers * k.kv_bytes * 16 for k in alike)
    if len(alike) > 1:
        group = group_size([k.layers for k in alike])
        assert sum(share.copies for share in shares) * group >= sum(k.layers for k in alike)
        assert {share.block_bytes for share in shares} == {16 * max(k.kv_bytes for k in alike) * group}


def test_a_window_larger_than_the_context_is_no_window() -> None:
    wide, open_ = (Pool(1e9, exact_shares((LayerKind(4, 512.0, window),), 16)) for window in (10**6, None))
    assert all(wide.request_bytes(n) == open_.request_bytes(n) for n in (1, 16, 17, 1000))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 256))
def test_paging_wastes_less_than_a_block(used: int, block: int) -> None:
    kept = paged(used, block)
    assert 0 <= kept.wasted < block
    assert kept.utilization == pytest.approx(used / (used + kept.wasted))
