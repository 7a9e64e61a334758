"""The tabulated step against the step priced whole, and what its tables must keep."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.batch import Batch
from roofline.ledger import Parallel
from roofline.profiles.catalog import load_hardware, load_model
from roofline.timing.step import price_step
from roofline.timing.step_timer import StepTimer

H100 = load_hardware("h100-sxm")
CASES = {
    "llama-3.1-8b": Parallel(),
    "llama-3.1-70b": Parallel(tp=4),
    "qwen3-30b-a3b": Parallel(),
    "deepseek-v3": Parallel(tp=8, ep=8),
}


@pytest.mark.parametrize("name", CASES)
def test_tables_follow_the_step_priced_whole(name: str) -> None:
    """Interpolation costs less than 5 %, an order below the interval of the estimate."""
    model, parallel = load_model(name), CASES[name]
    timer = StepTimer(model, H100, parallel=parallel)
    for batch, context in ((1, 100), (37, 1234), (200, 3000), (8, 60000)):
        whole = float(price_step(model, Batch.decode(batch, context), H100, parallel=parallel).estimate.expected_s)
        assert timer.step_time(batch, batch * context, ()) == pytest.approx(whole, rel=0.05)
    for new, past in ((2048, 0), (777, 0), (512, 1536), (4096, 16384)):
        whole = float(price_step(model, Batch.prefill(1, new, past), H100, parallel=parallel).estimate.expected_s)
        assert timer.step_time(0, 0, ((new, past),)) == pytest.approx(whole, rel=0.05)


TIMER = StepTimer(load_model("llama-3.1-8b"), H100)


@given(st.integers(1, 500), st.integers(1, 20000), st.integers(2, 4000), st.integers(0, 20000))
@settings(deadline=None)
def test_more_work_never_takes_less(decodes: int, context: int, new: int, past: int) -> None:
    time = TIMER.step_time(decodes, decodes * context, ((new, past),))
    assert time <= TIMER.step_time(decodes + 1, (decodes + 1) * context, ((new, past),)) * (1 + 1e-9)
    assert time <= TIMER.step_time(decodes, decodes * (context + 1), ((new, past),)) * (1 + 1e-9)
    assert time <= TIMER.step_time(decodes, decodes * context, ((new + 1, past),)) * (1 + 1e-9)
    assert time > TIMER.step_time(decodes, decodes * context, ())


def test_the_band_orders_the_three_numbers() -> None:
    model = load_model("llama-3.1-8b")
    low, expected, high = (StepTimer(model, H100, band=band).step_time(16, 16 * 1000, ()) for band in ("low", "expected", "high"))
    assert low < expected < high


def test_a_captured_graph_runs_as_the_next_larger_size() -> None:
    timer = StepTimer(load_model("llama-3.1-8b"), H100, graph_sizes=(1, 8, 64))
    plain = StepTimer(load_model("llama-3.1-8b"), H100, graph_sizes=())
    assert timer.step_time(33, 33 * 100, ()) > plain.step_time(33, 33 * 100, ())
    assert timer.step_time(64, 64 * 100, ()) == plain.step_time(64, 64 * 100, ())
    assert timer.step_time(33, 33 * 100, ((20, 0),)) > plain.step_time(33, 33 * 100, ((20, 0),))


def test_a_small_model_beyond_its_graphs_waits_for_launches() -> None:
    """16 layers of 8 kernels, the head and the sampler: 130 launches, of 32 µs each, outlast what an H100 computes."""
    model = load_model("llama-3.2-1b")
    timer, plain = (StepTimer(model, H100, graph_sizes=sizes) for sizes in ((1, 2, 4), ()))
    assert timer.step_time(4, 400, ()) == plain.step_time(4, 400, ())
    assert timer.step_time(5, 500, ()) == pytest.approx(0.2e-3 + 32e-6 * 130)
    assert timer.step_time(3, 300, ((8, 0),)) == pytest.approx(0.2e-3 + 32e-6 * 130)
    assert timer.step_time(512, 512 * 8000, ()) == pytest.approx(plain.step_time(512, 512 * 8000, ()))


def test_the_line_of_a_decode_step_is_exact_where_launches_end() -> None:
    timer = StepTimer(load_model("llama-3.2-1b"), H100, graph_sizes=(1,))
    context = pieces = 0
    while context < 16 * 120_000:
        base, slope, last = timer.decode_line(16, context)
        for at in {context, min(context + 1, last), min(last, 16 * 120_000)}:
            assert base + slope * at == timer.step_time(16, at, ())
        assert timer.step_time(16, last + 1, ()) >= timer.step_time(16, min(last, 16 * 120_000), ()) * (1 - 1e-12)
        context, pieces = last + 1, pieces + 1
    flat, steep = timer.decode_line(16, 0), timer.decode_line(16, 16 * 110_000)
    assert flat[1] == 0.0
    assert steep[1] > 0.0
    assert pieces > 2


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_one_more_decode_never_takes_less(engine: str) -> None:
    timer = StepTimer(load_model("llama-3.2-1b"), H100, engine=engine)
    times = [timer.step_time(batch, batch * 500, ()) for batch in range(1, 700)]
    assert times == sorted(times)


def test_prompts_run_eagerly_where_no_graph_holds_them() -> None:
    model = load_model("llama-3.2-1b")
    inside, outside = (StepTimer(model, H100, engine=engine).step_time(0, 0, ((16, 0),)) for engine in ("vllm", "sglang"))
    assert inside < 130 * 32e-6 < outside
