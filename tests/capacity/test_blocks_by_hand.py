"""Blocks, groups, pools and drafts, each sum on paper: memory in whole bytes small enough to follow."""

from __future__ import annotations

import math

import pytest

from roofline.capacity import (
    Addition,
    LayerKind,
    Pool,
    Share,
    contiguous,
    delta_net_state_bytes,
    draft_layers,
    draft_model,
    grouped_shares,
    hybrid_pool,
    layer_kinds,
    multi_token_prediction,
    paged,
    token_budget,
)
from roofline.capacity.blocks import exact_shares, full_shares
from roofline.capacity.hybrid import group_size
from roofline.capacity.ranges import NOTHING, ByteRange
from roofline.errors import InputError
from roofline.ledger import Parallel, Precision, stage_weights
from roofline.profiles.model import MLA, MLP, Attention, Extra, GatedDelta, Layer, Model

ONE, PLAIN = Parallel(), Precision()


def _model(order: str, **layers: Layer) -> Model:
    return Model(
        name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, layers=layers, order=order, max_position_embeddings=100
    )


FULL = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=3))  # 2 heads · (3 + 3) · 2 bytes = 24 a token
LOCAL = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=3, window=5))
SHARING = Layer(mixer=Attention(heads=4, kv_heads=2, head_dim=3, shares_kv=True))
STATE = Layer(mixer=GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5))  # 4·3·5·4 = 240 bytes, 32 channels of 2 bytes


def test_ranges() -> None:
    one, other = ByteRange(5.0, 2.0, 9.0), ByteRange(4.0, 3.0, 10.0)
    assert one + other == ByteRange(9.0, 5.0, 19.0)
    assert one.times(3) == ByteRange(15.0, 6.0, 27.0)
    assert one.at_least(other) == other.at_least(one) == ByteRange(5.0, 3.0, 10.0)
    assert ByteRange.exactly(0.0) == NOTHING


def test_layers_that_cache_alike() -> None:
    """Layers without a cache are left out; the first stage of two has the odd layer of this stack."""
    model = _model("2*a + b + 2*c + d + e", a=FULL, b=LOCAL, c=STATE, d=SHARING, e=Layer(ffn=MLP(intermediate=4)))
    state = 240 + 3 * 32 * 2
    expected = (LayerKind(2, 24.0), LayerKind(1, 24.0, 5), LayerKind(2, 0.0, None, state))
    assert tuple(k if k.kv_bytes else LayerKind(k.layers, k.kv_bytes, None, k.state_bytes) for k in
                 layer_kinds(model, parallel=ONE, precision=PLAIN)) == expected  # fmt: skip
    drafting = layer_kinds(model, parallel=ONE, precision=PLAIN, spec_tokens=2)
    assert [kind.state_bytes for kind in drafting] == [0, 0, 240 + 5 * 32 * 2]
    halves = layer_kinds(model, parallel=Parallel(tp=2), precision=Precision(kv="fp8"))
    assert [(kind.kv_bytes, kind.state_bytes) for kind in halves] == [(6, 0), (6, 0), (0, state / 2)]
    assert [kind.layers for kind in layer_kinds(model, parallel=Parallel(pp=2), precision=PLAIN)] == [2, 1, 1]
    assert [kind.layers for kind in layer_kinds(model, parallel=Parallel(pp=2), precision=PLAIN, stage=1)] == [1]
    same = _model("a + b", a=FULL, b=FULL.model_copy(update={"ffn": MLP(intermediate=8)}))
    assert layer_kinds(same, parallel=ONE, precision=PLAIN) == (LayerKind(2, 24.0),)


