"""Every operation of every kind of mixer on one rank, for a batch small enough to count on fingers.

Three sequences: five new tokens on two cached ones, one on seven, one on none. The five see 3 + 4 + 5 + 6 + 7 = 25 positions, the two
single ones 8 + 1 = 9. Twelve wide, thirty words, two bytes per element; two ranks share each layer unless a test says otherwise.
"""

from __future__ import annotations

from typing import Any

import pytest

from roofline.batch import Batch
from roofline.ledger import Conventions, Parallel, Precision, build_ledger, kv_bytes_per_token, kv_bytes_stored
from roofline.profiles.model import KDA, MLA, Attention, Compressed, GatedDelta, Indexer, Layer, Mamba, Mamba2
from tests.ledger.small import TWO, Row, core, gemm, ledger_of, model_of, numbers

GROUPED = Attention(heads=4, kv_heads=2, head_dim=3, v_head_dim=5)
PROJECTIONS = [gemm("q_proj", 2 * 3, 12), gemm("k_proj", 3, 12), gemm("v_proj", 5, 12)]


def test_grouped_attention() -> None:
    """Two query heads and one KV head per rank; a position is 3 + 5 elements."""
    assert core(GROUPED) == [
        *PROJECTIONS,
        ("attention", "prefill_attention", 3, "bf16", 5, 2, 3, 2 * 25 * 2 * 8, 0, 2 * 8 * 2, 5 * 8 * 2, 5 * 2 * 8 * 2),
        ("attention", "decode_attention", 3, "bf16", 2, 7, 3, 2 * 9 * 2 * 8, 0, 7 * 8 * 2, 2 * 8 * 2, 2 * 2 * 8 * 2),
        gemm("o_proj", 12, 2 * 5),
    ]
    shapes = [op.shape for op in ledger_of(Layer(mixer=GROUPED)) if op.name == "attention"]
    assert shapes == [{"heads": 2, "kv_heads": 1, "head_dim": 3, "v_head_dim": 5, "window": 0, "kv_dtype": "bf16"}] * 2
    assert [op.input for op in ledger_of(Layer(mixer=GROUPED))] == ["qkv"] * 3 + [""] * 3


@pytest.mark.parametrize(
    ("limit", "prefill_pairs", "decode_pairs", "prefill_read", "decode_read"),
    [
        ({"window": 4}, 3 + 4 + 4 + 4 + 4, 4 + 1, 2, 3),
        ({"window": 1}, 5, 2, 0, 0),
        ({"chunk": 4}, 3 + 4 + 1 + 2 + 3, 4 + 1, 2, 3),  # positions 2 … 6 and 7 of blocks of four
        ({"chunk": 7}, 3 + 4 + 5 + 6 + 7, 1 + 1, 2, 0),
    ],
)
def test_windows_and_chunks(limit: dict[str, int], prefill_pairs: int, decode_pairs: int, prefill_read: int, decode_read: int) -> None:
    prefill, decode = core(GROUPED.model_copy(update=limit))[3:5]
    assert prefill == (
        *("attention", "prefill_attention", 3, "bf16", 5, prefill_read, 3),
        *(2 * prefill_pairs * 2 * 8, 0, prefill_read * 16, 5 * 16, 5 * 2 * 16),
    )
    assert decode == (
        *("attention", "decode_attention", 3, "bf16", 2, decode_read, 3),
        *(2 * decode_pairs * 2 * 8, 0, decode_read * 16, 2 * 16, 2 * 2 * 16),
    )
    model = model_of(Layer(mixer=GROUPED.model_copy(update=limit)))
    most = limit.get("window") or limit["chunk"]
    for cached in (1, most - 1, most, most + 1, 100):
        assert float(kv_bytes_stored(model, cached)) == 3 * min(cached, most) * 2 * 16
        assert float(kv_bytes_stored(model, cached, windows=False)) == 3 * cached * 2 * 16


def test_the_window_of_an_operation_is_in_its_shape() -> None:
    windows = [op.shape["window"] for op in ledger_of(Layer(mixer=GROUPED.model_copy(update={"window": 4}))) if op.name == "attention"]
    assert windows == [4, 4]


