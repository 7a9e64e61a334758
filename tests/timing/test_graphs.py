"""Captured sizes as the engines print them, the sampler, and how a step priced whole shows both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.batch import Batch
from roofline.ledger import Conventions, Parallel, build_ledger
from roofline.profiles.catalog import load_hardware, load_model
from roofline.timing.bound import op_bound_s
from roofline.timing.calibrated import op_times
from roofline.timing.graphs import captured_sizes, engine_ops, padded
from roofline.timing.step import price_step

H100, B200, L40S = (load_hardware(name) for name in ("h100-sxm", "b200-sxm", "l40s"))
SMALL = load_model("llama-3.2-1b")


def test_sizes_as_engines_capture_them() -> None:
    assert len(captured_sizes("vllm", H100)) == 51  # as its start-up log counts them: "Capturing CUDA graphs … 51/51"
    assert captured_sizes("vllm", H100)[-1] == 512
    assert captured_sizes("vllm", B200)[-1] == 1024
    assert captured_sizes("sglang", load_hardware("rtx-4090")) == (1, 2, 4, 8, 12, 16, 24)
    assert captured_sizes("sglang", L40S)[-1] == 32
    assert captured_sizes("sglang", H100, 1)[-1] == 256
    assert captured_sizes("sglang", H100, 8)[-1] == 512
    assert captured_sizes("reference", H100) == ()


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_a_size_holds_the_batches_below_it(engine: str) -> None:
    sizes = captured_sizes(engine, H100)
    assert list(sizes) == sorted(set(sizes))
    for tokens in range(1, sizes[-1] + 1):
        assert padded(tokens, sizes) == min(size for size in sizes if size >= tokens)
    assert padded(sizes[-1] + 1, sizes) == sizes[-1] + 1


def test_sampling_moves_the_logits_of_every_sequence_and_of_the_whole_vocabulary() -> None:
    ledger = build_ledger(SMALL, Batch.decode(256, 100), parallel=Parallel(tp=2), conventions=Conventions(elementwise=True))
    (op,) = [op for op in engine_ops(ledger, SMALL, "vllm") if op.kind == "sampling"]
    assert float(op.bytes_each) == 26 * 256 * SMALL.vocab_size
    assert float(op_times(op, H100, "vllm").expected_s) > float(op_bound_s(op, H100)) == float(op.bytes_each) / H100.memory_bandwidth
    assert not [op for op in engine_ops(ledger, SMALL, "reference") if op.kind == "sampling"]


def test_the_parts_of_a_step_add_up() -> None:
    for batch in (Batch.decode(8, 500), Batch.decode(513, 20), Batch.prefill(1, 700)):
        price = price_step(SMALL, batch, H100)
        whole = float(price.kernels_s) + float(price.eager_s) + float(price.host_s)
        assert whole == pytest.approx(float(price.estimate.expected_s))
        assert 0 < float(price.sampling_s) < float(price.kernels_s)


def test_launches_show_only_outside_graphs() -> None:
    inside, outside = (price_step(SMALL, Batch.decode(size, 1), H100) for size in (512, 513))
    assert float(inside.eager_s) == 0.0
    assert float(outside.kernels_s) * 1.08 + float(outside.eager_s) == pytest.approx(max(float(outside.kernels_s) * 1.08, 130 * 32e-6))
    assert float(price_step(SMALL, Batch.prefill(1, 16), H100, engine="sglang").eager_s) > 0.0
    assert float(price_step(SMALL, Batch.prefill(1, 16), H100, engine="vllm").eager_s) == 0.0


@given(st.integers(1, 1500), st.integers(0, 4000), st.sampled_from(["vllm", "sglang", "trtllm"]))
@settings(deadline=None, max_examples=40)
def test_bound_and_interval_hold_across_the_largest_graph(batch: int, context: int, engine: str) -> None:
    estimate = price_step(SMALL, Batch.decode(batch, context), H100, engine=engine).estimate
    assert float(estimate.bound_s) <= float(estimate.low_s) <= float(estimate.expected_s) <= float(estimate.high_s)
    assert float(estimate.expected_s) <= float(
        price_step(SMALL, Batch.decode(batch + 1, context), H100, engine=engine).estimate.expected_s
    ) * (1 + 1e-9)