@pytest.mark.parametrize(
    ("share", "tokens", "new", "blocks"),
    [
        (Share(1.0, 4), 1, 1, 1), (Share(1.0, 4), 4, 1, 1), (Share(1.0, 4), 5, 1, 2), (Share(1.0, 4, 3), 5, 1, 6),
        (Share(1.0, 4, window=5), 100, 1, 3),  # five positions on at most two blocks as they move, and the one begun
        (Share(1.0, 4, window=5), 100, 4, 3), (Share(1.0, 4, window=5), 100, 5, 4), (Share(1.0, 4, window=5), 8, 1, 2),
        (Share(1.0, 4, 2, window=5), 100, 1, 6), (Share(1.0, 4, window=1), 100, 1, 2), (Share(1.0, 4, 3, fixed=2), 100, 1, 6),
    ],
)  # fmt: skip
def test_blocks_of_a_sequence(share: Share, tokens: int, new: int, blocks: int) -> None:
    assert share.blocks(tokens, new) == blocks
    if new == 1:
        assert share.blocks(tokens) == blocks


def test_a_pool_of_equal_blocks() -> None:
    """1,005 bytes are ten blocks of 100; sequences of 9 tokens take three."""
    pool = Pool(1005.0, (Share(100.0, 4),), 1)
    assert (pool.blocks, pool.tokens(), pool.bytes_per_token, pool.fixed_bytes) == (10, 40, 25.0, 0)
    assert pool.request_bytes(9) == 300
    assert pool.concurrency(9) == 1000 / 300
    assert pool.sequences(9) == 3
    assert Pool(899.0 + 100, (Share(100.0, 4),), 1).sequences(9) == 2
    assert pool.tokens_at(9) == 30
    assert Pool(0.0, (Share(100.0, 4),), 1).sequences(9) == Pool(-500.0, (Share(100.0, 4),), 1).sequences(9) == 0
    negative = Pool(-500.0, (Share(100.0, 4),))
    assert (negative.blocks, negative.tokens(), negative.concurrency(4)) == (0, 0, 0)


def test_a_pool_of_equal_blocks_for_two_groups() -> None:
    """Windows of five positions; groups share ten blocks, so that five of each remain and hold four tokens apiece."""
    pool = Pool(1005.0, (Share(100.0, 4), Share(100.0, 4, 2, window=5)), 1)
    assert pool.tokens() == 10 // 3 * 4
    assert pool.request_bytes(100) == 100 * (25 + 2 * 3)
    assert pool.request_bytes(100, 5) == 100 * (25 + 2 * 4)
    assert pool.concurrency(100, 5) == 1000 / 3300
    assert pool.tokens_at(100, 5) == 30
    assert (pool.bytes_per_token, pool.fixed_bytes) == (25, 600)


def test_a_pool_of_unequal_blocks() -> None:
    """Blocks of 100 and 60 bytes, and a state of 40: by the byte, without rounding to blocks."""
    pool = Pool(1005.0, (Share(100.0, 4), Share(60.0, 4, window=5), Share(40.0, 1, fixed=1)))
    assert pool.request_bytes(100) == 2500 + 180 + 40
    assert pool.concurrency(9) == 1005 / (300 + 180 + 40)
    assert pool.tokens() == math.floor(1005 / (25 + 15))
    assert (pool.bytes_per_token, pool.fixed_bytes) == (25, 220)
    assert Pool(-5.0, pool.shares).tokens() == 0
    grouped = Pool(990.0, (Share(100.0, 4, 2), Share(50.0, 4, 3)))
    assert grouped.tokens() == math.floor(990 / (2 * 25 + 3 * 12.5))
    assert grouped.bytes_per_token == 2 * 25 + 3 * 12.5


def test_a_pool_that_only_keeps_states_or_nothing() -> None:
    states = Pool(1005.0, (Share(100.0, 1, 2, fixed=1),))
    assert (states.tokens(), states.bytes_per_token, states.fixed_bytes, states.sequences(7)) == (0, 0, 200, 5)
    empty = Pool(1005.0, ())
    assert (empty.blocks, empty.tokens(), empty.concurrency(5)) == (0, 0, math.inf)
    with pytest.raises(InputError, match="this model caches nothing"):
        empty.sequences(5)
    with pytest.raises(InputError, match="at least 1 token, got 0"):
        states.request_bytes(0)
    assert states.request_bytes(1) == 200
    mixed = Pool(1000.0, (Share(100.0, 4), Share(100.0, 1, 3, fixed=1)))
    assert mixed.tokens() == 10 // 4 * 4


