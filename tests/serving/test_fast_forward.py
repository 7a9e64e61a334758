"""Jumping over steps gives what stepping gives, request by request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.scheduling import BlockPool, CountingPool, Pool, RadixPool, RunPool, SglangConfig, SglangScheduler, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.speculation import Drafter
from roofline.serving.statistics import Result
from roofline.serving.workloads import Workload, conversations, own_id, shared_id, uniform_length
from tests.serving.affine import AffineTimer


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    count = draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    arrival = np.cumsum(rng.exponential(draw(st.sampled_from([0.0, 0.01, 0.1, 1.0])), count))
    inputs, outputs = rng.integers(1, 200, count), rng.integers(1, 120, count)
    segments = None
    if draw(st.booleans()):
        segments = [((int(min(tokens, rng.integers(1, 150))), shared_id(int(rng.integers(0, 3)))),) for tokens in inputs]
    return Workload(arrival, inputs, outputs, segments=segments)


def _both(
    workload: Workload, config: VllmConfig, blocks: int, caching: bool | None, timer: AffineTimer, **options: object
) -> tuple[Result, Result]:
    results = []
    for fast in (True, False, True):
        pool: Pool = CountingPool(blocks) if caching is None else BlockPool(blocks, prefix_caching=caching)
        if len(results) == 2:
            pool = RunPool(blocks) if caching else CountingPool(blocks)
        scheduler = VllmScheduler(config, pool)
        results.append(simulate(workload, scheduler, timer, fast_forward=fast, **options))  # type: ignore[arg-type]
        scheduler.check_integrity()
        assert pool.num_free == pool.num_usable
    _assert_same(results[2], results[1])
    return results[0], results[1]


def _assert_same(fast: Result, slow: Result) -> None:
    assert fast.recorder.rejected == slow.recorder.rejected
    for column in ("sent_s", "scheduled_s", "first_token_s", "end_s"):
        np.testing.assert_array_equal(getattr(fast.recorder, column), getattr(slow.recorder, column), err_msg=column)
    for column in ("cached_tokens", "generated_tokens", "preemptions"):
        assert getattr(fast.recorder, column) == getattr(slow.recorder, column), column
    assert fast.stretches[:, 2].sum() == slow.stretches[:, 2].sum()
    assert (fast.stretches[:, 2] * fast.stretches[:, 3]).sum() == (slow.stretches[:, 2] * slow.stretches[:, 3]).sum()
    for name in ("mean", "p50", "p90", "p99"):
        assert getattr(fast.itl, name) == pytest.approx(getattr(slow.itl, name), rel=1e-9, nan_ok=True)


@given(
    workload=workloads(),
    blocks=st.integers(22, 120),
    caching=st.sampled_from([None, False, True]),
    asynchronous=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    seats=st.sampled_from([1, 3, 64]),
    budget=st.sampled_from([64, 256]),
    host=st.sampled_from([0.0, 5e-4, 0.0065, 0.1]),
    piece=st.sampled_from([1 << 60, 37]),
    watermark=st.sampled_from([0.0, 0.1]),
    threshold=st.sampled_from([0, 20]),
)
@settings(max_examples=300, deadline=None)
def test_fast_forward_is_stepping(workload, blocks, caching, asynchronous, policy, seats, budget, host, piece, watermark, threshold):
    config = VllmConfig(budget, seats, policy=policy, watermark=watermark, long_prefill_token_threshold=threshold)
    fast, slow = _both(workload, config, blocks, caching, AffineTimer(host_s=host, piece=piece), asynchronous=asynchronous)
    _assert_same(fast, slow)


@given(workload=workloads(), asynchronous=st.booleans(), acceptance=st.sampled_from([0.0, 0.6, 1.0]), caching=st.sampled_from([None, True]))
@settings(max_examples=60, deadline=None)
def test_fast_forward_is_stepping_with_drafts(workload, asynchronous, acceptance, caching):
    config = VllmConfig(256, 64, num_speculative_tokens=3)
    fast, slow = _both(workload, config, 40, caching, AffineTimer(), asynchronous=asynchronous, drafter=Drafter(3, acceptance))
    _assert_same(fast, slow)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fast_forward_is_stepping_in_conversations(asynchronous):
    workload = conversations(12, 4, 3.0, uniform_length(5, 60), uniform_length(5, 60), think_s=0.3, system_tokens=40, system_prompts=2)
    fast, slow = _both(workload, VllmConfig(128, 8), 150, True, AffineTimer(), asynchronous=asynchronous)
    _assert_same(fast, slow)
    assert sum(fast.recorder.cached_tokens) > 0
    assert own_id(0) != shared_id(0)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_fast_forward_saves_decisions(asynchronous):
    workload = Workload(np.zeros(4), np.full(4, 100), np.full(4, 500))
    fast, slow = _both(workload, VllmConfig(), 500, None, AffineTimer(), asynchronous=asynchronous)
    assert len(slow.stretches) == 500
    assert len(fast.stretches) < 10


@given(
    workload=workloads(),
    tokens=st.integers(350, 2000),
    caching=st.booleans(),
    asynchronous=st.booleans(),
    chunk=st.sampled_from([None, 64]),
)
@settings(max_examples=150, deadline=None)
def test_fast_forward_is_stepping_for_sglang(workload, tokens, caching, asynchronous, chunk):
    results = []
    for fast in (True, False):
        scheduler = SglangScheduler(SglangConfig(chunk, 256, 16), RadixPool(tokens, caching=caching))
        results.append(simulate(workload, scheduler, AffineTimer(), fast_forward=fast, asynchronous=asynchronous))
        scheduler.check_integrity()
        assert results[-1].completed.all()
        assert scheduler.pool.available == tokens
    _assert_same(*results)
