"""Feed-forward parts, the head, residual streams and sums on the batch of test_by_hand.py, counted by hand."""

from __future__ import annotations

import pytest

from roofline.batch import Batch
from roofline.ledger import Conventions, Ledger, Op, Parallel, build_ledger, kv_bytes_per_token, kv_bytes_stored, layer_tensors
from roofline.ledger.weights import Matrix
from roofline.profiles import catalog
from roofline.profiles.model import MLA, MLP, Attention, GatedDelta, Indexer, Layer, Mamba2, Model, MoE
from tests.ledger.small import BATCH, ONE, TWO, gemm, ledger_of, model_of, numbers

GROUPED = Attention(heads=4, kv_heads=2, head_dim=3, v_head_dim=5)


def test_dense_feed_forward_and_head() -> None:
    """The head works on the last position of each of three sequences; words are shared out in fifteens."""
    model = model_of(Layer(mixer=None, ffn=MLP(intermediate=10)))
    rows = [numbers(op) for op in build_ledger(model, BATCH, parallel=TWO) if op.kind != "collective"]
    parts = [gemm("gate_proj", 5, 12), gemm("up_proj", 5, 12), gemm("down_proj", 12, 5)]
    assert rows == [*parts, gemm("lm_head", 15, 12, rows=3, count=1)]
    every = list(build_ledger(model, BATCH, parallel=TWO, conventions=Conventions(logits="all")))
    assert numbers(next(op for op in every if op.name == "lm_head")) == gemm("lm_head", 15, 12, rows=7, count=1)
    assert [op.input for op in ledger_of(Layer(ffn=MLP(intermediate=10)))] == ["ffn", "ffn", ""]
    plain = ledger_of(Layer(ffn=MLP(intermediate=10, gated=False, bias=True)))
    assert [(op.name, float(op.weight_bytes_each)) for op in plain] == [("up_proj", 2 * 65), ("down_proj", 2 * 72)]


def test_a_tied_head_is_the_embedding_in_its_own_format() -> None:
    layer = Layer(ffn=MLP(intermediate=10))
    for tied, formats, expected in (
        (True, {"embedding": "fp8"}, 30 * 12),
        (True, {"lm_head": "fp8"}, 30 * 12),
        (False, {"embedding": "fp8"}, 30 * 12 * 2),
        (False, {"lm_head": "fp8"}, 30 * 12),
        (False, {}, 30 * 12 * 2),
    ):
        model = model_of(layer, tie_word_embeddings=tied, weights=formats)
        for parallel, stage in ((ONE, 0), (Parallel(pp=3), 2)):
            ops = build_ledger(model, BATCH, parallel=parallel, stage=stage)
            head = next(op for op in ops if op.name == "lm_head")
            assert (float(head.weight_bytes_each), head.count, head.layer) == (expected, 1, "")
        assert "lm_head" not in {op.name for op in build_ledger(model, BATCH, parallel=Parallel(pp=3), stage=1)}


MIXED = MoE(experts=8, top_k=2, intermediate=10, shared_intermediate=6, shared_gate=True)


def test_experts() -> None:
    """Fourteen rows meet 8·(1 − (6/8)⁷) experts on average, at least two; the shared one is 3 wide on a rank."""
    rows = [numbers(op) for op in ledger_of(Layer(ffn=MIXED))]
    expert = 3 * 5 * 12
    met = 8 * (1 - 0.75**7)
    assert rows[:2] == [gemm("router", 8, 12), gemm("shared_expert_gate", 1, 12)]
    assert rows[2] == (
        *("experts", "moe", 3, "bf16", 14, 5, 12, 2 * 14 * expert, pytest.approx(met * expert * 2), 0, 0),
        14 * (2 * 12 + 3 * 5) * 2,
    )
    shared = ("shared_experts", "gemm", 3, "bf16", 7, 9, 12, 2 * 7 * 9 * 12, 2 * 9 * 12, 0, 0, 7 * (2 * 12 + 9) * 2)
    assert rows[3] == shared
    ops = {op.name: op for op in ledger_of(Layer(ffn=MIXED))}
    assert float(ops["experts"].fewest_weight_bytes_each) == 2 * expert * 2
    assert ops["shared_experts"].shape == {"intermediate": 3, "gated": True}
    assert ops["experts"].shape == {
        "tokens": 7, "experts": 8, "top_k": 2, "intermediate": 10, "hidden": 12, "ep": 1, "moe_tp": 2, "matrices": 3,
    }  # fmt: skip
    assert "reads 8·(1−(1−2/8)^T) experts" in ops["experts"].formula