def test_tokens_that_engines_print_are_not_lost_to_rounding() -> None:
    """A pool of exactly 30 sequences of 7 tokens prints 210 tokens, not 209."""
    assert Pool(30 * 70.0, (Share(10.0, 1),)).tokens_at(7) == 210


def test_shares_of_layers() -> None:
    kinds = (LayerKind(2, 24.0), LayerKind(3, 8.0, 5), LayerKind(4, 0.0, None, 50.0))
    assert full_shares(kinds, 4) == (Share((48.0 + 24.0) * 4, 4), Share(200.0, 1, fixed=1))
    assert exact_shares(kinds, 4) == (Share(48.0 * 4, 4), Share(24.0 * 4, 4, window=5), Share(200.0, 1, fixed=1))
    assert full_shares(kinds[2:], 4) == exact_shares(kinds[2:], 4) == (Share(200.0, 1, fixed=1),)
    assert full_shares((), 4) == ()


@pytest.mark.parametrize(
    ("counts", "size"), [([4, 5], 5), ([4, 6], 4), ([10, 14], 14), ([10, 15], 10), ([3, 3], 3), ([30, 10], 10), ([8, 10, 11], 11)]
)
def test_layers_of_a_group(counts: list[int], size: int) -> None:
    assert group_size(counts) == size


def test_groups_of_windows_and_full_layers() -> None:
    """Ten local layers and two full ones: groups of two, one page for each; full layers first."""
    kinds = (LayerKind(11, 8.0, 5), LayerKind(2, 8.0))
    assert grouped_shares(kinds, 4) == (Share(4 * 8.0 * 2, 4), Share(64.0, 4, 6, window=5))
    narrow = (LayerKind(4, 8.0, 5), LayerKind(2, 24.0))  # a page of 4 · 24 bytes holds 12 tokens of the narrow layers
    assert grouped_shares(narrow, 4) == (Share(4 * 24.0 * 2, 4), Share(192.0, 12, 2, window=5))
    assert grouped_shares(kinds[:1], 4) == (Share(4 * 88.0, 4, window=5),)
    states = (LayerKind(2, 0.0, None, 50.0), LayerKind(3, 0.0, None, 70.0))
    assert grouped_shares(states, 4) == (Share(100.0, 1, fixed=1), Share(210.0, 1, fixed=1))


def test_pages_that_hold_a_state() -> None:
    """A state of 100 bytes beside 8 bytes a token: blocks of 4 grow to 16 (128 bytes). Cached states take two pages, drafts one each."""
    kinds = (LayerKind(6, 0.0, None, 100.0), LayerKind(2, 8.0))
    assert grouped_shares(kinds, 4) == (Share(16 * 8.0 * 2, 16), Share(256.0, 1, 3, fixed=2))
    assert grouped_shares(kinds, 4, prefix_caching=False)[1].fixed == 1
    assert grouped_shares(kinds, 4, spec_tokens=3)[1].fixed == 5
    exact = (LayerKind(6, 0.0, None, 96.0), LayerKind(2, 8.0))
    assert grouped_shares(exact, 4)[0] == Share(12 * 8.0 * 2, 12)
    small = (LayerKind(6, 0.0, None, 3.0), LayerKind(2, 8.0))
    assert grouped_shares(small, 4)[0] == Share(4 * 8.0 * 2, 4)
    pool = hybrid_pool(1000.0, attention_layers=2, kv_bytes_per_layer=8.0, state_layers=6, state_bytes=100.0, block_tokens=4)
    assert pool == Pool(1000.0, grouped_shares(kinds, 4), 1)
    assert (pool.blocks, pool.tokens()) == (3, 0)
    drafts = hybrid_pool(
        1e6, attention_layers=2, kv_bytes_per_layer=8.0, state_layers=6, state_bytes=100.0, prefix_caching=False, spec_tokens=1
    )
    assert drafts.shares == (Share(16 * 8.0 * 2, 16), Share(256.0, 1, 3, fixed=2))


