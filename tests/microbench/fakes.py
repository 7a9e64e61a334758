"""A clock, a machine with a cache, and a CUDA runtime that exist only in these tests: time passes when they say so."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from microbench.measure import Case, Trial
from microbench.ops import moving_op
from microbench.timers import CpuTimer


@dataclass
class FakeClock:
    """Seconds that pass when something advances them."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def ns(self) -> int:
        return round(self.now * 1e9)

    def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class FakeCache:
    """Least-recently-used cache of whole operand sets: a set that is not in it is slow."""

    size: float
    held: OrderedDict[int, float] = field(default_factory=OrderedDict)

    def touch(self, name: int, size: float) -> bool:
        """Whether `name` was in the cache; it is now, and what no longer fits is not."""
        hit = name in self.held
        self.held.pop(name, None)
        self.held[name] = size
        while sum(self.held.values()) > self.size:
            self.held.popitem(last=False)
        return hit


class FakeDevice:
    """What measure and Sweep ask of a device. slowdown: factor on all times, a function of the time that has passed."""

    def __init__(self, kind: str = "cpu", cache_bytes: float = 1000.0, profile: Any = None, memory: float = 1e12) -> None:
        self.kind, self.id, self.cache_bytes, self.profile, self.memory = kind, "fake", cache_bytes, profile, memory
        self.clock, self.cache = FakeClock(), FakeCache(cache_bytes)
        self.slowdown: Callable[[float], float] = lambda now: 1.0
        self.built = self.released = 0
        self.long_enough = True
        self.hits: list[bool] = []

    def timer(self, *, eager: bool = False, flush: bool = False) -> CpuTimer:
        return CpuTimer(clock=self.clock.ns)

    def state(self) -> dict[str, Any]:
        return {"now": self.clock.now}

    def free_bytes(self) -> float:
        return self.memory

    def passes_caches(self) -> bool:
        return self.long_enough

    def filling_s(self) -> float:
        return 0.0

    def release(self) -> None:
        self.released += 1

    def environment(self) -> Any:
        return SimpleNamespace(id="env", to_json=lambda: {"kind": "environment", "id": "env"})

    def trial(self, size: float, hot_s: float, cold_s: float, error: float | None = None) -> Trial:
        """A set of operands whose call takes hot_s from the cache and cold_s from memory."""
        self.built += 1
        name = self.built

        def call() -> None:
            hit = self.cache.touch(name, size)
            self.hits.append(hit)
            self.clock.advance((hot_s if hit else cold_s) * self.slowdown(self.clock.now))

        return Trial(call, error=None if error is None else lambda: error)


def fake_case(
    name: str, *, size: float = 300.0, hot_s: float = 1e-3, cold_s: float = 5e-3, cold: bool = False, flops: float = 0.0, compute: str = "",
    error: float | None = None, fails: Exception | None = None,
) -> Case:  # fmt: skip
    """A case on a FakeDevice."""

    def build(device: Any) -> Trial:
        if fails:
            raise fails
        return device.trial(size, hot_s, cold_s, error)

    op = moving_op(name, read=size, written=0.0, flops=flops, compute=compute)
    return Case("stream", {"name": name}, "fp32", cold, op, build, tolerance=1e-3)


class FakeCuda:
    """torch.cuda for timers: a host that enqueues, a stream that runs later, events on the stream's time, graphs.

    launch_s: host time of one enqueued kernel. The log says what happened, in order.
    """

    def __init__(self, launch_s: float = 5e-6) -> None:
        self.host, self.stream_at, self.launch_s = 0.0, 0.0, launch_s
        self.log: list[str] = []
        self.capturing: list[float] | None = None
        outer = self

        class Event:
            def __init__(self, enable_timing: bool = False) -> None:
                self.at = 0.0

            def record(self) -> None:
                outer.log.append("event")
                outer.stream_at = max(outer.stream_at, outer.host)
                self.at = outer.stream_at

            def elapsed_time(self, other: Any) -> float:
                return (other.at - self.at) * 1e3

        class Graph:
            def __init__(self) -> None:
                self.kernels: list[float] = []

            def replay(self) -> None:
                outer.log.append("replay")
                outer.host += outer.launch_s
                outer.stream_at = max(outer.stream_at, outer.host) + sum(self.kernels)

        class Capture:
            def __init__(self, graph: Any) -> None:
                self.graph = graph

            def __enter__(self) -> None:
                outer.capturing = self.graph.kernels

            def __exit__(self, *_: object) -> None:
                outer.capturing = None

        class Context:
            def __init__(self, *_: object) -> None: ...
            def __enter__(self) -> None: ...
            def __exit__(self, *_: object) -> None: ...
            def wait_stream(self, other: object) -> None: ...

        self.Event, self.CUDAGraph, self.graph, self.Stream, self.stream = Event, Graph, Capture, Context, Context

    def current_stream(self) -> Any:
        return self.Stream()

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.host = max(self.host, self.stream_at)

    def _sleep(self, cycles: int) -> None:
        self.log.append("spin")
        self.kernel(cycles * 1e-9)

    def kernel(self, seconds: float) -> None:
        """Enqueues a kernel: it starts when the host has launched it and the stream is free."""
        if self.capturing is not None:
            self.capturing.append(seconds)
            return
        self.host += self.launch_s
        self.stream_at = max(self.stream_at, self.host) + seconds

    def ns(self) -> int:
        return round(self.host * 1e9)
