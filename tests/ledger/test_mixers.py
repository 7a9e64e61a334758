"""Each mixer against explicit loops on tiny shapes: pairs attended, entries pooled, states updated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.batch import Batch
from roofline.errors import ShardError
from roofline.ledger import Op, Parallel, build_ledger, kv_bytes_per_token, kv_bytes_stored, layer_tensors, stage_weights
from roofline.ledger.weights import Matrix
from roofline.profiles.model import KDA, MLA, MLP, Attention, Compressed, GatedDelta, Indexer, Layer, Mamba, Mamba2, Mixer, Model, MoE

HIDDEN = 24


def model_of(mixer: Mixer | None, ffn: MLP | MoE | None = None, streams: int = 1) -> Model:
    return Model(
        name="tiny",
        model_type="test",
        source="made here",
        hidden_size=HIDDEN,
        vocab_size=32,
        layers={"only": Layer(mixer=mixer, ffn=ffn or MLP(intermediate=16), streams=streams)},
        order="2*only",
    )


def ops_of(mixer: Mixer, new: list[int], past: list[int]) -> dict[str, list[Op]]:
    found: dict[str, list[Op]] = {}
    for op in build_ledger(model_of(mixer), Batch.of(new, past)):
        found.setdefault(op.name, []).append(op)
    return found


def total(ops: list[Op], what: str) -> float:
    return sum(float(getattr(op, f"{what}_each")) for op in ops)


sequences = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 20)), min_size=1, max_size=3)


@given(sequences, st.integers(1, 6))
def test_gated_delta_net_updates_its_state_once_per_token(batch: list[tuple[int, int]], heads: int) -> None:
    spec = GatedDelta(heads=2 * heads, key_heads=2, key_dim=3, value_dim=5, conv=4, state_bits=32)
    flops = 0
    for new, _ in batch:
        for _token in range(new):
            for _head in range(2 * heads):
                for _key in range(3):
                    for _value in range(5):
                        flops += 1  # decay
                        flops += 2  # multiply-add of the read by the key
                        flops += 2  # multiply-add of the write
                        flops += 2  # multiply-add of the read by the query
            for _channel in range(2 * 2 * 3 + 2 * heads * 5):
                for _tap in range(4):
                    flops += 2
    state = 2 * heads * 3 * 5 * 4 + 3 * (2 * 2 * 3 + 2 * heads * 5) * 2
    ops = ops_of(spec, [n for n, _ in batch], [p for _, p in batch])["delta_net"]
    assert total(ops, "flops") == flops
    assert total(ops, "kv_read_bytes") == sum(state for _, past in batch if past)
    assert total(ops, "kv_write_bytes") == state * len(batch)


@given(sequences)
def test_other_states_are_updated_once_per_token(batch: list[tuple[int, int]]) -> None:
    tokens = sum(new for new, _ in batch)
    new, past = [n for n, _ in batch], [p for _, p in batch]
    kda, mamba2 = KDA(heads=2, head_dim=4), Mamba2(heads=4, head_dim=3, state_size=5, groups=2)
    mamba = Mamba(heads=6, state_size=5, dt_rank=2)

    def count(elements: int, each: int, channels: int) -> int:
        flops = 0
        for _token in range(tokens):
            for _element in range(elements):
                flops += each
            for _channel in range(channels):
                flops += 2 * 4
        return flops

    assert total(ops_of(kda, new, past)["delta_net"], "flops") == count(2 * 4 * 4, 7, 3 * 2 * 4)
    assert total(ops_of(mamba2, new, past)["ssm"], "flops") == count(4 * 3 * 5, 5, 4 * 3 + 2 * 2 * 5)
    assert total(ops_of(mamba, new, past)["ssm"], "flops") == count(6 * 5, 5, 6)


def test_a_state_has_the_size_that_an_engine_logs() -> None:
    """Qwen3.5's 27B: 48 value heads of 128 × 128 in fp32 and 3 inputs of 2·16·128 + 48·128 channels in 16 bits, per layer."""
    spec = GatedDelta(heads=48, key_heads=16, key_dim=128, value_dim=128)
    model = model_of(spec)
    expected = 48 * 128 * 128 * 4 + 3 * (2 * 16 * 128 + 48 * 128) * 2
    assert float(kv_bytes_stored(model, 5000)) == 2 * expected
    assert kv_bytes_per_token(model) == 0
    assert float(kv_bytes_stored(model, 5000, parallel=Parallel(tp=4))) == 2 * expected / 4


COMPRESSED = Compressed(heads=2, head_dim=8, window=3, q_lora_rank=6, out_groups=2, out_lora_rank=4, ratio=4, overlap=True)


