"""Two pools: times of a lone request by hand, conservation, and the crossover against mixed serving."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.scheduling import CountingPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.disaggregation import KvLink, simulate_disaggregated
from roofline.serving.routers import LeastLoaded
from roofline.serving.simulator import simulate_replicas
from roofline.serving.workloads import Workload, closed_loop, fixed_length, open_loop, uniform_length
from tests.serving.affine import AffineTimer


def _schedulers(count, blocks=4000, budget=2048, pool=CountingPool):
    return [VllmScheduler(VllmConfig(budget, 64), pool(blocks)) for _ in range(count)]


def test_a_lone_request_by_hand():
    timer = AffineTimer(host_s=0.0)
    link = KvLink(bandwidth=50e9, kv_bytes_per_token=131072, latency_s=1e-3)
    workload = Workload(np.zeros(1), np.array([1155]), np.array([11]))
    result = simulate_disaggregated(workload, _schedulers(1), _schedulers(1), (timer, timer), link)
    host = 1e-6
    prefill = host + timer.step_time(0, 0, [(1155, 0)])
    transfer = 1e-3 + 73 * 16 * 131072 / 50e9
    last_prompt_token = host + timer.step_time(0, 0, [(1, 1154)])
    decode = sum(host + timer.step_time(1, 1155 + k, []) for k in range(10))
    assert result.ttft_s[0] == pytest.approx(prefill + transfer + last_prompt_token, rel=1e-12)
    assert result.e2el_s[0] == pytest.approx(prefill + transfer + last_prompt_token + decode, rel=1e-12)


def test_sending_by_chunk_hides_all_but_the_last():
    whole, chunked = KvLink(1e9, 1e5), KvLink(1e9, 1e5, chunk_tokens=512)
    assert whole.seconds(1100, 16) == pytest.approx(69 * 16 * 1e5 / 1e9)
    assert chunked.seconds(1100, 16) == pytest.approx(5 * 16 * 1e5 / 1e9)
    assert chunked.seconds(1024, 16) == pytest.approx(512 * 1e5 / 1e9)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("pool", [CountingPool, RunPool])
def test_everything_is_served_and_given_back(asynchronous, pool):
    workload = open_loop(200, 20.0, uniform_length(10, 900), uniform_length(1, 200), seed=3)
    prefill, decode = _schedulers(2, 200, 512, pool), _schedulers(3, 150, 512, pool)
    results = []
    for fast in (True, False):
        prefill, decode = _schedulers(2, 200, 512, pool), _schedulers(3, 150, 512, pool)
        timers = (AffineTimer(), AffineTimer())
        link = KvLink(5e9, 131072)
        results.append(simulate_disaggregated(workload, prefill, decode, timers, link, asynchronous=asynchronous, fast_forward=fast))
        assert results[-1].completed.all()
        np.testing.assert_array_equal(results[-1].output_tokens, workload.output_tokens)
        for scheduler in prefill + decode:
            scheduler.check_integrity()
            assert scheduler.pool.num_free == scheduler.pool.num_usable
    for column in ("first_token_s", "end_s", "scheduled_s"):
        np.testing.assert_array_equal(getattr(results[0].recorder, column), getattr(results[1].recorder, column))


def test_a_closed_loop_goes_on_through_both_pools():
    workload = closed_loop(40, 4, fixed_length(100), fixed_length(20))
    result = simulate_disaggregated(workload, _schedulers(1), _schedulers(1), (AffineTimer(), AffineTimer()), KvLink(1e10, 1e5))
    assert result.completed.all()
    assert result.mean_in_system == pytest.approx(4, rel=0.05)


def test_what_fits_no_decode_engine_is_rejected_and_the_rest_served():
    workload = Workload(np.zeros(3), np.array([100, 100, 100]), np.array([10, 5000, 10]))
    prefill = _schedulers(1)
    result = simulate_disaggregated(workload, prefill, _schedulers(1, 50), (AffineTimer(), AffineTimer()), KvLink(1e10, 1e5))
    assert list(result.completed) == [True, False, True]
    assert "KV blocks" in result.recorder.rejected[1]
    assert prefill[0].pool.num_free == prefill[0].pool.num_usable


def test_disaggregation_protects_tpot_and_mixed_serving_uses_the_machines_better():
    timer = AffineTimer(new_s=1e-4)
    workload = open_loop(400, 8.0, fixed_length(1000), fixed_length(150), seed=1)
    split = simulate_disaggregated(workload, _schedulers(1), _schedulers(1), (timer, timer), KvLink(50e9, 131072))
    mixed = simulate_replicas(workload, _schedulers(2), timer, router=LeastLoaded())
    assert np.nanpercentile(split.tpot_s, 99) < 0.5 * np.nanpercentile(mixed.tpot_s, 99)
    assert np.nanmean(split.ttft_s) > np.nanmean(mixed.ttft_s)


def test_bad_links_and_empty_pools_are_refused():
    with pytest.raises(InputError, match="0 B/s"):
        KvLink(0, 1)
    workload, timers = closed_loop(1, 1, fixed_length(1), fixed_length(1)), (AffineTimer(), AffineTimer())
    with pytest.raises(InputError, match="at least one of each"):
        simulate_disaggregated(workload, [], _schedulers(1), timers, KvLink(1, 1))