def test_experts_spread_over_ranks() -> None:
    """Two attention ranks of seven tokens each and four expert ranks: a rank has two experts of eight and a quarter of 28 rows."""
    ledger = ledger_of(Layer(mixer=GROUPED, ffn=MIXED), Parallel(tp=2, dp=2, ep=4))
    experts = next(op for op in ledger if op.name == "experts")
    expert = 3 * 10 * 12
    assert numbers(experts) == (
        *("experts", "moe", 3, "bf16", 7, 10, 12, 2 * 7 * expert, pytest.approx(2 * (1 - 0.75**14) * expert * 2), 0, 0),
        7 * (2 * 12 + 3 * 10) * 2,
    )
    assert float(experts.fewest_weight_bytes_each) == 1 * expert * 2
    assert (experts.shape["tokens"], experts.shape["ep"], experts.shape["moe_tp"]) == (14, 4, 1)
    assert experts.formula.endswith("^T)/4 experts")
    split = next(op for op in ledger_of(Layer(ffn=MIXED), Parallel(tp=2, dp=2, ep=2)) if op.name == "experts")
    assert (split.n, float(split.m), split.shape["moe_tp"]) == (5, 14, 2)


def test_few_tokens_read_few_experts() -> None:
    """One token reads just its own two, whichever routing; one that uses all eight reads all."""
    model = model_of(Layer(ffn=MIXED))
    (alone,) = (op for op in build_ledger(model, Batch.of([1])) if op.name == "experts")
    expert = 3 * 10 * 12 * 2
    assert float(alone.weight_bytes_each) == pytest.approx(2 * expert)
    assert float(alone.fewest_weight_bytes_each) == pytest.approx(2 * expert)
    everything = model_of(Layer(ffn=MoE(experts=8, top_k=8, intermediate=10)))
    (dense,) = (op for op in build_ledger(everything, Batch.of([3])) if op.name == "experts")
    assert float(dense.weight_bytes_each) == 8 * expert
    (none,) = (op for op in build_ledger(everything, Batch.of([0])) if op.name == "experts")
    assert float(none.weight_bytes_each) == float(none.fewest_weight_bytes_each) == 0


def test_plain_and_latent_experts() -> None:
    """Experts of two matrices work on a projection to six; biases of gpt-oss lie beside each matrix of each expert."""
    plain = MoE(experts=8, top_k=2, intermediate=10, gated=False, latent=6, shared_intermediate=4)
    ops = {op.name: op for op in ledger_of(Layer(ffn=plain))}
    assert numbers(ops["experts"])[4:8] == (14, 5, 6, 2 * 14 * 2 * 5 * 6)
    assert numbers(ops["experts"])[11] == 14 * (2 * 6 + 2 * 5) * 2
    assert (ops["experts"].shape["hidden"], ops["experts"].shape["matrices"]) == (6, 2)
    shared = ops["shared_experts"]
    assert (shared.shape, float(shared.flops_each), float(shared.weight_bytes_each), float(shared.activation_bytes_each)) == (
        {"intermediate": 2, "gated": False},
        2 * 7 * 4 * 12,
        2 * 4 * 12,
        7 * (2 * 12 + 4) * 2,
    )
    assert [numbers(ops[name]) for name in ("latent_down", "latent_up")] == [gemm("latent_down", 6, 12), gemm("latent_up", 12, 6)]
    biased = MoE(experts=8, top_k=8, intermediate=10, expert_bias=True, router_linear_bias=True)
    found = {op.name: op for op in ledger_of(Layer(ffn=biased))}
    assert float(found["experts"].weight_bytes_each) == pytest.approx(8 * (3 * 5 * 12 + 5 + 5 + 12) * 2)
    assert float(found["router"].weight_bytes_each) == (8 * 12 + 8) * 2


def test_residual_streams() -> None:
    """Four streams: 8 + 16 weights from 48 inputs around each of the two parts, in fp32, and every stream read and written."""
    ledger = ledger_of(Layer(mixer=GROUPED, ffn=MLP(intermediate=10), streams=4))
    (mixing,) = (op for op in ledger if op.name == "hyper_connection")
    flops = 2 * 7 * (24 * 48 + 24 * 12)
    assert numbers(mixing) == ("hyper_connection", "elementwise", 6, "fp32", 7, 24, 48, flops, 24 * 48 * 4, 0, 0, 7 * 2 * 4 * 12 * 2)
    assert not [op for op in ledger_of(Layer(mixer=GROUPED)) if op.name == "hyper_connection"]
    (pair,) = (op for op in ledger_of(Layer(mixer=GROUPED, streams=2)) if op.name == "hyper_connection")
    assert (pair.count, pair.n, pair.k) == (3, 2 * 2 + 4, 24)


