"""Predictions of steps and what is fitted to them, against constants that were planted."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import roofline.validation.predictions as predictions
from microbench.cases.model import in_one_type
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED
from roofline.profiles.catalog import load_model
from roofline.profiles.hardware import Hardware
from roofline.scheduling import BlockPool, VllmConfig, VllmScheduler
from roofline.validation import serve
from roofline.validation.fitting import fit_steps
from roofline.validation.plan import SCALES, trace
from roofline.validation.predictions import THIS_RUN, UNCALIBRATED, Basis, Step, StepConstants, step_prediction

MODEL = in_one_type(load_model("tiny-llama-15m"), "fp32")
CPU = Hardware(id="this-machine", vendor="measured", name="a CPU", memory_bytes=8e9, memory_bandwidth=12e9, peaks={"fp32": 190e9})
PLANTED = StepConstants(2e-3, 3e-5, 1.2, 1e-6, 5e-4)
STEPS = list(SCALES["cpu"].fit)


def test_constants_of_the_engine_are_found_again() -> None:
    kernels = {step: 5e-3 + 1e-5 * step.tokens**1.2 + 4e-7 * step.cached for step in STEPS}
    measured = {step: kernels[step] + PLANTED.added_s(step.tokens, step.cached, step.groups, kernels[step]) for step in STEPS}
    found = fit_steps(measured, kernels)
    for step in SCALES["cpu"].judged:
        alone = 5e-3 + 1e-5 * step.tokens**1.2 + 4e-7 * step.cached
        true = alone + PLANTED.added_s(step.tokens, step.cached, step.groups, alone)
        assert alone + found.added_s(step.tokens, step.cached, step.groups, alone) == pytest.approx(true, rel=0.05)


def test_too_few_steps_fit_nothing() -> None:
    with pytest.raises(InputError, match="3 steps of the engine"):
        fit_steps(dict.fromkeys(STEPS[:3], 1.0), dict.fromkeys(STEPS[:3], 1.0))


def test_a_step_is_the_sum_of_its_parts_and_never_below_the_bound() -> None:
    basis = Basis(THIS_RUN, CPU, "", PLANTED)
    for step in STEPS:
        found = step_prediction(step, MODEL, AS_SHIPPED, basis)
        assert sum(found.parts.values()) == pytest.approx(found.expected_s)
        assert found.bound_s <= found.low_s <= found.expected_s <= found.high_s
    step = Step(4, 1, 128)
    weights = 4 * (6 * (4 * 288 * 288 + 3 * 288 * 768) + 32000 * 288)
    kv = 4 * 4 * 2 * 6 * 288 * 129
    assert step_prediction(step, MODEL, AS_SHIPPED, basis).bound_s == pytest.approx((weights + kv) / 12e9, rel=0.02)


def test_the_timer_of_the_simulator_has_the_decode_line_of_its_steps() -> None:
    timer = serve.timer(MODEL, AS_SHIPPED, Basis(UNCALIBRATED, CPU, "", PLANTED), 256)
    base, slope, last = timer.decode_line(4, 300)
    assert timer.step_time(4, 300, []) == base + slope * 300
    assert last >= 300
    plain = serve.timer(MODEL, AS_SHIPPED, Basis(UNCALIBRATED, CPU, ""), 256)
    alone = plain.step_time(4, 300, [])
    assert timer.step_time(4, 300, []) == pytest.approx(alone + PLANTED.added_s(4, 304, 1, alone))
    chunk = plain.step_time(2, 100, [(32, 0), (16, 64)])
    assert timer.step_time(2, 100, [(32, 0), (16, 64)]) == pytest.approx(chunk + PLANTED.added_s(50, 182, 3, chunk))


def test_simulated_latencies_scale_with_the_steps() -> None:
    workload = trace("cpu", float("inf"), 0, 100)
    scheduler = lambda: VllmScheduler(VllmConfig(256, 8, max_model_len=256), BlockPool(400, 16, prefix_caching=False))  # noqa: E731
    timers = [serve.timer(MODEL, AS_SHIPPED, Basis(UNCALIBRATED, CPU, "", c), 256) for c in (PLANTED, serve.scaled(PLANTED, 2.0))]
    whole, twice = (serve.statistics(serve.timeline(workload, scheduler(), timer)) for timer in timers)
    assert len(workload) == 100
    assert {name: value / whole[name] for name, value in twice.items()} == pytest.approx(dict.fromkeys(whole, 2.0))
    assert serve.makespan(workload, scheduler(), timers[1]) == pytest.approx(2 * serve.makespan(workload, scheduler(), timers[0]))


def test_a_trace_is_predicted_from_what_was_stated_for_its_requests() -> None:
    times = {"low": 0.5, "expected": 1.0, "high": 3.0}
    rows = [
        {"basis": THIS_RUN, "edge": edge, "start_s": float(i), "first_token_s": i + t * i, "last_token_s": i + t * (i + 2)}
        | {"output_tokens": 3, "first_chunk_tokens": 1}
        for i in range(4)
        for edge, t in times.items()
    ]
    found = {p.target: (p.low_s, p.expected_s, p.high_s) for p in serve.predictions(rows)}
    assert found["trace/ttft/mean"] == pytest.approx((0.75, 1.5, 4.5))
    assert found["trace/tpot/p90"] == pytest.approx((0.5, 1.0, 3.0))


def test_served_requests_by_hand() -> None:
    rows = [
        {"start_s": 0.0, "first_token_s": 1.0, "last_token_s": 3.0, "output_tokens": 5, "first_chunk_tokens": 1},
        {"start_s": 1.0, "first_token_s": 4.0, "last_token_s": 4.0, "output_tokens": 1, "first_chunk_tokens": 1},
    ]
    found = serve.measured(rows)
    assert found["trace/ttft/mean"].median_s == 2.0
    assert found["trace/tpot/p50"].median_s == 0.5
    assert found["trace/ttft/p90"].low_s <= found["trace/ttft/p90"].median_s <= found["trace/ttft/p90"].high_s


def test_the_module_that_predicts_imports_nothing_that_measures() -> None:
    tree = ast.parse(Path(predictions.__file__).read_text(encoding="utf-8"))
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    measuring = (
        "microbench",
        "torch",
        "roofline.engine",
        "roofline.loadtest",
        "roofline.records",
        "roofline.calibration",
        "roofline.validation",
    )
    assert not [name for name in names if name.startswith(measuring)]
