"""Timers against a clock and a CUDA runtime whose times are known."""

from __future__ import annotations

import pytest

from microbench.timers import CpuTimer, CudaEventTimer, CudaGraphTimer
from tests.microbench.fakes import FakeClock, FakeCuda


def test_cpu_sample_is_the_time_of_a_burst_per_call() -> None:
    clock = FakeClock()
    sampler = CpuTimer(clock=clock.ns).sampler([lambda: clock.advance(0.002)], inner=10)
    assert sampler(3) == pytest.approx([0.002] * 3)


def test_ring_goes_on_where_the_last_burst_stopped() -> None:
    seen: list[int] = []
    clock = FakeClock()
    ring = [lambda i=i: (seen.append(i), clock.advance(1e-3)) for i in range(5)]
    sampler = CpuTimer(clock=clock.ns).sampler(ring, inner=3)
    sampler(2)
    sampler(1)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_building_the_list_of_calls_is_not_timed() -> None:
    clock = FakeClock()

    class Slow(list):
        def __iter__(self):
            for call in super().__iter__():
                clock.advance(1.0)
                yield call

    sampler = CpuTimer(clock=clock.ns).sampler(Slow([lambda: clock.advance(1e-3)]), inner=2)
    assert sampler(1) == pytest.approx([1e-3])


def test_once_is_one_call_with_the_device_waited_for() -> None:
    clock = FakeClock()
    assert CpuTimer(clock=clock.ns).once(lambda: clock.advance(0.5)) == pytest.approx(0.5)
    cuda = FakeCuda(launch_s=1e-6)
    assert CudaEventTimer(cuda, clock=cuda.ns).once(lambda: cuda.kernel(3e-3)) == pytest.approx(3.001e-3)


def test_events_hide_launches_behind_the_spin_kernel_and_synchronise_once() -> None:
    cuda = FakeCuda(launch_s=5e-6)
    sampler = CudaEventTimer(cuda, spin_cycles=10_000_000).sampler([lambda: cuda.kernel(1e-6)], inner=20)
    assert sampler(10) == pytest.approx([1e-6] * 10)
    assert cuda.log[0] == "spin"
    assert cuda.log.count("synchronize") == 1
    assert cuda.log[-1] == "synchronize"


def test_without_a_spin_kernel_the_launch_is_what_is_measured() -> None:
    cuda = FakeCuda(launch_s=5e-6)
    sampler = CudaEventTimer(cuda, spin_cycles=0).sampler([lambda: cuda.kernel(1e-6)], inner=200)
    assert sampler(1)[0] == pytest.approx(5e-6, rel=0.02)


def test_flush_runs_outside_the_event_pair() -> None:
    cuda = FakeCuda()

    def flush() -> None:
        cuda.log.append("flush")
        cuda.kernel(1.0)

    sampler = CudaEventTimer(cuda, flush=flush).sampler([lambda: cuda.kernel(2e-3)], inner=1)
    assert sampler(4) == pytest.approx([2e-3] * 4)
    assert cuda.log[1:] == ["flush", "event", "event"] * 4 + ["synchronize"]


@pytest.mark.parametrize(("ring", "inner"), [(1, 7), (11, 10), (11, 30)])
def test_graph_captures_whole_turns_of_the_ring(ring: int, inner: int) -> None:
    """Ten captured calls of an eleven-set ring would leave a graph that is silently warm."""
    cuda, captured = FakeCuda(), list[int]()

    def kernel(i: int) -> None:
        if cuda.capturing is not None:
            captured.append(i)
        cuda.kernel(1e-4)

    sampler = CudaGraphTimer(cuda).sampler([lambda i=i: kernel(i) for i in range(ring)], inner)
    turns = -(-inner // ring)
    assert captured == list(range(ring)) * turns
    assert sampler(3) == pytest.approx([1e-4] * 3)
    assert cuda.log.count("replay") == 3