def test_the_rectangle_that_a_kernel_without_causality_computes() -> None:
    prefill, decode = core(GROUPED, causal=False)[3:5]
    assert (prefill[7], decode[7]) == (2 * 5 * 7 * 16, 2 * (8 + 1) * 16)
    prefill, decode = core(GROUPED.model_copy(update={"window": 4}), causal=False)[3:5]
    assert (prefill[7], decode[7]) == (2 * 5 * 4 * 16, 2 * (4 + 1) * 16)


def test_more_ranks_than_kv_heads_each_keep_one() -> None:
    rows = core(GROUPED, Parallel(tp=4))
    assert rows[:3] == [gemm("q_proj", 3, 12), gemm("k_proj", 3, 12), gemm("v_proj", 5, 12)]
    assert rows[4][7] == 2 * 9 * 1 * 8
    assert rows[4][9] == 7 * 8 * 2
    assert kv_bytes_per_token(model_of(Layer(mixer=GROUPED)), parallel=Parallel(tp=4)) == 3 * 8 * 2


def test_attention_that_leaves_out_projections() -> None:
    """A gate doubles Q; K that serves as V is projected once and cached as both; layers that share KV project and write neither."""
    assert core(GROUPED.model_copy(update={"output_gate": True}))[0] == gemm("q_proj", 12, 12)
    alike = Attention(heads=4, kv_heads=2, head_dim=3, k_is_v=True)
    assert [row[0] for row in core(alike)] == ["q_proj", "k_proj", "attention", "attention", "o_proj"]
    assert core(alike)[2][9:11] == (2 * 6 * 2, 5 * 6 * 2)
    shared = core(GROUPED.model_copy(update={"shares_kv": True}))
    assert [row[0] for row in shared] == ["q_proj", "attention", "attention", "o_proj"]
    assert [row[9:11] for row in shared[1:3]] == [(2 * 16, 0), (7 * 16, 0)]


def test_scores_in_memory() -> None:
    """Three kernels per kind: scores are the whole rectangle (5·7, and 8 + 1), products only what may be seen."""
    rows = core(GROUPED, naive_attention=True)[3:9]
    assert rows == [
        ("qk_matmul", "prefill_attention", 3, "bf16", 5, 2, 3, 2 * 25 * 2 * 3, 0, 2 * 3 * 2, 5 * 3 * 2, 35 * 2 * 2 + 5 * 2 * 3 * 2),
        ("softmax", "softmax", 3, "bf16", 5, 2, 0, 5 * 35 * 2, 0, 0, 0, 35 * 2 * 2 * 2),
        ("sv_matmul", "prefill_attention", 3, "bf16", 5, 2, 5, 2 * 25 * 2 * 5, 0, 2 * 5 * 2, 5 * 5 * 2, 35 * 2 * 2 + 5 * 2 * 5 * 2),
        ("qk_matmul", "decode_attention", 3, "bf16", 2, 7, 3, 2 * 9 * 2 * 3, 0, 7 * 3 * 2, 2 * 3 * 2, 9 * 2 * 2 + 2 * 2 * 3 * 2),
        ("softmax", "softmax", 3, "bf16", 2, 7, 0, 5 * 9 * 2, 0, 0, 0, 9 * 2 * 2 * 2),
        ("sv_matmul", "decode_attention", 3, "bf16", 2, 7, 5, 2 * 9 * 2 * 5, 0, 7 * 5 * 2, 2 * 5 * 2, 9 * 2 * 2 + 2 * 2 * 5 * 2),
    ]
    shared = core(GROUPED.model_copy(update={"shares_kv": True, "window": 4}), naive_attention=True)[1:7]
    assert [row[10] for row in shared] == [0] * 6
    assert shared[0][7] == 2 * (3 + 4 + 4 + 4 + 4) * 2 * 3
    assert shared[1][7] == 5 * (5 * 4) * 2
    assert [row[5] for row in shared] == [2, 2, 2, 3, 3, 3]