def _compressed_pairs(batch: list[tuple[int, int]], window: int, ratio: int, top_k: int | None) -> tuple[int, int]:
    """(window pairs, entry pairs) by looking at every query and every position."""
    near = entries = 0
    for new, past in batch:
        for query in range(past, past + new):
            near += sum(1 for key in range(past + new) if key <= query and query - key < window)
            complete = sum(1 for entry in range(past + new) if (entry + 1) * ratio <= query + 1)
            entries += complete if top_k is None else min(complete, top_k)
    return near, entries


@given(sequences, st.integers(1, 4), st.one_of(st.none(), st.integers(1, 3)))
def test_compressed_attention_sees_a_window_and_complete_entries(batch: list[tuple[int, int]], ratio: int, top_k: int | None) -> None:
    indexer = Indexer(heads=3, head_dim=4, top_k=top_k) if top_k else None
    spec = COMPRESSED.model_copy(update={"ratio": ratio, "indexer": indexer})
    ops = ops_of(spec, [n for n, _ in batch], [p for _, p in batch])
    near, entries = _compressed_pairs(batch, 3, ratio, top_k)
    assert total(ops["attention"], "flops") == 2 * (near + entries) * 2 * (8 + 8)
    if indexer:
        _, scored = _compressed_pairs(batch, 3, ratio, None)
        assert total(ops["indexer"], "flops") == 2 * scored * 3 * (4 + 1)


LATENT = MLA(heads=2, q_lora_rank=6, kv_lora_rank=8, qk_nope_head_dim=4, qk_rope_head_dim=2, v_head_dim=4)


@given(sequences, st.integers(1, 12))
def test_an_indexer_scores_all_and_attention_reads_the_best(batch: list[tuple[int, int]], top_k: int) -> None:
    spec = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=top_k)})
    ops = ops_of(spec, [n for n, _ in batch], [p for _, p in batch])
    scored = kept = read = 0
    for new, past in batch:
        expanded = new > 1 and past + new <= top_k
        read += min(past, new * top_k) * (8 + 2) * 2
        for query in range(past, past + new):
            seen = sum(1 for key in range(past + new) if key <= query)
            scored += seen
            kept += min(seen, top_k) * 2 * 2 * ((6 + 4) if expanded else (10 + 8))
    assert total(ops["indexer"], "flops") == 2 * scored * 3 * (4 + 1)
    assert total(ops["attention"], "flops") == kept
    assert total(ops["attention"], "kv_read_bytes") == read


@given(sequences)
def test_a_large_top_k_is_full_attention_and_a_shared_indexer_costs_nothing(batch: list[tuple[int, int]]) -> None:
    new, past = [n for n, _ in batch], [p for _, p in batch]
    full = ops_of(LATENT, new, past)["attention"]
    indexed = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=1000)})
    shared = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=1000, shared=True)})
    for spec in (indexed, shared):
        ops = ops_of(spec, new, past)
        for what in ("flops", "kv_read_bytes", "kv_write_bytes"):
            assert total(ops["attention"], what) == total(full, what)
    assert "indexer" not in ops_of(shared, new, past)
    assert stage_weights(model_of(shared)).parameters == stage_weights(model_of(LATENT)).parameters
    assert kv_bytes_per_token(model_of(shared)) == kv_bytes_per_token(model_of(LATENT))
    assert kv_bytes_per_token(model_of(indexed)) == kv_bytes_per_token(model_of(LATENT)) + 2 * 4 * 8.25 / 8


WINDOWED: list[Mixer] = [
    Attention(heads=4, kv_heads=2, head_dim=4, window=3),
    Attention(heads=4, kv_heads=2, head_dim=4, chunk=3),
    Attention(heads=4, kv_heads=1, head_dim=4, v_head_dim=6),
    Attention(heads=4, kv_heads=2, head_dim=4, k_is_v=True),
    LATENT,
]


@given(sequences, st.sampled_from(WINDOWED))
def test_no_more_is_read_than_is_stored(batch: list[tuple[int, int]], mixer: Mixer) -> None:
    ops = ops_of(mixer, [n for n, _ in batch], [p for _, p in batch])["attention"]
    stored = sum(float(kv_bytes_stored(model_of(mixer), past)) / 2 for _, past in batch)
    assert total(ops, "kv_read_bytes") <= stored