def test_projections_of_one_input_become_one() -> None:
    """Q, K and V read their input once: 12 + 14 elements per token in place of three times 12 and 14."""
    layer = Layer(mixer=GROUPED, ffn=MLP(intermediate=10))
    fused = [numbers(op) for op in ledger_of(layer).fused()]
    assert [row[0] for row in fused] == ["q_proj+k_proj+v_proj", "attention", "attention", "o_proj", "gate_proj+up_proj", "down_proj"]
    qkv, both = fused[0], fused[4]
    assert qkv[:9] == ("q_proj+k_proj+v_proj", "gemm", 3, "bf16", 7, 14, 12, 2 * 7 * 14 * 12, 2 * 14 * 12)
    assert qkv[11] == pytest.approx(2 * 7 * (14 + 12))
    assert both[:9] == ("gate_proj+up_proj", "gemm", 3, "bf16", 7, 10, 12, 2 * 7 * 10 * 12, 2 * 10 * 12)
    assert both[11] == pytest.approx(2 * 7 * (10 + 12))
    assert ledger_of(layer).fused().total("flops") == ledger_of(layer).total("flops")


def test_what_runs_in_other_layers_or_other_types_stays_apart() -> None:
    two = Model(
        name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, order="a + b",
        layers={"a": Layer(ffn=MLP(intermediate=10)), "b": Layer(ffn=MLP(intermediate=20), weights={"gate_proj": "fp8"})},
    )  # fmt: skip
    names = [(op.layer, op.name) for op in build_ledger(two, BATCH, conventions=Conventions(logits="none")).fused()]
    assert names == [("a", "gate_proj+up_proj"), ("a", "down_proj"), ("b", "gate_proj"), ("b", "up_proj"), ("b", "down_proj")]
    doubled = ledger_of(Layer(mixer=GROUPED)) + ledger_of(Layer(ffn=MLP(intermediate=10)))
    assert len(list(doubled)) == 6 + 3
    assert len(list(doubled.fused())) == 4 + 2


def test_sums() -> None:
    """count times each; what moves is weights, KV and activations; the fewest leave out experts that need not be read."""
    op = Op("x", "gemm", "a", 3, "bf16", "")
    fields = ("m", "n", "k", "flops_each", "weight_bytes_each", "kv_bytes_each", "activation_bytes_each", "link_bytes_each", "bytes_each")
    assert [getattr(op, name) for name in fields] == [0] * len(fields)
    assert op.fewest_bytes_each == 0
    full = Op(
        "x", "gemm", "a", 3, "bf16", "", flops_each=7000, weight_bytes_each=100, kv_read_bytes_each=20, kv_write_bytes_each=3,
        activation_bytes_each=400, fewest_weight_bytes_each=60,
    )  # fmt: skip
    assert (full.kv_bytes_each, full.bytes_each, full.fewest_bytes_each) == (23, 523, 483)
    both = Ledger((full, op))
    assert (both.total("bytes"), both.total("fewest_bytes"), both.total("kv_bytes")) == (1569, 1449, 69)
    assert both.intensity == pytest.approx(21000 / 1569)
    assert Ledger((op,)).intensity == 0
    small = Op("x", "gemm", "a", 1, "bf16", "", flops_each=6, activation_bytes_each=1.5)
    assert Ledger((small,)).intensity == 4
    assert list(Ledger((Op("n", "elementwise", "a", 1, "", ""), small)).without_elementwise()) == [small]


def test_layers_of_a_stage() -> None:
    """Two stages of five layers: the remainder goes to the one before the last."""
    model = model_of(Layer(mixer=GROUPED), order="5*a")
    counts = [
        {op.name: op.count for op in build_ledger(model, BATCH, parallel=Parallel(pp=2), stage=stage) if op.kind == "gemm"}
        for stage in (0, 1)
    ]
    assert counts == [
        {"q_proj": 3, "k_proj": 3, "v_proj": 3, "o_proj": 3},
        {"q_proj": 2, "k_proj": 2, "v_proj": 2, "o_proj": 2, "lm_head": 1},
    ]
    assert kv_bytes_per_token(model, parallel=Parallel(pp=2), stage=0) == 3 * 2 * 16
    assert kv_bytes_per_token(model, parallel=Parallel(pp=2), stage=1) == 2 * 2 * 16
    assert float(kv_bytes_stored(model, 10, parallel=Parallel(pp=2), stage=1)) == 2 * 10 * 2 * 16
    assert [len(stage) for stage in Parallel(pp=3).stages(model_of(Layer(mixer=GROUPED), order="8*a"))] == [3, 3, 2]
    assert [len(stage) for stage in Parallel(pp=4).stages(model_of(Layer(mixer=GROUPED), order="5*a"))] == [1, 1, 2, 1]
    default = {op.name: op.count for op in build_ledger(model, BATCH, parallel=Parallel(pp=2))}
    assert default["q_proj"] == 3


