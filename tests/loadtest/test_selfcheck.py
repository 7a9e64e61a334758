"""The verdict on the client, from made-up observations of itself."""

from __future__ import annotations

import asyncio
import time

import pytest

from roofline.loadtest import selfcheck
from roofline.loadtest.selfcheck import Load, LoopWatch, check, thinned
from tests.loadtest.builders import record, stage


def load(*, lag: float = 0.0005, waited: float = 0.0, cpu: float = 0.2, wall: float = 1.0) -> Load:
    return Load([lag] * 100, waited, cpu, wall)


DATA = stage(record(k, start=0.01 * k, ttft=0.2, gap=0.02, tokens=32) for k in range(100))


def test_a_quiet_client_is_trusted() -> None:
    found = check(load(), DATA, closed_loop=True)
    assert found.trustworthy
    assert found.event_loop_lag_s["p99"] == pytest.approx(0.0005)


def test_reading_late_moves_ttft() -> None:
    found = check(load(lag=0.0121), DATA, closed_loop=True)  # 1 ms is the timer's own; 11.1 of 200 ms
    assert not found.trustworthy
    assert "ttft p99 may be 6 % too high" in found.reasons[0]
    assert found.shifts["ttft"] == pytest.approx(0.0111 / 0.2)
    assert found.shifts["tpot"] == pytest.approx(0.0111 / 31 / 0.02)
    assert check(load(lag=0.0100), DATA, closed_loop=True).trustworthy


def test_a_shared_core_counts_where_it_matters() -> None:
    assert not check(load(lag=0.005, waited=0.2), DATA, closed_loop=True).trustworthy  # half the time, 4 of 20 ms
    assert check(load(lag=0.005, waited=0.01), DATA, closed_loop=True).trustworthy  # late by its own work
    assert check(load(lag=0.0015, waited=0.2), DATA, closed_loop=True).trustworthy  # shared, but read in time
    slow = stage(record(k, ttft=2.0, gap=0.5, tokens=32) for k in range(100))
    assert check(load(lag=0.005, waited=0.2), slow, closed_loop=True).trustworthy  # 4 ms of 500


def test_sending_late() -> None:
    late = stage(record(k, ttft=0.2, tokens=5, late=0.02) for k in range(100))
    assert not check(load(), late, closed_loop=False).trustworthy  # 20 of 200 ms
    assert not check(load(), late, closed_loop=True).trustworthy  # streams idle 20 of 280 ms
    first_wave = stage(record(k, ttft=0.2, tokens=32, late=0.02 if k < 30 else 0.0) for k in range(100))
    assert check(load(), first_wave, closed_loop=True).trustworthy  # the burst at the start of a closed loop is no distortion


def test_nothing_measured_is_no_verdict() -> None:
    assert check(Load((), 0, 0, 0), stage([]), closed_loop=True).trustworthy


def test_loads_of_processes_and_stages_add_up() -> None:
    both = Load.together([Load([0.1], 1.0, 2.0, 10.0), Load([0.2], 3.0, 4.0, 10.0)])
    assert (list(both.lag_s), both.waited_s, both.cpu_s, both.wall_s) == ([0.1, 0.2], 4.0, 6.0, 20.0)


def test_the_watch_sees_a_blocked_loop() -> None:
    async def block() -> LoopWatch:
        watch = LoopWatch()
        watch.start()
        await asyncio.sleep(0.05)
        time.sleep(0.2)
        await asyncio.sleep(0.05)
        watch.stop()
        return watch

    watch = asyncio.run(block())
    assert max(watch.lag_s) > 0.15
    assert watch.wall_s > 0.3


def test_without_schedstat_nothing_was_waited(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> object:
        raise OSError

    monkeypatch.setattr("builtins.open", refuse)
    assert selfcheck.run_queue_wait_s() == 0.0


def test_thinning_keeps_percentiles() -> None:
    values = [k * 1e-6 for k in range(100_000)]
    few = thinned(values, 1001)
    assert len(few) == 1001
    assert (few[0], few[500], few[990], few[-1]) == pytest.approx((0.0, 0.05, 0.099, 0.099999), abs=1e-4)