@given(sequences)
def test_a_wide_window_is_full_attention(batch: list[tuple[int, int]]) -> None:
    new, past = [n for n, _ in batch], [p for _, p in batch]
    full = ops_of(Attention(heads=4, kv_heads=2, head_dim=4), new, past)["attention"]
    for limit in ({"window": 1000}, {"chunk": 1000}):
        clipped = ops_of(Attention(heads=4, kv_heads=2, head_dim=4, **limit), new, past)["attention"]
        for what in ("flops", "kv_read_bytes"):
            assert total(clipped, what) == total(full, what)


def test_layers_that_share_kv_store_none_and_read_it() -> None:
    sharing = Attention(heads=4, kv_heads=2, head_dim=4, shares_kv=True)
    own = Attention(heads=4, kv_heads=2, head_dim=4)
    assert kv_bytes_per_token(model_of(sharing)) == 0
    names = {t.name for t in layer_tensors(model_of(sharing).layers["only"], HIDDEN)}
    assert not names & {"k_proj", "v_proj"}
    reads = total(ops_of(sharing, [1], [9])["attention"], "kv_read_bytes")
    assert reads == total(ops_of(own, [1], [9])["attention"], "kv_read_bytes") > 0
    assert total(ops_of(sharing, [1], [9])["attention"], "kv_write_bytes") == 0


def test_latent_experts_work_on_the_projected_width() -> None:
    moe = MoE(experts=8, top_k=2, intermediate=10, gated=False, latent=6, shared_intermediate=12)
    model = model_of(Attention(heads=2, kv_heads=2, head_dim=4), moe)
    experts = [op for op in build_ledger(model, Batch.of([5])) if op.name == "experts"]
    assert total(experts, "flops") == 2 * 5 * 2 * (2 * 6 * 10)
    matrices = {t.name: t for t in layer_tensors(model.layers["only"], HIDDEN) if isinstance(t, Matrix)}
    assert (matrices["latent_down"].n, matrices["latent_down"].k) == (6, HIDDEN)
    assert matrices["experts.up_proj"].parameters == 8 * 10 * 6


def test_hyper_connections_cost_what_they_mix() -> None:
    plain, mixed = (model_of(Attention(heads=2, kv_heads=2, head_dim=4), streams=s) for s in (1, 4))
    ops = [op for op in build_ledger(mixed, Batch.of([7])) if op.name == "hyper_connection"]
    assert sum(op.count for op in ops) == 2 * 2  # two layers, mixer and feed-forward part each
    flops = 0
    for _token in range(7):
        flops += 2 * (2 * 4 + 16) * (4 * HIDDEN)  # projection of all streams to the mixing weights
        flops += 2 * (2 * 4 + 16) * HIDDEN  # read-in, write-out and the 4 × 4 mixing
    assert total(ops, "flops") == flops
    added = stage_weights(mixed).parameters - stage_weights(plain).parameters
    assert added == 2 * 2 * ((2 * 4 + 16) * 4 * HIDDEN + (2 * 4 + 16) + 3)


SHARDED: list[Mixer] = [
    GatedDelta(heads=8, key_heads=4, key_dim=4, value_dim=4),
    KDA(heads=4, head_dim=4),
    Mamba2(heads=8, head_dim=4, state_size=4, groups=4),
    Mamba(heads=16, state_size=4, dt_rank=2),
]


@pytest.mark.parametrize("mixer", SHARDED, ids=lambda m: m.kind)
def test_states_are_split_over_ranks(mixer: Mixer) -> None:
    one, four = (float(kv_bytes_stored(model_of(mixer), 100, parallel=Parallel(tp=tp))) for tp in (1, 4))
    assert four == one / 4


@pytest.mark.parametrize(
    "mixer",
    [
        GatedDelta(heads=48, key_heads=16, key_dim=4, value_dim=4),
        Mamba2(heads=12, head_dim=4, state_size=4, groups=8),
        Attention(heads=12, kv_heads=4, head_dim=4),
    ],
    ids=lambda m: m.kind,
)
def test_heads_that_are_shared_must_fit_the_ranks(mixer: Mixer) -> None:
    with pytest.raises(ShardError, match="one must divide the other"):
        build_ledger(model_of(mixer, MLP(intermediate=12)), Batch.of([1]), parallel=Parallel(tp=3))


def test_grids_of_batches_work_for_every_mixer() -> None:
    grid = Batch.decode(np.array([[1], [8]]), np.array([[10, 1000]]))
    indexed = COMPRESSED.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=5)})
    for mixer in [*SHARDED, *WINDOWED, COMPRESSED, indexed]:
        ledger = build_ledger(model_of(mixer), grid)
        assert np.asarray(ledger.total("bytes")).shape == (2, 2), mixer.kind
