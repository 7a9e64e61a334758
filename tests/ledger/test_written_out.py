"""What ranks send, what is done element by element, and what recurrent layers keep: small cases, every factor on paper."""

from __future__ import annotations

import pytest

from roofline.batch import Batch
from roofline.dtypes import dtype
from roofline.ledger import Conventions, Op, Parallel, build_ledger, outer_tensors
from roofline.ledger.collectives import collective, layer_collectives, outer_collectives, wire_share
from roofline.ledger.elementwise import layer_elementwise
from roofline.ledger.mixers import state_bytes
from roofline.profiles.catalog import load_model
from roofline.profiles.model import KDA, MLA, MLP, Attention, GatedDelta, Layer, Mamba, Mamba2, Model, MoE

LLAMA, BF16 = load_model("llama-3.1-8b"), dtype("bf16")  # 4096 wide, 128,256 words
DENSE = Layer(mixer=Attention(heads=8, kv_heads=4, head_dim=16), ffn=MLP(intermediate=96))
EXPERTS = Layer(mixer=Attention(heads=8, kv_heads=4, head_dim=16), ffn=MoE(experts=8, top_k=2, intermediate=40))
TOKENS = 10.0
MESSAGE = 10 * 4096 * 2


def _sent(op: Op) -> tuple[str, int, float, float]:
    """(which, how often, ranks, bytes of the message)"""
    return op.name, op.count, op.shape["ranks"], float(op.shape["bytes"])


def _layer(layer: Layer, parallel: Parallel) -> list[tuple[str, int, float, float]]:
    return [_sent(op) for op in layer_collectives("a", layer, 3, LLAMA, TOKENS, parallel, BF16)]


@pytest.mark.parametrize(
    ("name", "share"), [("all_reduce", 2 * 3 / 4), ("all_gather", 3 / 4), ("reduce_scatter", 3 / 4), ("all_to_all", 3 / 4)]
)
def test_what_a_ring_of_four_sends(name: str, share: float) -> None:
    assert wire_share(name, 4) == share
    assert float(collective(name, "a", 1, 4, 1000.0).link_bytes_each) == 1000 * share
    assert wire_share("send_recv", 2) == 1.0


def test_collectives_of_a_layer() -> None:
    assert _layer(DENSE, Parallel()) == []
    assert _layer(DENSE, Parallel(tp=4)) == [("all_reduce", 6, 4, MESSAGE)]
    assert _layer(DENSE.model_copy(update={"parallel": True}), Parallel(tp=4)) == [("all_reduce", 3, 4, MESSAGE)]
    assert _layer(DENSE.model_copy(update={"ffn": None}), Parallel(tp=4)) == [("all_reduce", 3, 4, MESSAGE)]
    assert _layer(EXPERTS, Parallel(tp=4)) == [("all_reduce", 6, 4, MESSAGE)]
    travel = _layer(EXPERTS, Parallel(tp=2, dp=4, ep=8))
    assert travel == [("all_reduce", 3, 2, MESSAGE), ("all_to_all", 6, 8, MESSAGE * 2 / 2)]
    assert _layer(EXPERTS, Parallel(dp=2, ep=2)) == [("all_to_all", 6, 2, MESSAGE * 2)]
    assert _layer(EXPERTS, Parallel(dp=4, ep=4)) == [("all_to_all", 6, 4, MESSAGE * 2)]
    assert _layer(EXPERTS, Parallel(dp=2)) == [("all_gather", 3, 2, MESSAGE * 2), ("reduce_scatter", 3, 2, MESSAGE * 2)]


def test_a_norm_over_the_heads_of_all_ranks_sends_its_sums_of_squares() -> None:
    """One FP32 number per token for Q and one for K, in one message; heads that are normed alone need none."""

    def attention(**changed: object) -> Layer:
        return DENSE.model_copy(update={"mixer": Attention(heads=8, kv_heads=4, head_dim=16).model_copy(update=changed)})

    sums = ("norm_all_reduce", 3, 4, 10 * 2 * 4)
    assert _layer(attention(qk_norm="full"), Parallel(tp=4)) == [sums, ("all_reduce", 6, 4, MESSAGE)]
    assert _layer(attention(qk_norm="full", shares_kv=True), Parallel(tp=4))[0] == ("norm_all_reduce", 3, 4, 10 * 4)
    assert _layer(attention(qk_norm="full"), Parallel()) == []
    assert _layer(attention(qk_norm="head"), Parallel(tp=4)) == [("all_reduce", 6, 4, MESSAGE)]


