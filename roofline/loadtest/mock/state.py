"""What the mock server knows: its counters, the truth of each request, how late it was itself, and its /metrics page."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from roofline.loadtest.mock.options import MockOptions

if TYPE_CHECKING:
    from roofline.loadtest.mock.stream import Stream

_BUCKETS_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


class Histogram:
    """A Prometheus histogram of seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.sum, self.count = name, 0.0, 0
        self._buckets = [0] * len(_BUCKETS_S)

    def observe(self, value_s: float) -> None:
        """Counts one value."""
        self.sum += value_s
        self.count += 1
        for at, limit in enumerate(_BUCKETS_S):
            if value_s <= limit:
                self._buckets[at] += 1

    def lines(self, labels: str) -> list[str]:
        """Exposition format; labels: inside of the braces."""
        buckets = [*zip(map(str, _BUCKETS_S), self._buckets, strict=True), ("+Inf", self.count)]
        lines = [f"# TYPE {self.name} histogram", *(f'{self.name}_bucket{{{labels},le="{le}"}} {float(n)}' for le, n in buckets)]
        return [*lines, f"{self.name}_sum{{{labels}}} {self.sum}", f"{self.name}_count{{{labels}}} {float(self.count)}"]


@dataclass
class State:
    """Counters since the start or the last reset. late_*: seconds that writes came after their schedule."""

    options: MockOptions
    arrived: int = 0
    ended: int = 0
    active: int = 0
    max_active: int = 0
    waiting: deque[Stream] = field(default_factory=deque)
    truth: list[dict[str, Any]] = field(default_factory=list)
    writes: int = 0
    late_sum: float = 0.0
    late_max: float = 0.0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    ttft: Histogram = field(default_factory=lambda: Histogram("vllm:time_to_first_token_seconds"))
    queue: Histogram = field(default_factory=lambda: Histogram("vllm:request_queue_time_seconds"))
    e2e: Histogram = field(default_factory=lambda: Histogram("vllm:e2e_request_latency_seconds"))

    def reset(self) -> None:
        """Forgets requests and lateness; /metrics counters go on, as a server's do."""
        self.truth, self.arrived, self.ended, self.max_active = [], 0, 0, self.active
        self.writes, self.late_sum, self.late_max = 0, 0.0, 0.0

    def wrote(self, late_s: float) -> None:
        """A write came late_s after its schedule."""
        self.writes += 1
        self.late_sum += late_s
        self.late_max = max(self.late_max, late_s)

    def report(self) -> dict[str, Any]:
        """The page /mock/truth."""
        return {
            "args": asdict(self.options) | {"api_key": ""},
            "n": self.arrived,
            "done": self.ended,
            "max_active": self.max_active,
            "late_mean_ms": 1e3 * self.late_sum / max(1, self.writes),
            "late_max_ms": 1e3 * self.late_max,
            "writes": self.writes,
            "cpu_s": time.process_time(),
            "requests": self.truth,
        }

    def metrics(self) -> str:
        """The page /metrics, under vLLM's names."""
        labels = f'model_name="{self.options.model}",engine="0"'
        gauges = {"vllm:num_requests_running": self.active, "vllm:num_requests_waiting": len(self.waiting)}
        counters = {"vllm:prompt_tokens": self.prompt_tokens, "vllm:generation_tokens": self.generation_tokens}
        lines = []
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{{{labels}}} {float(value)}"]
        for name, value in counters.items():
            lines += [f"# TYPE {name} counter", f"{name}_total{{{labels}}} {float(value)}"]
        for histogram in (self.ttft, self.queue, self.e2e):
            lines += histogram.lines(labels)
        return "\n".join(lines) + "\n"