def test_types_of_one_run() -> None:
    """KV of one byte halves what the cache moves; fp8 weights are multiplied as fp8, weight-only ones as what comes in."""
    eighth = [numbers(op) for op in ledger_of(Layer(mixer=GROUPED), precision=Precision(kv="fp8", weights="fp8"))]
    assert eighth[0] == ("q_proj", "gemm", 3, "fp8", 7, 6, 12, 2 * 7 * 6 * 12, 6 * 12, 0, 0, 2 * 7 * 18)
    assert eighth[4][9:] == (7 * 8, 2 * 8, 2 * 2 * 8 * 2)
    assert eighth[4][3] == "bf16"
    for name, compute, each in (
        ("int4_g32", "bf16", 6 * (6 + 2)),
        ("fp16", "bf16", 6 * 24),
        ("w8a16", "bf16", 6 * 12),
        ("mxfp8", "fp8", 6 * 13),
    ):
        op = next(iter(ledger_of(Layer(mixer=GROUPED), precision=Precision(weights=name))))
        assert (op.compute, op.weight_dtype, op.weight_bytes_each) == (compute, name, each)  # twelve elements begin one group of scales
    wide = next(iter(ledger_of(Layer(mixer=GROUPED), precision=Precision(activations="fp32"))))
    assert (wide.compute, wide.activation_bytes_each, wide.weight_bytes_each) == ("fp32", 4 * 7 * 18, 2 * 6 * 12)


def test_the_type_of_the_cache_is_asked_stored_or_that_of_the_activations() -> None:
    layer = Layer(mixer=GROUPED)
    stored = model_of(layer, kv_dtype="fp8", dtype="fp16")
    assert kv_bytes_per_token(stored) == 3 * 16 * 1
    assert kv_bytes_per_token(stored, precision=Precision(kv="fp32")) == 3 * 16 * 4
    plain = model_of(layer, dtype="fp16")
    assert Precision(activations="fp32").kv_cache_dtype(plain).name == "fp32"
    assert Precision().kv_cache_dtype(plain).name == Precision().activation_dtype(plain).name == "fp16"
    assert Precision(activations="fp32").activation_dtype(plain).name == "fp32"


LATENT = MLA(heads=4, q_lora_rank=6, kv_lora_rank=8, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5)


def test_latent_attention() -> None:
    """Ten cached elements (8 + 2). The five expand their seven positions; the two single ones multiply the halves in instead."""
    assert core(LATENT) == [
        gemm("q_a_proj", 6, 12),
        gemm("q_b_proj", 2 * 5, 6),
        gemm("kv_a_proj_with_mqa", 10, 12),
        gemm("kv_b_proj", 2 * (3 + 5), 8, rows=7),
        (*gemm("W_UK_absorb", 2 * 3, 8, rows=2)[:11], 2 * 2 * (3 + 8) * 2),
        (*gemm("W_UV_absorb", 2 * 5, 8, rows=2)[:11], 2 * 2 * (5 + 8) * 2),
        ("attention", "prefill_attention", 3, "bf16", 5, 2, 5, 2 * 25 * 2 * (5 + 5), 0, 2 * 20, 5 * 20, 5 * 2 * 10 * 2),
        ("attention", "decode_attention", 3, "bf16", 2, 7, 10, 2 * 9 * 2 * (10 + 8), 0, 7 * 20, 2 * 20, 2 * 2 * 18 * 2),
        gemm("o_proj", 12, 2 * 5),
    ]
    assert core(LATENT.model_copy(update={"q_lora_rank": None}))[0] == gemm("q_proj", 2 * 5, 12)
    ops = {op.name: op for op in ledger_of(Layer(mixer=LATENT))}
    assert ops["W_UK_absorb"].shape == ops["W_UV_absorb"].shape == {"batched": 2}
    assert ops["attention"].shape == {"mla": True, "heads": 2, "kv_dtype": "bf16", "top_k": None}
    assert [op.input for op in ledger_of(Layer(mixer=LATENT))][:3] == ["mla_in", "", "mla_in"]


def test_expansion_counts_the_cached_positions_too() -> None:
    model = model_of(Layer(mixer=LATENT))
    found = {op.name: op for op in build_ledger(model, Batch.of([4, 3], [10, 0]))}
    assert float(found["kv_b_proj"].m) == 4 + 10 + 3
    assert "W_UK_absorb" not in found
    assert "kv_b_proj" not in {op.name for op in build_ledger(model, Batch.of([1, 1], [10, 0]))}


def test_ranks_that_split_the_latent_cache() -> None:
    rows = core(LATENT, Parallel(tp=2, dcp=2))
    assert rows[7][9:11] == (7 * 20 / 2, 2 * 20 / 2)
    model = model_of(Layer(mixer=LATENT))
    assert kv_bytes_per_token(model) == kv_bytes_per_token(model, parallel=TWO) == 3 * 20
    assert kv_bytes_per_token(model, parallel=Parallel(tp=2, dcp=2)) == 3 * 10


