"""What operators see must appear: the trade-offs of admission, chunking, batching, speculation."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.scheduling import CountingPool, RadixPool, SglangConfig, SglangScheduler, StaticScheduler, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.speculation import Drafter
from roofline.serving.workloads import Workload, closed_loop, fixed_length, open_loop, uniform_length
from tests.serving.affine import AffineTimer


def run(workload, *, blocks=4000, timer=None, drafter=None, asynchronous=False, pool=None, **options):
    scheduler = VllmScheduler(VllmConfig(**options), pool or CountingPool(blocks))
    result = simulate(workload, scheduler, timer or AffineTimer(), drafter=drafter, asynchronous=asynchronous)
    scheduler.check_integrity()
    return result


def test_a_watermark_trades_waiting_for_preemptions_and_smooth_output():
    """Long outputs on a small pool, as in the pull request that brought the option: far fewer preemptions, later first tokens."""
    workload = closed_loop(400, 64, fixed_length(100), uniform_length(300, 700), seed=1)
    off, on = (run(workload, blocks=1200, max_num_seqs=64, watermark=share) for share in (0.0, 0.2))
    assert sum(on.recorder.preemptions) < 0.5 * sum(off.recorder.preemptions)
    assert on.itl.p99 < off.itl.p99
    assert np.median(on.ttft_s) > np.median(off.ttft_s)


def test_checking_the_whole_sequence_at_admission_avoids_preemption_of_long_prompts():
    workload = Workload(np.zeros(60), np.full(60, 3000), np.full(60, 50))
    careful, careless = (run(workload, blocks=1000, max_num_batched_tokens=512, reserve_full_isl=check) for check in (True, False))
    assert sum(careful.recorder.preemptions) < sum(careless.recorder.preemptions)


def test_a_long_head_holds_back_short_requests_that_would_fit():
    """One prompt that needs nearly all blocks waits, and those behind it with it."""
    arrival = np.array([0.0, 0.05, 0.1, 0.1, 0.1])
    inputs = np.array([3000, 6000, 20, 20, 20])
    workload = Workload(arrival, inputs, np.array([400, 10, 10, 10, 10]))
    blocked, free = run(workload, blocks=400), run(workload, blocks=4000)
    assert (blocked.ttft_s[2:] > 5 * free.ttft_s[2:]).all()


def test_smaller_chunks_smooth_the_output_and_delay_the_first_token():
    workload = open_loop(300, 3.0, fixed_length(1500), fixed_length(100), seed=3)
    chunks = [128, 256, 512, 1024, 2048]
    results = [run(workload, max_num_batched_tokens=chunk, max_num_seqs=128) for chunk in chunks]
    gaps = [result.itl.p99 for result in results]
    firsts = [np.mean(result.ttft_s) for result in results]
    assert gaps == sorted(gaps)
    assert firsts == sorted(firsts, reverse=True)


def test_prefill_stalls_decode_unless_chunked():
    """SGLang's own order stalls every decode for a whole prompt; a mixed step of 256 tokens does not."""
    workload = open_loop(100, 2.0, fixed_length(4000), fixed_length(100), seed=2)
    sglang = simulate(workload, SglangScheduler(SglangConfig(None), RadixPool(64_000)), AffineTimer())
    mixed = run(workload, max_num_batched_tokens=256)
    assert sglang.itl.p99 > 3 * mixed.itl.p99


def test_continuous_batching_beats_static_on_uneven_outputs():
    rng = np.random.default_rng(5)
    workload = Workload(np.zeros(200), np.full(200, 100), rng.choice([10, 500], 200, p=[0.8, 0.2]))
    static = simulate(workload, StaticScheduler(16, 16_000, 1000), AffineTimer())
    continuous = run(workload, max_num_seqs=16)
    assert static.makespan_s > 1.8 * continuous.makespan_s


def test_paging_serves_more_at_once_than_reservation():
    workload = Workload(np.zeros(100), np.full(100, 100), np.full(100, 100))
    paged = run(workload, blocks=1025)
    reserved = run(workload, pool=CountingPool(1025, reserve_tokens=2048))
    assert paged.stretches[:, 5].max() > 9 * reserved.stretches[:, 5].max()
    assert paged.makespan_s < reserved.makespan_s / 4


