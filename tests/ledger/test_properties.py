"""What must hold for any model: monotone, linear where it should be, shards summing to the whole."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.batch import Batch
from roofline.errors import ShardError
from roofline.ledger import Conventions, Parallel, Precision, build_ledger, kv_bytes_stored, layer_tensors, parameters, stage_weights
from roofline.ledger.ffn import distinct_experts
from roofline.profiles.catalog import load_hardware, load_model
from roofline.profiles.model import MLA, MLP, Attention, Layer, Model, MoE
from roofline.timing.bound import step_bound
from roofline.timing.step import price_step


@st.composite
def models(draw: st.DrawFn) -> Model:
    """Small models of every kind that the ledger knows, sizes divisible by 8."""
    mixers = st.one_of(
        st.builds(
            lambda kv, group, dim, window: Attention(heads=8 * kv * group, kv_heads=8 * kv, head_dim=dim, window=window),
            st.integers(1, 2), st.integers(1, 3), st.sampled_from([32, 64, 128]), st.one_of(st.none(), st.integers(1, 300)),
        ),
        st.builds(
            lambda heads, q: MLA(heads=8 * heads, q_lora_rank=q, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
            st.integers(1, 3), st.one_of(st.none(), st.just(48)),
        ),
    )  # fmt: skip
    ffns = st.one_of(
        st.builds(lambda width, gated: MLP(intermediate=8 * width, gated=gated), st.integers(1, 40), st.booleans()),
        st.builds(
            lambda k, width, shared: MoE(experts=16, top_k=k, intermediate=8 * width, shared_intermediate=8 * shared),
            st.integers(1, 16), st.integers(1, 20), st.integers(0, 10),
        ),
    )  # fmt: skip
    kinds = draw(st.integers(1, 3))
    layers = {f"l{i}": Layer(mixer=draw(mixers), ffn=draw(ffns)) for i in range(kinds)}
    order = " + ".join(f"{draw(st.integers(1, 4))}*{name}" for name in layers)
    return Model(
        name="drawn",
        model_type="llama",
        source="drawn",
        hidden_size=8 * draw(st.integers(1, 40)),
        vocab_size=8 * draw(st.integers(1, 99)),
        layers=layers,
        order=order,
    )


H100 = load_hardware("h100-sxm")


@given(models(), st.integers(1, 200), st.integers(0, 3000))
@settings(deadline=None, max_examples=60)
def test_time_never_falls_with_batch_or_context(model: Model, batch: int, context: int) -> None:
    price = price_step(model, Batch.decode(np.array([batch, batch + 1, batch]), np.array([context, context, context + 1])), H100)
    for times in (price.estimate.bound_s, price.estimate.expected_s):
        here, more, longer = np.asarray(times)
        assert more >= here * (1 - 1e-12)
        assert longer >= here * (1 - 1e-12)
    assert np.all(price.estimate.bound_s <= price.serial_s * (1 + 1e-12))
    assert np.all(price.estimate.bound_s <= price.estimate.expected_s)
    assert np.all(price.estimate.low_s <= price.estimate.expected_s)
    assert np.all(price.estimate.expected_s <= price.estimate.high_s)


@given(models(), st.integers(1, 64), st.integers(1, 500))
@settings(deadline=None, max_examples=40)
def test_half_the_bandwidth_doubles_the_memory_time(model: Model, batch: int, context: int) -> None:
    ledger = build_ledger(model, Batch.decode(batch, context))
    slow = H100.model_copy(update={"memory_bandwidth": H100.memory_bandwidth / 2})
    assert float(step_bound(ledger, slow).memory_s) == pytest.approx(2 * float(step_bound(ledger, H100).memory_s), rel=1e-12)
    assert float(step_bound(ledger, slow).compute_s) == float(step_bound(ledger, H100).compute_s)


@given(models(), st.sampled_from([2, 4, 8]), st.integers(1, 300), st.booleans())
@settings(deadline=None, max_examples=60)
def test_shards_sum_to_the_whole(model: Model, ranks: int, tokens: int, expert_parallel: bool) -> None:
    """FLOPs of all ranks are those of one GPU, apart from what every rank repeats: routers and the latent projections."""
    moe = any(isinstance(layer.ffn, MoE) for layer in model.layers.values())
    parallel = Parallel(tp=ranks, ep=ranks if moe and expert_parallel else 1)
    try:
        parallel.check(model)
    except ShardError:
        return
    whole = build_ledger(model, Batch.prefill(2, tokens))
    share = build_ledger(model, Batch.prefill(2, tokens), parallel=parallel)
    repeated = {"router", "q_a_proj", "kv_a_proj_with_mqa"}
    for ours, times in ((whole, 1), (share, ranks)):
        assert all(np.all(np.asarray(op.flops_each) >= 0) for op in ours), times
    split = sum(op.count * float(op.flops_each) for op in share if op.name not in repeated) * ranks
    assert split == pytest.approx(sum(op.count * float(op.flops_each) for op in whole if op.name not in repeated), rel=1e-9)
    for name in repeated:
        once = sum(op.count * float(op.flops_each) for op in whole if op.name == name)
        assert sum(op.count * float(op.flops_each) for op in share if op.name == name) == pytest.approx(once)


@given(models(), st.integers(1, 6))
@settings(deadline=None, max_examples=40)
def test_pipeline_stages_are_the_whole_model(model: Model, stages: int) -> None:
    if stages > model.num_layers:
        return
    parallel = Parallel(pp=stages)
    assert sum(stage_weights(model, parallel, stage=s).parameters for s in range(stages)) == parameters(model)
    assert sum(parallel.stages(model), ()) == model.stack
    batch = Batch.decode(3, 100)
    parts = [build_ledger(model, batch, parallel=parallel, stage=s) for s in range(stages)]
    assert sum(float(p.total("flops")) for p in parts) == pytest.approx(float(build_ledger(model, batch).total("flops")))


@given(models(), st.integers(2, 400), st.integers(1, 399))
@settings(deadline=None, max_examples=40)
def test_chunked_prefill_computes_what_a_whole_prefill_does(model: Model, tokens: int, cut: int) -> None:
    """The latent expansion of MLA is left out: a chunk expands the cached latents again, which is extra work that is counted."""
    cut = min(cut, tokens - 1)
    conventions = Conventions(logits="none")

    def flops(new: int, past: int) -> float:
        ledger = build_ledger(model, Batch.prefill(1, new, past), conventions=conventions)
        return sum(op.count * float(op.flops_each) for op in ledger if not any(part in op.name for part in ("kv_b_proj", "absorb")))

    if any(isinstance(layer.mixer, MLA) for layer in model.layers.values()) and 1 in (cut, tokens - cut):
        return  # a one-token chunk of MLA runs absorbed, like a decode step
    assert flops(cut, 0) + flops(tokens - cut, cut) == pytest.approx(flops(tokens, 0), rel=1e-12)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 1), (8, 2, 3), (16, 4, 2)])
def test_distinct_experts_is_the_average_over_every_routing(experts: int, top_k: int, tokens: int) -> None:
    from itertools import combinations, product

    choices = list(combinations(range(experts), top_k))
    sample = product(choices, repeat=tokens)
    sizes = [len(set().union(*routing)) for routing in sample]
    assert float(distinct_experts(experts, top_k, float(tokens))) == pytest.approx(sum(sizes) / len(sizes), rel=1e-12)


@given(models(), st.integers(1, 3000))
@settings(deadline=None, max_examples=30)
def test_kv_read_never_exceeds_kv_stored(model: Model, context: int) -> None:
    read = float(build_ledger(model, Batch.decode(1, context)).total("kv_read_bytes"))
    assert read <= float(kv_bytes_stored(model, context)) * (1 + 1e-12)


def test_layer_tensors_are_the_gemms_of_the_ledger() -> None:
    """Each weight that a layer holds is read once by a decode step over enough tokens to reach every expert."""
    for name in ("llama-3.1-8b", "qwen3-30b-a3b", "deepseek-v3"):
        model = load_model(name)
        ledger = build_ledger(model, Batch.decode(1 << 20, 10))
        for kind, layer in model.layers.items():
            held = sum(t.bytes(model, layer) for t in layer_tensors(layer, model.hidden_size) if t.role not in ("norm", "router_bias"))
            read = sum(float(op.weight_bytes_each) for op in ledger if op.layer == kind)
            assert read == pytest.approx(held, rel=1e-3), (name, kind)  # absorbed halves round their block scales apart


def test_precision_changes_bytes_and_nothing_else() -> None:
    model, batch = load_model("llama-3.1-8b"), Batch.decode(16, 1000)
    full, small = build_ledger(model, batch), build_ledger(model, batch, precision=Precision(weights="int4", kv="fp8"))
    assert full.total("flops") == small.total("flops")
    assert small.total("kv_bytes") == full.total("kv_bytes") / 2
    assert small.total("weight_bytes") < full.total("weight_bytes") * 0.4