def test_an_indexer_before_latent_attention() -> None:
    """The best four. Seven positions are too many to expand, so all attend in the latent; keys of the indexer take one byte."""
    spec = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=4, cache_bits=8)})
    rows = core(spec)
    assert rows[3:6] == [gemm("indexer.wq_b", 12, 6), gemm("indexer.wk", 4, 12), gemm("indexer.weights_proj", 3, 12)]
    assert [row[0] for row in rows[6:]] == ["W_UK_absorb", "W_UV_absorb", "indexer", "indexer", "attention", "attention", "o_proj"]
    assert rows[6][4] == 7
    assert rows[8:12] == [
        ("indexer", "prefill_attention", 3, "fp8", 5, 2, 4, 2 * 25 * 3 * 5, 0, 2 * 4, 5 * 4, 5 * 3 * 5 * 2),
        ("indexer", "decode_attention", 3, "fp8", 2, 7, 4, 2 * 9 * 3 * 5, 0, 7 * 4, 2 * 4, 2 * 3 * 5 * 2),
        ("attention", "prefill_attention", 3, "bf16", 5, 2, 10, 2 * (3 + 4 * 4) * 2 * 18, 0, 2 * 20, 5 * 20, 5 * 2 * 18 * 2),
        ("attention", "decode_attention", 3, "bf16", 2, 4, 10, 2 * (4 + 1) * 2 * 18, 0, 4 * 20, 2 * 20, 2 * 2 * 18 * 2),
    ]
    shapes = [op.shape for op in ledger_of(Layer(mixer=spec)) if op.name in ("indexer", "attention")]
    assert shapes[0] == shapes[1] == {"indexer": True, "heads": 3, "kv_heads": 1, "head_dim": 4}
    assert shapes[2] == {"mla": True, "heads": 2, "kv_dtype": "bf16", "top_k": 4}
    assert kv_bytes_per_token(model_of(Layer(mixer=spec))) == 3 * (20 + 4)
    split = core(spec, Parallel(tp=2, dcp=2))
    assert split[9][9:11] == (7 * 4 / 2, 2 * 4 / 2)
    wide = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=4, cache_bits=16)})
    assert core(wide)[8][3] == "bf16"
    seven = LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=7, cache_bits=8)})
    assert "kv_b_proj" in [row[0] for row in core(seven)]  # seven positions of at most seven are expanded


COMPRESSED = Compressed(heads=4, head_dim=3, window=4, q_lora_rank=6, out_groups=2, out_lora_rank=5, ratio=3)


def test_compressed_attention() -> None:
    """One entry per three positions. Positions 2 … 6 see 1, 1, 1, 2, 2 whole entries, position 7 sees 2; the five complete two."""
    rows = core(COMPRESSED)
    assert rows == [
        gemm("q_a_proj", 6, 12),
        gemm("q_b_proj", 2 * 3, 6),
        gemm("kv_proj", 3, 12),
        gemm("compressor.kv_proj", 3, 12),
        gemm("compressor.gate_proj", 3, 12),
        gemm("o_a_proj", 5, 2 * 3),
        (
            *("attention", "prefill_attention", 3, "bf16", 5, 2 + 0, 3),
            *(4 * ((3 + 4 * 4) + (1 + 1 + 1 + 2 + 2)) * 2 * 3, 0, 2 * 3 * 2, (5 + 2) * 3 * 2, 2 * 5 * 2 * 3 * 2),
        ),
        (
            *("attention", "decode_attention", 3, "bf16", 2, 3 + 2, 3),
            *(4 * ((4 + 1) + 2) * 2 * 3, 0, (3 + 2) * 3 * 2, 2 * 3 * 2, 2 * 2 * 2 * 3 * 2),
        ),
        gemm("o_b_proj", 12, 5),
    ]
    inputs = [op.input for op in ledger_of(Layer(mixer=COMPRESSED))]
    assert inputs == ["compressed", "", "compressed", "compressed", "compressed", "", "", "", ""]
    assert [op.shape for op in ledger_of(Layer(mixer=COMPRESSED)) if op.name == "attention"] == [
        {"compressed": True, "heads": 2, "kv_heads": 1, "head_dim": 3}
    ] * 2
    more = core(COMPRESSED, Parallel(tp=4))
    assert (more[5], more[8]) == (gemm("o_a_proj", 5, 6), gemm("o_b_proj", 12, 5))  # four ranks, two groups: one each