def test_element_wise_work_of_plain_experts() -> None:
    """Two experts of five per token: one FLOP each where nothing is gated, read once and written once."""
    ops = {op.name: op for op in ledger_of(Layer(ffn=MoE(experts=8, top_k=2, intermediate=10, gated=False)), elementwise=True)}
    assert (float(ops["experts_act"].flops_each), float(ops["experts_act"].activation_bytes_each)) == (7 * 10, 7 * 2 * 10 * 2)
    assert (ops["experts_act"].kind, ops["experts_act"].compute, float(ops["experts_act"].m)) == ("elementwise", "fp32", 7)
    assert "norm" not in {op.name for op in ledger_of(Layer(ffn=MLP(intermediate=10), norms=0), elementwise=True)}


def test_what_the_page_of_operations_says() -> None:
    def formulas(layer: Layer, parallel: Parallel = TWO, **options: bool) -> list[str]:
        return [op.formula for op in ledger_of(layer, parallel, **options)]

    assert formulas(Layer(mixer=GROUPED))[2:4] == ["2·m·5·12", "2·pairs·2 heads·(3+5)"]
    assert formulas(Layer(mixer=GROUPED), naive_attention=True)[3:6] == ["2·pairs·2 heads·3", "5·scores", "2·pairs·2 heads·5"]
    latent = MLA(heads=4, kv_lora_rank=8, qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=5)
    expanded, absorbed = formulas(Layer(mixer=latent))[-3:-1]
    assert (expanded, absorbed) == ("2·pairs·2 heads·(5+5)", "2·pairs·2 heads·(10+8) (absorbed)")
    indexed = latent.model_copy(update={"indexer": Indexer(heads=3, head_dim=4, top_k=4)})
    assert formulas(Layer(mixer=indexed))[-2] == "2·pairs·2 heads·(10+8) (absorbed), top 4"
    experts = Layer(mixer=GROUPED, ffn=MoE(experts=8, top_k=2, intermediate=10))
    assert formulas(experts)[-1] == "2·T·2/1·180; reads 8·(1−(1−2/8)^T) experts"
    assert formulas(experts, Parallel(tp=2, ep=2))[-1] == "2·T·2/2·360; reads 8·(1−(1−2/8)^T)/2 experts"
    assert formulas(Layer(mixer=Mamba2(heads=4, head_dim=3, state_size=5, groups=2)))[1] == "T·(5·2·3·5 + 2·4·16)"
    assert formulas(Layer(mixer=GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5)))[4] == "T·(7·2·3·5 + 2·4·16)"


def test_a_sequence_without_new_tokens_costs_nothing() -> None:
    """A grid of batches may hold a group of which nothing runs."""
    for mixer in (GROUPED, GatedDelta(heads=4, key_heads=2, key_dim=3, value_dim=5)):
        model = model_of(Layer(mixer=mixer))
        some, more = (build_ledger(model, batch, parallel=TWO) for batch in (Batch.of([5, 1], [2, 7]), Batch.of([5, 1, 0], [2, 7, 9])))
        for what in ("flops", "kv_read_bytes", "kv_write_bytes"):
            core, with_idle = (sum(float(getattr(op, f"{what}_each")) for op in ops if op.name != "lm_head") for ops in (some, more))
            assert core == with_idle


@pytest.mark.parametrize("name", sorted(catalog.files(catalog.MODELS)))
def test_a_token_is_multiplied_once_by_every_weight_that_it_meets(name: str) -> None:
    """2 FLOP per element of each matrix of the layers, of routed experts only those picked; the cache is empty, the head left out."""
    model = catalog.load_model(name)
    expected = 0.0
    for kind in model.stack:
        layer = model.layers[kind]
        for tensor in layer_tensors(layer, model.hidden_size):
            if isinstance(tensor, Matrix) and tensor.role != "streams":
                met = layer.ffn.top_k if tensor.role == "experts" and isinstance(layer.ffn, MoE) else tensor.copies
                expected += 2 * tensor.n * tensor.k * met
    ledger = build_ledger(model, Batch.decode(1, 0), conventions=Conventions(logits="none"))
    assert sum(op.count * float(op.flops_each) for op in ledger if op.kind in ("gemm", "moe")) == pytest.approx(expected, rel=1e-12)
