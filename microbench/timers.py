"""How long calls take: host clock on the CPU, CUDA events, or a replayed CUDA graph, behind one protocol.

A timer turns a ring of calls (several sets of operands, or one) into a function that gives samples. One sample is the time of
`inner` calls in a row divided by `inner`; the ring goes on where it stopped, so a set of operands comes back only after all others.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Call = Callable[[], object]
Sampler = Callable[[int], list[float]]  # how many samples → seconds per call, one each


class Timer(Protocol):
    """One way of timing.

    name: goes into the record. least_s: shortest burst whose time its clock resolves to about 0.5 %.
    """

    name: str
    least_s: float

    def sampler(self, ring: Sequence[Call], inner: int) -> Sampler:
        """A function that runs `inner` calls per sample, walking around the ring."""

    def once(self, call: Call) -> float:
        """Seconds of one call from the host's side, waiting for the device: for first calls and rough estimates."""


@dataclass
class CpuTimer:
    """Host clock in nanoseconds; a call has finished when it returns."""

    clock: Callable[[], int] = time.perf_counter_ns
    name: str = "perf_counter"
    least_s: float = 20e-6

    def sampler(self, ring: Sequence[Call], inner: int) -> Sampler:
        """See Timer."""
        walk = itertools.cycle(ring)

        def sample(count: int) -> list[float]:
            times = []
            for _ in range(count):
                calls = list(itertools.islice(walk, inner))
                start = self.clock()
                for call in calls:
                    call()
                times.append((self.clock() - start) * 1e-9 / inner)
            return times

        return sample

    def once(self, call: Call) -> float:
        """See Timer."""
        start = self.clock()
        call()
        return (self.clock() - start) * 1e-9


@dataclass
class CudaEventTimer:
    """CUDA events around each burst and one synchronisation at the end.

    cuda: torch.cuda, or a stand-in with the same functions. spin_cycles: a kernel that holds the stream while the host enqueues,
    so that launches do not show in the times. flush: makes the caches cold before each burst, outside the event pair.
    """

    cuda: Any
    spin_cycles: int = 2_000_000
    flush: Call | None = None
    clock: Callable[[], int] = time.perf_counter_ns
    name: str = "cuda events"
    least_s: float = 50e-6

    def sampler(self, ring: Sequence[Call], inner: int) -> Sampler:
        """See Timer."""
        walk = itertools.cycle(ring)

        def burst() -> None:
            for call in itertools.islice(walk, inner):
                call()

        return self._events(burst, inner)

    def _events(self, burst: Call, calls: int) -> Sampler:
        def sample(count: int) -> list[float]:
            pairs = [(self.cuda.Event(enable_timing=True), self.cuda.Event(enable_timing=True)) for _ in range(count)]
            if self.spin_cycles:
                self.cuda._sleep(self.spin_cycles)
            for start, end in pairs:
                if self.flush:
                    self.flush()
                start.record()
                burst()
                end.record()
            self.cuda.synchronize()
            return [start.elapsed_time(end) * 1e-3 / calls for start, end in pairs]

        return sample

    def once(self, call: Call) -> float:
        """See Timer."""
        self.cuda.synchronize()
        start = self.clock()
        call()
        self.cuda.synchronize()
        return (self.clock() - start) * 1e-9


@dataclass
class CudaGraphTimer(CudaEventTimer):
    """Bursts captured once and replayed: no launch cost of single kernels.

    Whole turns of the ring are captured, so that a cold ring stays cold: a graph of fewer calls would be silently warm.
    """

    name: str = "cuda graph"
    least_s: float = 1e-3  # rough times of short kernels are mostly launch and waiting

    def sampler(self, ring: Sequence[Call], inner: int) -> Sampler:
        """See Timer. The burst is rounded up to whole turns of the ring."""
        turns = math.ceil(inner / len(ring))
        side = self.cuda.Stream()
        side.wait_stream(self.cuda.current_stream())
        with self.cuda.stream(side):  # libraries allocate their workspaces before the capture, which forbids it
            ring[0]()
        self.cuda.current_stream().wait_stream(side)
        graph = self.cuda.CUDAGraph()
        with self.cuda.graph(graph):
            for call in list(ring) * turns:
                call()
        return self._events(graph.replay, turns * len(ring))