def test_compressed_attention_keeps_a_window_and_unfinished_pools() -> None:
    """The window's four positions in two bytes; keys and gates of three positions in four, twice over and twice as wide with overlap."""
    model = model_of(Layer(mixer=COMPRESSED))
    assert kv_bytes_per_token(model) == 3 * 3 * 2 / 3
    fixed = 4 * 3 * 2 + 2 * 3 * 3 * 4
    assert float(kv_bytes_stored(model, 9)) == 3 * (9 * 2 + fixed)
    overlapping = COMPRESSED.model_copy(update={"overlap": True, "indexer": Indexer(heads=2, head_dim=5, top_k=1, cache_bits=8)})
    indexed = model_of(Layer(mixer=overlapping))
    assert kv_bytes_per_token(indexed) == 3 * (3 * 2 + 5) / 3
    fixed = 4 * 3 * 2 + 2 * 3 * 4 * 3 * 4 + 2 * 3 * 4 * 5 * 4
    assert float(kv_bytes_stored(indexed, 9)) == 3 * (9 * 11 / 3 + fixed)
    alone = model_of(Layer(mixer=COMPRESSED.model_copy(update={"ratio": None})))
    assert kv_bytes_per_token(alone) == 0
    assert float(kv_bytes_stored(alone, 9)) == 3 * 4 * 3 * 2
    assert [row[0] for row in core(COMPRESSED.model_copy(update={"ratio": None}))][2:4] == ["kv_proj", "o_a_proj"]


def test_compressed_attention_with_an_indexer() -> None:
    spec = COMPRESSED.model_copy(update={"overlap": True, "indexer": Indexer(heads=2, head_dim=5, top_k=1, cache_bits=8)})
    rows = core(spec)
    assert rows[3:10] == [
        gemm("compressor.kv_proj", 6, 12),
        gemm("compressor.gate_proj", 6, 12),
        gemm("indexer.compressor.kv_proj", 10, 12),
        gemm("indexer.compressor.gate_proj", 10, 12),
        gemm("indexer.wq_b", 10, 6),
        gemm("indexer.weights_proj", 2, 12),
        gemm("o_a_proj", 5, 6),
    ]
    assert rows[10] == ("indexer", "prefill_attention", 3, "fp8", 5, 0, 5, 2 * 7 * 2 * 6, 0, 0, 2 * 5, 5 * 2 * 6 * 2)
    assert rows[11][7] == 4 * (19 + 5) * 2 * 3  # each of the five sees one entry at most
    assert rows[12] == ("indexer", "decode_attention", 3, "fp8", 2, 2, 5, 2 * 2 * 2 * 6, 0, 2 * 5, 0, 2 * 2 * 6 * 2)
    assert rows[13][5:10] == (3 + 1, 3, 4 * (5 + 1) * 2 * 3, 0, 4 * 6)


def test_each_new_token_reads_its_best_entries() -> None:
    """Nine entries lie in the cache: two tokens with two each read four of them, five tokens with two each all nine."""
    spec = COMPRESSED.model_copy(update={"indexer": Indexer(heads=2, head_dim=5, top_k=2, cache_bits=8)})
    for new, entries in ((1, 2), (2, 4), (5, 9)):
        ledger = build_ledger(model_of(Layer(mixer=spec)), Batch.of([new], [29]))
        (attention,) = (op for op in ledger if op.name == "attention")
        assert float(attention.n) == 3 + entries
        assert float(attention.kv_read_bytes_each) == (3 + entries) * 3 * 2