def test_throughput_levels_off_and_eighty_percent_of_it_come_early():
    timer = AffineTimer(row_s=1e-4)
    rates = []
    batches = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    for batch in batches:
        result = run(closed_loop(4 * batch, batch, fixed_length(50), fixed_length(200)), timer=timer, blocks=20_000)
        rates.append(result.output_tokens.sum() / result.makespan_s)
    assert rates == sorted(rates)
    assert rates[1] / rates[0] > 1.8
    assert rates[-1] / rates[-2] < 1.5
    assert batches[next(at for at, rate in enumerate(rates) if rate > 0.8 * rates[-1])] <= 128


def test_asynchronous_scheduling_hides_the_host_up_to_the_step_itself():
    workload = closed_loop(40, 4, fixed_length(50), fixed_length(300))
    timer = AffineTimer(floor_s=5e-3, row_s=0.0, context_s=0.0, host_s=2e-3)
    tpot = {asynchronous: np.median(run(workload, timer=timer, asynchronous=asynchronous).tpot_s) for asynchronous in (False, True)}
    assert tpot[False] == pytest.approx(7e-3, rel=0.03)
    assert tpot[True] == pytest.approx(5e-3, rel=0.03)
    slow_host = AffineTimer(floor_s=5e-3, row_s=0.0, context_s=0.0, host_s=9e-3)
    assert np.median(run(workload, timer=slow_host, asynchronous=True).tpot_s) == pytest.approx(9e-3, rel=0.03)


def test_a_request_that_arrives_during_a_step_is_computed_two_steps_later_when_asynchronous():
    timer = AffineTimer(floor_s=0.1, row_s=0.0, context_s=0.0, new_s=0.0, pair_s=0.0, host_s=0.0)
    workload = Workload(np.array([0.0, 0.35]), np.array([10, 10]), np.array([30, 5]))
    waits = [run(workload, timer=timer, asynchronous=asynchronous).queue_s[1] for asynchronous in (False, True)]
    assert waits[0] == pytest.approx(0.05, abs=1e-3)
    assert waits[1] == pytest.approx(0.15, abs=1e-3)


def test_speculation_gains_what_the_acceptance_says_and_loses_where_compute_is_short():
    workload = closed_loop(60, 2, fixed_length(50), fixed_length(300))
    plain = run(workload)
    drafter = Drafter(3, 0.7, base_s=3e-4)
    drafted = run(workload, drafter=drafter, num_speculative_tokens=3)
    assert drafted.recorder.accepted_tokens / drafted.recorder.drafted_tokens == pytest.approx((0.7 + 0.49 + 0.343) / 3, rel=0.03)
    gain = np.mean(plain.tpot_s) / np.mean(drafted.tpot_s)
    assert 0.75 * drafter.tokens_per_step() < gain < drafter.tokens_per_step()
    dear = AffineTimer(new_s=2e-3)
    assert np.mean(run(workload, timer=dear, drafter=drafter, num_speculative_tokens=3).tpot_s) > np.mean(run(workload, timer=dear).tpot_s)


def test_drafts_that_never_fit_gain_nothing():
    workload = closed_loop(10, 2, fixed_length(50), fixed_length(100))
    result = run(workload, drafter=Drafter(3, 0.0), num_speculative_tokens=3)
    assert result.recorder.accepted_tokens == 0
    np.testing.assert_array_equal(result.output_tokens, workload.output_tokens)
    assert Drafter(3, 0.5).tokens_per_step() == 1.875
    with pytest.raises(InputError, match="acceptance"):
        Drafter(3, 1.5)


def test_load_beyond_capacity_shows_as_first_token_and_not_as_output_time():
    timer = AffineTimer(row_s=1e-3)
    workloads = (open_loop(200, rate, fixed_length(200), fixed_length(100), seed=1) for rate in (1.0, 50.0))
    calm, crowd = (run(workload, timer=timer, max_num_seqs=16) for workload in workloads)
    assert crowd.ttft_s.mean() > 20 * calm.ttft_s.mean()
    assert crowd.tpot_s.mean() < 6 * calm.tpot_s.mean()
    tail = crowd.ttft_s[np.argsort(crowd.sent_s)][-20:].mean()
    rate = len(crowd.workload) / crowd.makespan_s
    assert tail == pytest.approx(200 / rate - 200 / 50.0, rel=0.15)
