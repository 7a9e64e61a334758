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
    plain = StepTimer(load_model("llama-3.1-8b"), H100)
    assert timer.step_time(33, 33 * 100, ()) > plain.step_time(33, 33 * 100, ())
    assert timer.step_time(64, 64 * 100, ()) == plain.step_time(64, 64 * 100, ())
    assert timer.step_time(100, 100 * 100, ()) == plain.step_time(100, 100 * 100, ())