STATEFUL = [
    (  # 2 value heads of 3 × 5 and one key head: 2·3 + 10 channels
        GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5),
        [gemm("in_proj_qkv", 16, 12), gemm("in_proj_z", 10, 12), gemm("in_proj_b", 2, 12), gemm("in_proj_a", 2, 12)],
        ("delta_net", 7 * 30 + 2 * 4 * 16, 30 * 4 + 3 * 16 * 2, 16 + 2 * 10),
        gemm("out_proj", 12, 10),
    ),
    (  # 2 heads of 3 × 3, all three inputs convolved; gates through 3
        KDA(heads=4, head_dim=3),
        [
            *(gemm(f"{name}_proj", 6, 12) for name in "qkv"),
            *(gemm("b_proj", 2, 12), gemm("f_a_proj", 3, 12), gemm("f_b_proj", 6, 3), gemm("g_a_proj", 3, 12), gemm("g_b_proj", 6, 3)),
        ],
        ("delta_net", 7 * 18 + 2 * 4 * 18, 18 * 4 + 3 * 18 * 2, 6 * 6),
        gemm("o_proj", 12, 6),
    ),
    (  # 2 heads of 3, state 5, one of two groups: 6 + 2·5 channels
        Mamba2(heads=4, head_dim=3, state_size=5, groups=2),
        [gemm("in_proj", 6 + 16 + 2, 12)],
        ("ssm", 5 * 30 + 2 * 4 * 16, 30 * 4 + 3 * 16 * 2, 16 + 2 * 6 + 2),
        gemm("out_proj", 12, 6),
    ),
    (  # 4 channels, state 5, step through 3
        Mamba(heads=8, state_size=5, dt_rank=3),
        [gemm("in_proj", 8, 12), gemm("x_proj", 13, 4), (*gemm("dt_proj", 4, 3)[:8], 2 * (12 + 4), *gemm("dt_proj", 4, 3)[9:])],
        ("ssm", 5 * 20 + 2 * 4 * 4, 20 * 4 + 3 * 4 * 2, 4 * 4 + 2 * 5),
        gemm("out_proj", 12, 4),
    ),
]


@pytest.mark.parametrize(("mixer", "inward", "update", "outward"), STATEFUL, ids=lambda value: getattr(value, "kind", ""))
def test_layers_with_a_state(mixer: Any, inward: list[Row], update: tuple[str, int, int, int], outward: Row) -> None:
    """Two of the three sequences have a past whose state is read; all three leave one."""
    name, flops, state, width = update
    step = (name, "state", 3, "bf16", 7, 2, 0, 7 * flops, 0, 2 * state, 3 * state, 7 * width * 2)
    assert core(mixer) == [*inward, step, outward]
    model = model_of(Layer(mixer=mixer))
    assert kv_bytes_per_token(model, parallel=TWO) == 0
    assert [float(kv_bytes_stored(model, n, parallel=TWO)) for n in (1, 1000)] == [3 * state] * 2


def test_ranks_share_what_cannot_be_split_further() -> None:
    """Four ranks, two key heads or groups: each has one, beside its quarter of the value heads."""
    delta = core(GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5), Parallel(tp=4))
    assert delta[0] == gemm("in_proj_qkv", 2 * 3 + 5, 12)
    mamba = core(Mamba2(heads=4, head_dim=3, state_size=5, groups=2), Parallel(tp=4))
    assert mamba[0] == gemm("in_proj", 3 + (3 + 2 * 5) + 1, 12)
    biased = core(Mamba2(heads=4, head_dim=3, state_size=5, groups=2, bias=True))
    assert (biased[0][8], biased[2][8]) == (2 * (24 * 12 + 24), 2 * (12 * 6 + 12))
    first = core(Mamba(heads=8, state_size=5, dt_rank=3, bias=True))
    assert (first[0][8], first[4][8]) == (2 * (8 * 12 + 8), 2 * (12 * 4 + 12))


@pytest.mark.parametrize(
    "mixer",
    [
        *(GROUPED, LATENT, COMPRESSED),
        LATENT.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=4)}),
        COMPRESSED.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=4)}),
    ],
    ids=["grouped", "latent", "compressed", "latent-indexed", "compressed-indexed"],
)
def test_what_nobody_asks_for_is_not_listed(mixer: Any) -> None:
    """Prompts alone have no decode kernels, decodes alone none of prompts."""
    for batch, kind in ((Batch.of([5, 9], [2, 0]), "prefill_attention"), (Batch.of([1, 1], [2, 0]), "decode_attention")):
        for naive in (False, True):
            ledger = build_ledger(model_of(Layer(mixer=mixer)), batch, conventions=Conventions(naive_attention=naive))
            kinds = [op.kind for op in ledger if op.kind not in ("gemm", "softmax")]
            assert set(kinds) == {kind}
            assert len(kinds) == (2 if getattr(mixer, "indexer", None) or (naive and mixer is GROUPED) else 1)
            assert all(float(op.m) > 0 for op in ledger)
