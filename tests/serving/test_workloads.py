"""Generators: rates, burstiness, lengths, users, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.errors import InputError
from roofline.scheduling import CountingPool, RunPool, VllmConfig, VllmScheduler
from roofline.serving.routers import ByClass, LeastLoaded, PrefixAware, RoundRobin
from roofline.serving.simulator import simulate, simulate_replicas
from roofline.serving.workloads import (
    SHAREGPT_INPUT,
    Workload,
    closed_loop,
    conversations,
    fixed_length,
    interarrival,
    lognormal_length,
    merged,
    open_loop,
    uniform_length,
    users,
)
from tests.serving.affine import AffineTimer


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (np.inf, 0.0)])
def test_gaps_have_the_rate_and_the_variation_of_the_burstiness(burstiness, variation):
    gaps = np.diff(interarrival(200_000, 5.0, burstiness, np.random.default_rng(0)))
    assert gaps.mean() == pytest.approx(0.2, rel=0.02)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.03)


def test_an_infinite_rate_sends_all_at_once():
    assert (open_loop(5, np.inf, fixed_length(3), fixed_length(3)).arrival_s == 0).all()


def test_lengths_have_their_moments():
    rng = np.random.default_rng(0)
    values = lognormal_length(500, 0.8).draw(200_000, rng)
    assert values.mean() == pytest.approx(500, rel=0.02)
    assert values.std() / values.mean() == pytest.approx(0.8, rel=0.03)
    assert SHAREGPT_INPUT.draw(1000, rng).max() <= 1024
    assert set(uniform_length(2, 4).draw(1000, rng)) == {2, 3, 4}


def test_the_same_seed_gives_the_same_workload():
    first, second = (open_loop(50, 2.0, uniform_length(1, 9), uniform_length(1, 9), seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.arrival_s, second.arrival_s)
    np.testing.assert_array_equal(first.input_tokens, second.input_tokens)


def test_slices_and_scales():
    workload = open_loop(100, 2.0, uniform_length(10, 20), uniform_length(10, 20))
    part = workload.slice(10, 30)
    assert len(part) == 20
    assert part.arrival_s[0] == 0
    assert part.scaled(rate=2).arrival_s[-1] == pytest.approx(part.arrival_s[-1] / 2)
    assert part.scaled(lengths=0.01).input_tokens.min() == 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"arrival_s": np.array([-1.0])}, "arrival_s of request 0 is -1.0; it must be finite and ≥ 0"),
        ({"arrival_s": np.array([np.nan])}, "must be finite"),
        ({"input_tokens": np.array([0])}, "input_tokens of request 0 is 0; it must be ≥ 1"),
        ({"output_tokens": np.array([-5])}, "output_tokens of request 0"),
        ({"output_tokens": np.array([1, 2])}, "output_tokens has 2 rows and arrival_s has 1"),
        ({"concurrency": 0}, "concurrency 0"),
        ({"parent": np.array([0]), "think_s": np.array([0.0])}, "−1 or an earlier request"),
        ({"parent": np.array([-1])}, "think_s belongs to parents"),
    ],
)
def test_bad_columns_are_refused(columns, message):
    good = {"arrival_s": np.zeros(1), "input_tokens": np.ones(1, dtype=int), "output_tokens": np.ones(1, dtype=int)}
    with pytest.raises(InputError, match=message):
        Workload(**{**good, **columns})


@pytest.mark.parametrize(
    "make",
    [
        lambda: fixed_length(0),
        lambda: uniform_length(5, 4),
        lambda: lognormal_length(0.5, 1),
        lambda: open_loop(3, 0.0, fixed_length(1), fixed_length(1)),
        lambda: open_loop(3, 1.0, fixed_length(1), fixed_length(1), burstiness=0),
        lambda: open_loop(3, 1.0, fixed_length(1), fixed_length(1)).scaled(rate=0),
        lambda: users(4, 2, 1.0, fixed_length(1), fixed_length(1)).slice(0, 1),
        lambda: merged({"a": closed_loop(3, 1, fixed_length(1), fixed_length(1))}),
    ],
)
def test_bad_parameters_are_refused(make):
    with pytest.raises(InputError):
        make()


def test_users_send_one_at_a_time():
    """The i-th end sets off the pause think_s[i]; requests are sent in the order in which pauses end, until none is left."""
    workload = users(40, 5, 1.0, fixed_length(50), fixed_length(30), seed=1)
    result = simulate(workload, VllmScheduler(VllmConfig(), CountingPool(500)), AffineTimer())
    woken = np.sort(np.concatenate([workload.arrival_s[:5], np.sort(result.ended_s) + workload.think_s]))
    assert result.sent_s == pytest.approx(woken[:40])
    for time in result.sent_s:
        assert ((result.sent_s <= time) & (result.ended_s > time)).sum() <= 5


def test_the_last_request_of_users_is_sent_at_the_pace_of_the_first():
    """300 users and a pause of 10 s on a server that hardly takes time: 30 a second from beginning to end, not a tail of few users."""
    result = simulate(users(3000, 300, 10.0, fixed_length(5), fixed_length(2)), VllmScheduler(VllmConfig(), RunPool(5000)), AffineTimer())
    counts = np.histogram(result.sent_s, bins=5)[0]
    assert counts == pytest.approx([600] * 5, rel=0.15)
    assert np.ptp(result.sent_s) == pytest.approx(100, rel=0.1)


def test_fewer_requests_than_users():
    result = simulate(users(3, 50, 10.0, fixed_length(5), fixed_length(2)), VllmScheduler(VllmConfig(), CountingPool(500)), AffineTimer())
    assert result.completed.all()
    assert (np.diff(result.sent_s) >= 0).all()


def replicas(count, pool=CountingPool):
    return [VllmScheduler(VllmConfig(512, 32), pool(600)) for _ in range(count)]


def test_round_robin_takes_turns():
    workload = open_loop(30, 5.0, fixed_length(50), fixed_length(50))
    result = simulate_replicas(workload, replicas(3), AffineTimer(), router=RoundRobin())
    assert list(result.recorder.instance) == [0, 1, 2] * 10


@pytest.mark.parametrize("asynchronous", [False, True])
def test_replicas_fast_forward_as_they_step(asynchronous):
    for workload in (
        open_loop(120, 30.0, uniform_length(1, 300), uniform_length(1, 100)),
        closed_loop(80, 12, uniform_length(1, 300), uniform_length(1, 100)),
        conversations(12, 3, 5.0, uniform_length(1, 100), uniform_length(1, 60), think_s=0.2),
    ):
        results = [
            simulate_replicas(
                workload, replicas(3, RunPool), AffineTimer(), router=RoundRobin(), asynchronous=asynchronous, fast_forward=fast
            )
            for fast in (True, False)
        ]
        assert results[0].completed.all()
        np.testing.assert_array_equal(results[0].ended_s, results[1].ended_s)
        np.testing.assert_array_equal(results[0].ttft_s, results[1].ttft_s)


def test_least_loaded_beats_round_robin_on_uneven_requests():
    rng = np.random.default_rng(7)
    count = 300
    outputs = np.where(rng.random(count) < 0.1, 1500, 20)
    workload = Workload(np.cumsum(rng.exponential(0.05, count)), np.full(count, 100), outputs)
    mean = {
        router: simulate_replicas(workload, replicas(4), AffineTimer(row_s=1e-3), router=router()).e2el_s.mean()
        for router in (RoundRobin, LeastLoaded)
    }
    assert mean[LeastLoaded] < mean[RoundRobin]


def test_prefix_aware_routing_finds_more():
    workload = conversations(40, 4, 4.0, uniform_length(50, 200), uniform_length(20, 60), think_s=1.0)
    rates = {
        router: simulate_replicas(workload, replicas(4, RunPool), AffineTimer(), router=router()).prefix_cache_hit_rate
        for router in (RoundRobin, PrefixAware)
    }
    assert rates[PrefixAware] > 1.5 * rates[RoundRobin]


def test_classes_keep_to_their_pools():
    workload = merged(
        {
            "interactive": open_loop(40, 10.0, fixed_length(50), fixed_length(20)),
            "batch": open_loop(40, 10.0, fixed_length(500), fixed_length(200)),
        }
    )
    router = ByClass(workload.classes, {"interactive": [0], "batch": [1, 2]}, LeastLoaded())
    result = simulate_replicas(workload, replicas(3), AffineTimer(), router=router)
    for name, instance in zip(workload.classes, result.recorder.instance, strict=True):
        assert (instance == 0) is (name == "interactive")
    with pytest.raises(InputError, match="without a pool: batch"):
        ByClass(["batch"], {"interactive": [0]}, LeastLoaded())
    with pytest.raises(InputError, match="need a router"):
        simulate_replicas(workload, replicas(2), AffineTimer())