def test_state_of_a_delta_net() -> None:
    """32 heads of 128 × 128 in four bytes; three inputs of 2·16·128 + 32·128 channels in two, and one more for each draft."""
    channels = 2 * 16 * 128 + 32 * 128
    assert delta_net_state_bytes(32) == 32 * 128 * 128 * 4 + 3 * channels * 2
    assert delta_net_state_bytes(32, spec_tokens=2) == 32 * 128 * 128 * 4 + 5 * channels * 2
    other = delta_net_state_bytes(6, key_heads=2, head_dim=10, conv=3, state_element_bytes=2, conv_element_bytes=1, tp=2)
    assert other == (600 * 2 + 2 * (40 + 60)) / 2


def test_whole_tokens_of_a_budget() -> None:
    assert (token_budget(100, 30), token_budget(90, 30), token_budget(0, 30), token_budget(29.9, 30)) == (3, 3, 0, 0)
    assert token_budget(1.0, 0.5) == 2
    for memory, each, message in (
        (1.0, 0.0, "KV bytes per token must be positive, got 0"),
        (1.0, math.nan, "must be positive"),
        (-1.0, 1.0, "finite and not negative, got -1"),
        (math.inf, 1.0, "finite and not negative, got inf"),
    ):
        with pytest.raises(InputError, match=message):
            token_budget(memory, each)


def test_reservations() -> None:
    kept = contiguous(10, 4)
    assert (kept.reserved, kept.used, kept.wasted, kept.utilization) == (10, 4, 6, 0.4)
    assert contiguous(4, 4).wasted == contiguous(1, 1).wasted == 0
    assert (paged(17).reserved, paged(16).reserved, paged(1).reserved, paged(5, 4).reserved, paged(3, 1).reserved) == (32, 16, 16, 8, 3)
    for used, size in ((0, 4), (4, 0)):
        with pytest.raises(InputError, match="at least 1"):
            paged(used, size)
    with pytest.raises(InputError, match="between 1 and its 4 reserved tokens, got 5"):
        contiguous(4, 5)


def test_drafts() -> None:
    target = _model("2*a + b", a=FULL, b=LOCAL)
    assert draft_layers(target, 2, 7.0) == Addition("2 draft layers", 7.0, (LayerKind(2, 24.0, 5),))
    assert draft_layers(target, 0, 0.0) == Addition("0 draft layers", 0.0)
    assert draft_layers(target, 1, 7.0, parallel=Parallel(tp=2, pp=3), precision=Precision(kv="fp8")).kinds == (LayerKind(1, 6.0, 5),)
    latent = MLA(heads=4, kv_lora_rank=8, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5)
    split = draft_layers(_model("a", a=Layer(mixer=latent)), 1, 7.0, parallel=Parallel(tp=2, dcp=2))
    assert split.kinds == (LayerKind(1, 10.0),)
    stateful = draft_layers(_model("a", a=STATE), 3, 7.0).kinds
    assert [(kind.layers, kind.kv_bytes, kind.state_bytes) for kind in stateful] == [(3, 0.0, 240 + 3 * 32 * 2)]
    for layers, size in ((-1, 0.0), (0, -1.0)):
        with pytest.raises(InputError, match="cannot be negative"):
            draft_layers(target, layers, size)
    whole = draft_model(target, parallel=Parallel(tp=2, pp=3, dp=2), precision=Precision(weights="fp8"))
    assert whole.name == "draft m"
    assert whole.weight_bytes == stage_weights(target, Parallel(tp=2), weights="fp8").bytes
    assert whole.kinds == (LayerKind(2, 12.0), LayerKind(1, 12.0, 5))


@pytest.mark.parametrize("name", ["MTP", "nextn_predict"])
def test_a_block_that_predicts_more_tokens(name: str) -> None:
    model = _model("a", a=FULL).model_copy(update={"extras": (Extra(name="tower", bytes=50.0), Extra(name=name, bytes=30.0))})
    assert multi_token_prediction(model, parallel=Parallel(tp=2)) == Addition(name, 15.0, (LayerKind(1, 12.0),))
    without = model.model_copy(update={"extras": model.extras[:1]})
    with pytest.raises(InputError, match="m has no multi-token-prediction block; its extras: tower"):
        multi_token_prediction(without)
    with pytest.raises(InputError, match="its extras: none"):
        multi_token_prediction(_model("a", a=FULL))