def test_collectives_outside_of_the_layers() -> None:
    batch = Batch.prefill(2, 5)

    def outer(parallel: Parallel, stage: int, logits: str = "last") -> list[tuple[str, int, float, float]]:
        return [_sent(op) for op in outer_collectives(LLAMA, batch, parallel, BF16, stage, logits)]

    assert outer(Parallel(), 0) == []
    assert outer(Parallel(tp=4), 0) == [("all_reduce", 1, 4, MESSAGE), ("all_gather", 1, 4, 2 * 128256 * 2)]
    assert outer(Parallel(tp=4), 0, "all")[1] == ("all_gather", 1, 4, 10 * 128256 * 2)
    assert outer(Parallel(tp=4), 0, "none") == [("all_reduce", 1, 4, MESSAGE)]
    assert outer(Parallel(tp=2, pp=2), 0) == [("all_reduce", 1, 2, MESSAGE), ("send_recv", 1, 2, MESSAGE / 2)]
    assert outer(Parallel(tp=2, pp=2), 1) == [("all_gather", 1, 2, 2 * 128256 * 2)]
    assert outer(Parallel(pp=3), 1) == [("send_recv", 1, 2, MESSAGE)]


def _elements(layer: Layer, parallel: Parallel) -> dict[str, tuple[int, float, float]]:
    ops = layer_elementwise("a", layer, 3, 64, TOKENS, parallel, BF16)
    return {op.name: (op.count, float(op.flops_each), float(op.activation_bytes_each)) for op in ops}


def test_element_by_element() -> None:
    dense = _elements(DENSE, Parallel(tp=2))
    assert dense["norm"] == (3 * DENSE.norms, 10 * 7 * 64, 10 * 2 * 64 * 2)
    assert dense["residual_add"] == (6, 10 * 64, 10 * 3 * 64 * 2)
    assert dense["mlp_act"] == (3, 10 * 2 * 48, 10 * 3 * 48 * 2)
    plain = _elements(Layer(mixer=None, ffn=MLP(intermediate=96, gated=False)), Parallel())
    assert plain["mlp_act"] == (3, 10 * 96, 10 * 2 * 96 * 2)
    assert plain["residual_add"][0] == 3
    assert _elements(EXPERTS, Parallel())["experts_act"] == (3, 10 * 2 * 80, 10 * 3 * 80 * 2)
    assert _elements(EXPERTS, Parallel(dp=4, ep=4))["experts_act"] == (3, 10 * 2 * 80, 10 * 3 * 80 * 2)
    assert _elements(EXPERTS, Parallel(tp=2))["experts_act"] == (3, 10 * 2 * 40, 10 * 3 * 40 * 2)


def test_attention_that_stores_its_scores() -> None:
    """Two sequences of 5 tokens, 32 query and 8 KV heads of 128; scores are the whole square, products only what is looked at."""
    ledger = build_ledger(LLAMA, Batch.prefill(2, 5), conventions=Conventions(naive_attention=True))
    found = {op.name: op for op in ledger}
    square, triangle = 2 * 5 * 5 * 32, 2 * 15 * 32
    for name in ("qk_matmul", "sv_matmul"):
        op = found[name]
        assert float(op.flops_each) == 2 * triangle * 128
        assert float(op.activation_bytes_each) == square * 2 + 10 * 32 * 128 * 2
        assert float(op.kv_write_bytes_each) == 10 * 8 * 128 * 2
        assert float(op.kv_read_bytes_each) == 0
    assert float(found["softmax"].flops_each) == 5 * square
    assert float(found["softmax"].activation_bytes_each) == 2 * square * 2
    step = {op.name: op for op in build_ledger(LLAMA, Batch.decode(2, 7), conventions=Conventions(naive_attention=True))}
    assert float(step["qk_matmul"].kv_read_bytes_each) == 2 * 7 * 8 * 128 * 2
    assert float(step["qk_matmul"].flops_each) == 2 * 2 * 8 * 32 * 128


