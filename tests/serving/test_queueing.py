"""Queueing theory, conservation laws and a second implementation (simpy) as oracles of the simulator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roofline.scheduling import CountingPool, RadixPool, RunPool, SglangConfig, SglangScheduler, StaticScheduler, VllmConfig, VllmScheduler
from roofline.serving.simulator import simulate
from roofline.serving.workloads import Workload, closed_loop, fixed_length, interarrival, open_loop, uniform_length, users
from tests.serving.affine import AffineTimer

PURE = AffineTimer(floor_s=0.0, row_s=0.0, context_s=0.0, new_s=1e-3, pair_s=0.0, host_s=0.0)


class Exact(AffineTimer):
    """No host time at all."""

    def host_time(self, rows):
        return 0.0


def one_at_a_time(timer, workload):
    return simulate(workload, VllmScheduler(VllmConfig(100_000, 1), CountingPool(100_000)), timer)


@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
def test_one_seat_and_equal_prompts_are_an_m_d_1_queue(load):
    timer = Exact(**vars(PURE))
    count, service = 60_000, 0.1
    arrival = interarrival(count, load / service, 1.0, np.random.default_rng(5))
    workload = Workload(arrival, np.full(count, 100), np.ones(count, dtype=np.int64))
    result = one_at_a_time(timer, workload)
    waiting = load * service / (2 * (1 - load))
    assert np.mean(result.ttft_s) == pytest.approx(service + waiting, rel=0.06)
    assert np.mean(result.queue_s) == pytest.approx(waiting, rel=0.08)


def test_one_seat_and_mixed_requests_are_an_m_g_1_queue():
    """Pollaczek–Khinchine with service times of prompt and decode together."""
    timer = Exact(floor_s=0.01, row_s=0.0, context_s=0.0, new_s=1e-3, pair_s=0.0)
    rng = np.random.default_rng(11)
    count = 60_000
    inputs, outputs = rng.choice([10, 200], count), rng.choice([1, 20], count)
    service = 0.01 * outputs + 1e-3 * inputs
    rate = 0.7 / service.mean()
    result = one_at_a_time(timer, Workload(interarrival(count, rate, 1.0, rng), inputs, outputs))
    waiting = rate * np.mean(service**2) / (2 * (1 - rate * service.mean()))
    assert np.mean(result.e2el_s) == pytest.approx(service.mean() + waiting, rel=0.06)


def engines(blocks=400):
    return [
        VllmScheduler(VllmConfig(256, 32), CountingPool(blocks)),
        VllmScheduler(VllmConfig(256, 32), RunPool(blocks)),
        SglangScheduler(SglangConfig(256, 512, 32), RadixPool(blocks * 16)),
        StaticScheduler(8, blocks * 16, 700),
    ]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("asynchronous", [False, True])
def test_littles_law_and_conservation(number, asynchronous):
    workload = open_loop(300, 5.0, uniform_length(1, 400), uniform_length(1, 200), seed=2)
    result = simulate(workload, engines()[number], AffineTimer(), asynchronous=asynchronous)
    assert result.completed.all()
    np.testing.assert_array_equal(result.output_tokens, workload.output_tokens)
    events = sorted([(time, 1) for time in result.sent_s] + [(time, -1) for time in result.ended_s])
    area = level = last = 0.0
    for time, change in events:
        area += level * (time - last)
        level, last = level + change, time
    assert result.mean_in_system == pytest.approx(area / (last - events[0][0]), rel=1e-9)
    throughput = len(workload) / result.makespan_s
    assert result.mean_in_system == pytest.approx(throughput * result.e2el_s.mean(), rel=1e-9)
    steps = result.stretches
    emitted = (steps[:, 2] * steps[:, 3]).sum()
    if number < 3:
        by_prompts = len(workload) + sum(result.recorder.preemptions)
        assert emitted + by_prompts == workload.output_tokens.sum()
    if number == 0 and not sum(result.recorder.preemptions):
        assert steps[:, 4].sum() == workload.input_tokens.sum()


@given(st.integers(1, 40), st.floats(0.5, 50), st.integers(1, 6), st.integers(0, 2**31), st.sampled_from([0.0, 1e-3]))
@settings(max_examples=40, deadline=None)
def test_a_policy_written_for_simpy_gives_the_same_times(count, rate, seats, seed, host):
    simpy = pytest.importorskip("simpy")
    rng = np.random.default_rng(seed)
    arrival = np.cumsum(rng.exponential(1 / rate, count))
    inputs, outputs = rng.integers(1, 50, count), rng.integers(1, 30, count)
    timer = AffineTimer(host_s=host)
    ours = simulate(Workload(arrival, inputs, outputs), VllmScheduler(VllmConfig(10_000, seats), CountingPool(10_000)), timer)

    env = simpy.Environment()
    queue, first, last = simpy.Store(env), [0.0] * count, [0.0] * count

    def client():
        for number in range(count):
            yield env.timeout(arrival[number] - env.now)
            yield queue.put(number)

    def server():
        active = {}
        while len(done) < count:
            if not active and not queue.items:
                number = yield queue.get()
                active[number] = 0
            while queue.items and len(active) < seats:
                number = yield queue.get()
                active[number] = 0
            decode = [inputs[n] + made - 1 for n, made in active.items() if made]
            prompts = [inputs[n] for n, made in active.items() if not made]
            time = timer.floor_s + timer.row_s * len(decode) + timer.context_s * sum(decode)
            time += sum(p * timer.new_s + p * p / 2 * timer.pair_s for p in prompts)
            yield env.timeout(time + host + 1e-6 * len(active))
            for number in list(active):
                active[number] += 1
                if active[number] == 1:
                    first[number] = env.now
                if active[number] == outputs[number]:
                    last[number] = env.now
                    done.append(active.pop(number))

    done = []
    env.process(client())
    env.process(server())
    env.run()
    np.testing.assert_allclose(np.array(ours.recorder.first_token_s), first, rtol=1e-9)
    np.testing.assert_allclose(ours.ended_s, last, rtol=1e-9)


def test_a_closed_loop_keeps_its_concurrency():
    workload = closed_loop(200, 8, fixed_length(50), fixed_length(40))
    result = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(2000)), AffineTimer())
    assert result.mean_in_system == pytest.approx(8, rel=0.02)
    assert (np.sort(result.sent_s)[:8] == 0).all()


def test_users_with_think_time_obey_the_interactive_response_time_law():
    """N = throughput · (response + think), machine repair: users are either served or thinking."""
    workload = users(1200, 20, 2.0, fixed_length(50), fixed_length(40), seed=4)
    result = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(2000)), AffineTimer())
    middle = (result.ended_s > 20) & (result.ended_s < result.makespan_s * 0.7)
    span = result.ended_s[middle].max() - result.ended_s[middle].min()
    throughput = middle.sum() / span
    assert throughput * (result.e2el_s[middle].mean() + 2.0) == pytest.approx(20, rel=0.06)


def test_what_can_never_run_is_reported_and_the_rest_goes_on():
    workload = Workload(np.zeros(3), np.array([10, 100_000, 10]), np.array([5, 5, 5]))
    result = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(100)), AffineTimer())
    assert list(result.completed) == [True, False, True]
    assert result.to_json()["requests_rejected"] == 1
    assert "the pool has 99" in result.to_json()["rejected"]["1"]


def test_nothing_served_gives_no_numbers_and_no_crash():
    workload = Workload(np.zeros(1), np.array([100_000]), np.array([5]))
    summary = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(100)), AffineTimer()).to_json()
    assert summary["ttft_s"]["mean"] is None
    assert summary["output_tokens_per_s"] is None
    assert summary["makespan_s"] == 0
