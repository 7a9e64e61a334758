"""What ranks send, what is done element by element, and what recurrent layers keep: small cases, every factor on paper."""

from __future__ import annotations

import pytest

from roofline.batch import Batch
from roofline.dtypes import dtype
from roofline.ledger import Conventions, Op, Parallel, build_ledger, outer_tensors
from roofline.ledger.collectives import collective, layer_collectives, outer_collectives, wire_share
from roofline.ledger.elementwise import layer_elementwise
from roofline.profiles.catalog import load_model
from roofline.profiles.model import MLP, Attention, Layer, MoE

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
    assert _layer(EXPERTS, Parallel(dp=4, ep=4)) == [("all_to_all", 6, 4, MESSAGE * 2)]
    assert _layer(EXPERTS, Parallel(dp=2)) == [("all_gather", 3, 2, MESSAGE * 2), ("reduce_scatter", 3, 2, MESSAGE * 2)]


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
