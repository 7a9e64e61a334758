"""What a rank holds: small tensors of every kind of layer, the tensors outside of the layers, stages, roles and layouts that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.errors import ShardError
from roofline.ledger import (
    Parallel,
    active_parameters,
    extra_weights,
    kv_bytes_stored,
    layer_tensors,
    outer_tensors,
    parameters,
    stage_weights,
)
from roofline.ledger.ffn import fewest_experts
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import KDA, MLA, MLP, Attention, Compressed, Extra, GatedDelta, Indexer, Layer, Mamba, Mamba2, Model, MoE
from tests.ledger.small import ONE, TWO, model_of

GROUPED = Attention(heads=4, kv_heads=2, head_dim=3, v_head_dim=5)
LATENT = MLA(heads=4, q_lora_rank=6, kv_lora_rank=8, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5)
COMPRESSED = Compressed(heads=4, head_dim=3, window=4, q_lora_rank=6, out_groups=2, out_lora_rank=5, ratio=3)
INDEXER = Indexer(heads=3, head_dim=4, top_k=4)


def _vectors(layer: Layer, parallel: Parallel) -> dict[str, tuple[int, int]]:
    """name: (elements of one copy, copies)"""
    return {t.name: (t.size, t.copies) for t in layer_tensors(layer, 12, parallel) if isinstance(t, Vector)}


@pytest.mark.parametrize(
    ("mixer", "one", "two"),
    [
        (GROUPED, {}, {}),
        (GROUPED.model_copy(update={"qk_norm": "head"}), {"q_norm": 3, "k_norm": 3}, {"q_norm": 3, "k_norm": 3}),
        (
            GROUPED.model_copy(update={"qk_norm": "full", "qk_norm_bias": True}),
            {"q_norm": 2 * 12, "k_norm": 2 * 6},
            {"q_norm": 2 * 6, "k_norm": 2 * 3},
        ),
        (
            GROUPED.model_copy(update={"qk_norm": "head", "shares_kv": True, "sinks": True}),
            {"q_norm": 3, "sinks": 4},
            {"q_norm": 3, "sinks": 2},
        ),
        (LATENT, {"q_a_layernorm": 6, "kv_a_layernorm": 8}, {"q_a_layernorm": 6, "kv_a_layernorm": 8}),
        (
            LATENT.model_copy(update={"q_lora_rank": None, "indexer": INDEXER}),
            {"kv_a_layernorm": 8, "indexer.k_norm": 2 * 4},
            {"kv_a_layernorm": 8, "indexer.k_norm": 2 * 4},
        ),
        (
            COMPRESSED,
            {"sinks": 4, "q_a_norm": 6, "kv_norm": 3, "compressor.position_bias": 9, "compressor.kv_norm": 3},
            {"sinks": 2, "q_a_norm": 6, "kv_norm": 3, "compressor.position_bias": 9, "compressor.kv_norm": 3},
        ),
        (
            COMPRESSED.model_copy(update={"overlap": True, "indexer": INDEXER}),
            {
                "sinks": 4, "q_a_norm": 6, "kv_norm": 3, "compressor.position_bias": 3 * 6, "compressor.kv_norm": 3,
                "indexer.compressor.position_bias": 3 * 8, "indexer.compressor.kv_norm": 4,
            },
            {
                "sinks": 2, "q_a_norm": 6, "kv_norm": 3, "compressor.position_bias": 3 * 6, "compressor.kv_norm": 3,
                "indexer.compressor.position_bias": 3 * 8, "indexer.compressor.kv_norm": 4,
            },
        ),
        (
            GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5),
            {"conv1d": 4 * (2 * 6 + 20), "A_log": 4, "dt_bias": 4, "norm": 5},
            {"conv1d": 4 * (2 * 3 + 10), "A_log": 2, "dt_bias": 2, "norm": 5},
        ),
        (
            KDA(heads=4, head_dim=3),
            {"conv1d": 4 * 3 * 12, "A_log": 4, "dt_bias": 12, "o_norm": 3},
            {"conv1d": 4 * 3 * 6, "A_log": 2, "dt_bias": 6, "o_norm": 3},
        ),
        (
            Mamba2(heads=4, head_dim=3, state_size=5, groups=2),
            {"conv1d": (4 + 1) * (12 + 20), "A_log": 4, "D": 4, "dt_bias": 4, "norm": 12},
            {"conv1d": (4 + 1) * (6 + 10), "A_log": 2, "D": 2, "dt_bias": 2, "norm": 6},
        ),
        (
            Mamba2(heads=4, head_dim=3, state_size=5, groups=2, conv_bias=False, gated_norm=False),
            {"conv1d": 4 * 32, "A_log": 4, "D": 4, "dt_bias": 4},
            {"conv1d": 4 * 16, "A_log": 2, "D": 2, "dt_bias": 2},
        ),
        (
            Mamba(heads=8, state_size=5, dt_rank=3, inner_norms=True),
            {"conv1d": 5 * 8, "A_log": 40, "D": 8, "inner_norms": 3 + 10},
            {"conv1d": 5 * 4, "A_log": 20, "D": 4, "inner_norms": 3 + 10},
        ),
        (
            Mamba(heads=8, state_size=5, dt_rank=3, conv_bias=False),
            {"conv1d": 32, "A_log": 40, "D": 8},
            {"conv1d": 16, "A_log": 20, "D": 4},
        ),
    ],
)  # fmt: skip
def test_small_tensors_of_a_mixer(mixer: Any, one: dict[str, int], two: dict[str, int]) -> None:
    for parallel, expected in ((ONE, one), (TWO, two)):
        names = {t.name: t.size for t in layer_tensors(Layer(mixer=mixer, norms=0), 12, parallel) if isinstance(t, Vector)}
        assert names == expected


def test_biases_lie_beside_matrices() -> None:
    """Each output of a biased projection has one element more; four bytes where biases are kept in fp32."""
    layer = Layer(mixer=GROUPED.model_copy(update={"qkv_bias": True, "o_bias": True}), weights={"bias": "fp32"})
    model = model_of(layer)
    for parallel, sizes in ((ONE, {"q_proj": 12, "k_proj": 6, "v_proj": 10}), (TWO, {"q_proj": 6, "k_proj": 3, "v_proj": 5})):
        found = {t.name: t for t in layer_tensors(layer, 12, parallel) if isinstance(t, Matrix)}
        for name, rows in sizes.items():
            assert found[name].parameters == rows * 12 + rows
            assert found[name].bytes(model, layer) == rows * 12 * 2 + rows * 4
        assert found["o_proj"].parameters == 12 * (20 // parallel.tp) + 12
    latent = {t.name: t.bias for t in layer_tensors(Layer(mixer=LATENT.model_copy(update={"bias": True})), 12) if isinstance(t, Matrix)}
    assert latent == {"q_a_proj": 6, "q_b_proj": 0, "kv_a_proj_with_mqa": 10, "kv_b_proj": 0, "o_proj": 12}
    none = [t.bias for t in layer_tensors(Layer(mixer=LATENT, ffn=MLP(intermediate=10)), 12) if isinstance(t, Matrix)]
    assert none == [0] * 8


def test_norms_streams_and_other_vectors() -> None:
    layer = Layer(mixer=None, ffn=MLP(intermediate=10), norms=3, norm_bias=True, vectors={"scale": 7}, streams=2)
    assert _vectors(layer, TWO) == {"norm": (24, 3), "scale": (7, 1), "streams.base": (2 * 2 + 4 + 3, 1)}
    assert _vectors(Layer(mixer=GROUPED, ffn=MLP(intermediate=10), streams=4), TWO) == {"norm": (12, 2), "streams.base": (27, 2)}
    assert _vectors(Layer(mixer=GROUPED, norms=0), TWO) == {}
    (streams,) = (t for t in layer_tensors(layer, 12) if t.role == "streams" and isinstance(t, Matrix))
    assert (streams.n, streams.k, streams.copies) == (8, 24, 1)
    assert streams.bytes(model_of(layer), layer, "int4") == 8 * 24 * 4  # fp32 whatever the matrices are


def test_tensors_of_experts() -> None:
    spec = MoE(
        experts=8, top_k=2, intermediate=10, shared_intermediate=6, shared_gate=True, router_bias=True, expert_bias=True, latent=4,
    )  # fmt: skip
    found = {t.name: t for t in layer_tensors(Layer(ffn=spec, norms=0), 12, Parallel(tp=2, dp=2, ep=2))}
    shapes = {name: (t.role, t.n, t.k, t.copies, t.bias) for name, t in found.items() if isinstance(t, Matrix)}
    assert shapes == {
        "router": ("router", 8, 12, 1, 0),
        "latent_down": ("shared_experts", 4, 12, 1, 0),
        "latent_up": ("shared_experts", 12, 4, 1, 0),
        "experts.gate_proj": ("experts", 5, 4, 4, 5),
        "experts.up_proj": ("experts", 5, 4, 4, 5),
        "experts.down_proj": ("experts", 4, 5, 4, 4),
        "shared_experts.gate_proj": ("shared_experts", 3, 12, 1, 0),
        "shared_experts.up_proj": ("shared_experts", 3, 12, 1, 0),
        "shared_experts.down_proj": ("shared_experts", 12, 3, 1, 0),
        "shared_expert_gate": ("router", 1, 12, 1, 0),
    }
    assert found["experts.gate_proj"].parameters == 4 * (5 * 4 + 5)
    assert found["e_score_correction_bias"].bytes(model_of(Layer(ffn=spec)), None) == 8 * 4
    inputs = {t.name: t.input for t in found.values() if isinstance(t, Matrix) and t.input}
    assert inputs == {
        "experts.gate_proj": "experts.ffn", "experts.up_proj": "experts.ffn",
        "shared_experts.gate_proj": "shared_experts.ffn", "shared_experts.up_proj": "shared_experts.ffn",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("top_k", "ep", "tokens", "fewest"), [(8, 1, 5.0, 8), (8, 4, 1.0, 2), (8, 3, 0.5, 3), (2, 8, 9.0, 1), (8, 1, 0.0, 0)]
)
def test_the_busiest_rank_reads_at_least_its_part_of_one_token(top_k: int, ep: int, tokens: float, fewest: int) -> None:
    assert float(fewest_experts(top_k, ep, tokens)) == fewest


def test_outer_tensors_of_first_and_last_stages() -> None:
    layer = Layer(ffn=MLP(intermediate=10))
    full = model_of(
        layer, learned_positions=9, embedding_norm=True, lm_head_bias=True, vectors={"gate": 5}
    )  # fmt: skip
    first = {"embed_tokens": 15 * 12, "embed_positions": 9 * 12, "embedding_norm": 12}
    last = {"lm_head": 15 * 12, "lm_head.bias": 15, "final_norm": 12, "gate": 5}

    def sizes(model: Model, **ends: bool) -> dict[str, int]:
        return {t.name: t.parameters for t in outer_tensors(model, TWO, **ends)}

    assert sizes(full) == first | last
    assert sizes(full, last=False) == first
    assert sizes(full, first=False) == last
    assert sizes(full, first=False, last=False) == {}
    tied = model_of(layer, tie_word_embeddings=True, final_norm=False)
    assert sizes(tied) == {"embed_tokens": 15 * 12}
    assert sizes(tied, first=False) == {"lm_head": 15 * 12}
    roles = {t.name: t.role for t in outer_tensors(tied, first=False)} | {t.name: t.role for t in outer_tensors(full)}
    assert roles == {
        "lm_head": "lm_head", "embed_tokens": "embedding", "embed_positions": "embedding", "embedding_norm": "norm",
        "lm_head.bias": "bias", "final_norm": "norm", "gate": "norm",
    }  # fmt: skip
    assert next(outer_tensors(tied, first=False)).role == "embedding"
    whole = {t.name: t.parameters for t in outer_tensors(full)}
    assert (whole["embed_tokens"], whole["lm_head"], whole["lm_head.bias"]) == (360, 360, 30)


TWO_KINDS = Model(
    name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, order="2*a + b",
    layers={"a": Layer(mixer=GROUPED), "b": Layer(ffn=MoE(experts=4, top_k=1, intermediate=10, router_bias=True))},
)  # fmt: skip
ATTENTION = 12 * (12 + 6 + 10) + 20 * 12  # Q, K, V; O
EXPERTS = 4 * 3 * 10 * 12


def test_weights_of_stages_by_role() -> None:
    whole = stage_weights(TWO_KINDS)
    elements = {"attention": 2 * ATTENTION, "experts": EXPERTS, "router": 48, "norm": (3 * 2 + 1) * 12, "embedding": 360, "lm_head": 360}
    assert whole.parameters == parameters(TWO_KINDS) == sum(elements.values()) + 4
    assert whole.bytes_by_role == {role: 2 * count for role, count in elements.items()} | {"router_bias": 16}
    assert whole.bytes == sum(whole.bytes_by_role.values())
    first, second = (stage_weights(TWO_KINDS, Parallel(pp=2), stage=stage) for stage in (0, 1))
    assert first.bytes_by_role == {"attention": 4 * ATTENTION, "norm": 2 * 4 * 12, "embedding": 720}
    assert second.bytes_by_role == {"experts": 2 * EXPERTS, "router": 96, "norm": 2 * 3 * 12, "lm_head": 720, "router_bias": 16}
    middle = stage_weights(TWO_KINDS, Parallel(pp=3), stage=1)
    assert middle.bytes_by_role == {"attention": 2 * ATTENTION, "norm": 2 * 2 * 12}
    assert stage_weights(TWO_KINDS, TWO).bytes_by_role["attention"] == 2 * ATTENTION
    fp8 = stage_weights(TWO_KINDS, weights="fp8").bytes_by_role
    assert (fp8["attention"], fp8["experts"], fp8["router"], fp8["embedding"]) == (2 * ATTENTION, EXPERTS, 96, 720)


def test_bytes_of_the_files_are_shared_out_by_role() -> None:
    """The formats say 2 bytes an element; where the files were looked at, a rank holds its share of what they have."""
    stored = {"attention": 1000.0, "experts": 7000.0, "lm_head": 720.0, "other": 100.0}
    model = TWO_KINDS.model_copy(update={"checkpoint_bytes": stored})
    plain, found = stage_weights(TWO_KINDS), stage_weights(model)
    assert found.bytes_by_role == stored
    assert (found.bytes, found.parameters) == (8820, plain.parameters)
    half = stage_weights(model, TWO)
    assert half.bytes_by_role == {
        "attention": 500, "experts": 3500, "lm_head": 360, "other": pytest.approx(100 * stage_weights(TWO_KINDS, TWO).bytes / plain.bytes),
    }  # fmt: skip
    assert stage_weights(model, Parallel(pp=3), stage=0).bytes_by_role["experts"] == 0
    assert stage_weights(model, weights="fp8").bytes == stage_weights(TWO_KINDS, weights="fp8").bytes


def test_parts_beside_the_language_model() -> None:
    model = TWO_KINDS.model_copy(
        update={"extras": (Extra(name="mtp", order="2*a", parameters=50, bytes=70.0), Extra(name="tower", bytes=9.0))}
    )
    found = extra_weights(model, model.extras[0])
    assert found.parameters == 50 + 2 * (ATTENTION + 24)
    assert found.bytes_by_role == {"extra": 70, "attention": 4 * ATTENTION, "norm": 96}
    assert found.bytes == 70 + 4 * ATTENTION + 96
    assert extra_weights(model, model.extras[0], weights="fp8").bytes == 70 + 2 * ATTENTION + 96
    assert (extra_weights(model, model.extras[1]).parameters, extra_weights(model, model.extras[1]).bytes) == (0, 9)


def test_parameters_that_one_token_uses() -> None:
    """One of four experts, and one row of an embedding table that is not the head too."""
    assert active_parameters(TWO_KINDS) == parameters(TWO_KINDS) - 29 * 12 - EXPERTS * 3 // 4
    tied = TWO_KINDS.model_copy(update={"tie_word_embeddings": True})
    assert active_parameters(tied) == parameters(tied) - EXPERTS * 3 // 4
    two = TWO_KINDS.model_copy(update={"order": "2*b + a"})
    assert active_parameters(two) == parameters(two) - 29 * 12 - 2 * (EXPERTS * 3 // 4)


def test_a_layer_without_a_mixer_keeps_nothing() -> None:
    assert float(kv_bytes_stored(TWO_KINDS, 10)) == 2 * 10 * 2 * 8 * 2


@pytest.mark.parametrize("name", ["tp", "pp", "ep", "dp", "dcp"])
def test_a_layout_has_at_least_one_rank(name: str) -> None:
    with pytest.raises(ShardError, match=f"{name} must be at least 1, got 0"):
        Parallel(**{name: 0})
    assert getattr(Parallel(), name) == 1


def test_layouts_that_do_not_divide() -> None:
    for layout, message in (
        ({"tp": 2, "dp": 3, "ep": 4}, r"ep \(4\) must divide tp·dp \(6\)"),
        ({"tp": 4, "dcp": 3}, r"dcp \(3\) must divide tp \(4\)"),
        ({"tp": 2, "dcp": 4}, r"dcp \(4\) must divide tp \(2\)"),
    ):
        with pytest.raises(ShardError, match=message):
            Parallel(**layout)
    layout = Parallel(tp=2, dp=3, ep=3, pp=5, dcp=2)
    assert (layout.gpus, layout.moe_tp) == (30, 2)


@pytest.mark.parametrize(
    ("layer", "layout", "message"),
    [
        (Layer(mixer=GROUPED), {"pp": 4}, "pp 4 is more than the 3 layers of m"),
        (Layer(mixer=GROUPED), {"tp": 3}, r"layers\.a\.mixer\.heads = 4 cannot be split over tp = 3; it can over 1, 2, 4"),
        (Layer(mixer=GROUPED), {"ep": 2, "dp": 2}, "ep 2: m has no experts"),
        (Layer(ffn=MLP(intermediate=10)), {"tp": 4}, r"ffn\.intermediate = 10 cannot be split over tp = 4; it can over 1, 2, 5, 10"),
        (Layer(ffn=MoE(experts=6, top_k=1, intermediate=8)), {"tp": 4, "ep": 4}, "experts = 6 cannot .* ep = 4; it can over 1, 2, 3, 6"),
        (Layer(ffn=MoE(experts=6, top_k=1, intermediate=9)), {"tp": 4, "ep": 2}, "intermediate = 9 cannot be split over tp·dp/ep = 2"),
        (Layer(ffn=MoE(experts=6, top_k=1, intermediate=8, shared_intermediate=9)), {"tp": 2}, "mediate = 9 cannot .* it can over 1, 3$"),
        (Layer(mixer=Attention(heads=12, kv_heads=4, head_dim=3)), {"tp": 6}, r"kv_heads = 4 and tp 6: one must divide the other"),
        (Layer(mixer=GatedDelta(heads=12, key_heads=4, key_dim=3, value_dim=3)), {"tp": 6}, "key_heads = 4 and tp 6"),
        (Layer(mixer=Mamba2(heads=12, head_dim=3, state_size=3, groups=4)), {"tp": 6}, "groups = 4 and tp 6"),
        (Layer(mixer=COMPRESSED.model_copy(update={"heads": 12, "out_groups": 4})), {"tp": 6}, "out_groups = 4 and tp 6"),
        (Layer(ffn=MLP(intermediate=5000)), {"tp": 3}, "it can over 1, 2, 4, 5, 8, 10$"),
        (Layer(ffn=MLP(intermediate=2 * 3 * 5 * 7 * 11)), {"tp": 64}, "it can over 70, 77, 105, 110, 154, 165, 210, 231$"),
    ],
)  # fmt: skip
def test_models_that_a_layout_cannot_split(layer: Layer, layout: dict[str, int], message: str) -> None:
    """The message names the field, its size and the last eight sizes near the one that was asked for."""
    with pytest.raises(ShardError, match=message):
        Parallel(**layout).check(model_of(layer))


def test_models_that_a_layout_can_split() -> None:
    Parallel(pp=3).check(model_of(Layer(mixer=GROUPED)))
    Parallel(tp=4).check(model_of(Layer(mixer=GROUPED)))  # two KV heads, each on two ranks
    Parallel(tp=2, dp=2, ep=4).check(model_of(Layer(mixer=GROUPED, ffn=MoE(experts=8, top_k=1, intermediate=9))))
    mixed = TWO_KINDS.model_copy(update={"order": "a + b"})
    Parallel(dp=2, ep=2).check(mixed)  # some layers have experts


def test_roles_of_compressed_attention() -> None:
    layer = Layer(mixer=COMPRESSED.model_copy(update={"overlap": True, "indexer": INDEXER}))
    roles = {t.name: t.role for t in layer_tensors(layer, 12) if isinstance(t, Matrix)}
    assert {name for name, role in roles.items() if role == "indexer"} == {
        "indexer.compressor.kv_proj", "indexer.compressor.gate_proj", "indexer.wq_b", "indexer.weights_proj",
    }  # fmt: skip
    assert set(roles.values()) == {"indexer", "attention"}