def test_norms_with_a_bias_have_two_vectors() -> None:
    for bias, vectors in ((False, 1), (True, 2)):
        model = LLAMA.model_copy(update={"norm_bias": bias, "embedding_norm": True})
        sizes = {tensor.name: tensor.parameters for tensor in outer_tensors(model)}
        assert sizes["final_norm"] == sizes["embedding_norm"] == 4096 * vectors


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_a_rank_has_its_part_of_the_words_rounded_up(tp: int) -> None:
    model = LLAMA.model_copy(update={"vocab_size": 1001})
    sizes = {tensor.name: tensor.parameters for tensor in outer_tensors(model, Parallel(tp=tp))}
    assert sizes["embed_tokens"] == sizes["lm_head"] == -(-1001 // tp) * 4096


SMALL = {"conv": 4, "state_bits": 32}
STATES = [
    # state elements in 4 bytes, inputs of the convolution in 2, per rank of tp 2
    (GatedDelta(key_heads=4, heads=8, key_dim=16, value_dim=32, **SMALL), 4 * 16 * 32, 2 * 2 * 16 + 4 * 32),
    (KDA(heads=8, head_dim=16, **SMALL), 4 * 16 * 16, 3 * 4 * 16),
    (Mamba2(heads=8, head_dim=16, state_size=10, groups=2, **SMALL), 4 * 16 * 10, 4 * 16 + 2 * 1 * 10),
    (Mamba(heads=64, state_size=10, dt_rank=3, **SMALL), 32 * 10, 32),
]


@pytest.mark.parametrize(("mixer", "elements", "channels"), STATES, ids=lambda value: getattr(value, "kind", None))
@pytest.mark.parametrize("drafts", [0, 3])
def test_what_a_recurrent_layer_keeps(mixer: GatedDelta | KDA | Mamba2 | Mamba, elements: int, channels: int, drafts: int) -> None:
    assert state_bytes(mixer, 2, drafts) == elements * 4 + (4 - 1 + drafts) * channels * 2
    halved = mixer.model_copy(update={"state_bits": 16})
    assert state_bytes(halved, 2, drafts) == elements * 2 + (4 - 1 + drafts) * channels * 2


@pytest.mark.parametrize(("mixer", "elements", "channels"), STATES, ids=lambda value: getattr(value, "kind", None))
def test_what_a_recurrent_layer_does(mixer: GatedDelta | KDA | Mamba2 | Mamba, elements: int, channels: int) -> None:
    """Per element of the state and token: decay 1, write 2, read 2, and 2 more where a delta net reads by key first; 2 per tap."""
    model = Model(
        name="m", model_type="t", source="here", hidden_size=64, vocab_size=32, layers={"a": Layer(mixer=mixer, ffn=None)}, order="2*a"
    )
    ledger = build_ledger(model, Batch.of([3, 1], [0, 9]), parallel=Parallel(tp=2))
    op = next(op for op in ledger if op.kind == "state")
    each = 7 if isinstance(mixer, GatedDelta | KDA) else 5
    assert float(op.flops_each) == 4 * (each * elements + 2 * 4 * channels)
    kept = elements * 4 + 3 * channels * 2
    assert float(op.kv_read_bytes_each) == kept  # only one of the two sequences has a past
    assert float(op.kv_write_bytes_each) == 2 * kept
    assert op.count == 2


def test_an_index_key_and_its_scores() -> None:
    model = load_model("deepseek-v3.2")
    spec = next(layer.mixer.indexer for layer in model.layers.values() if isinstance(layer.mixer, MLA) and layer.mixer.indexer)
    ledger = build_ledger(model, Batch.decode(2, 99))
    op = next(op for op in ledger if op.name == "indexer")
    assert float(op.flops_each) == 2 * (2 * 100) * spec.heads * (spec.head_dim + 1)
    assert float(op.kv_read_bytes_each) == 2 * 99 * spec.head_dim * spec.cache_bits / 8
    assert float(op.kv_write_bytes_each) == 2 * spec.head_dim * spec.cache_bits / 8
    assert float(op.activation_bytes_each) == 2 * spec.heads * (spec.head_dim + 1) * 2
