"""Is it the server that is slow, or this client? The client watches its own event loop and its own share of the processor."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.loadtest.statistics import Floats, StageData

PERIOD_S = 0.01
MOST_SHIFT = 0.05
"""A percentile that may have moved by more than this share is not to be trusted."""
MOST_WAITING = 0.2
"""Share of the time that the client needed its core in which another process had it: above this the core is shared."""
TIMER_RESOLUTION_S = 1e-3
"""The event loop rounds its timers up to this (epoll's milliseconds): a timer that is so late says nothing about reading."""


class LoopWatch:
    """Wakes every PERIOD_S and notes how late it was, and how long the kernel let the process wait for its core meanwhile."""

    def __init__(self) -> None:
        self.lag_s = array("d")
        self.waited_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._waited_at_start = 0.0
        self._cpu_at_start = 0.0
        self._started = 0.0
        self.cpu_s = self.wall_s = 0.0

    def start(self) -> None:
        """Begins to watch."""
        self._waited_at_start, self._cpu_at_start, self._started = run_queue_wait_s(), time.process_time(), self._loop.time()
        self._due = self._loop.time() + PERIOD_S
        self._timer = self._loop.call_at(self._due, self._wake)

    def stop(self) -> None:
        """Ends the watch; the fields are complete then."""
        if self._timer is not None:
            self._timer.cancel()
        self.waited_s = run_queue_wait_s() - self._waited_at_start
        self.cpu_s = time.process_time() - self._cpu_at_start
        self.wall_s = self._loop.time() - self._started

    def _wake(self) -> None:
        now = self._loop.time()
        self.lag_s.append(now - self._due)
        self._due = max(self._due + PERIOD_S, now + PERIOD_S / 2)
        self._timer = self._loop.call_at(self._due, self._wake)


def run_queue_wait_s() -> float:
    """Seconds that this process's main thread was ready to run and did not (Linux; 0 elsewhere).

    Source: /proc/self/schedstat, second field, ns (kernel documentation, scheduler/sched-stats).
    """
    try:
        with open("/proc/self/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


@dataclass(frozen=True)
class ClientCheck:
    """What the client did to the measurement.

    event_loop_lag_s, send_delay_s: p50, p99 and max. cpu_share: of one core; waiting_share: of the time that the client needed a
    core, how much another process had it. shifts: by how much the p99 of each metric may be too high, as a share of it.
    reasons: why it is not trustworthy; empty = it is.
    """

    event_loop_lag_s: dict[str, float]
    send_delay_s: dict[str, float]
    cpu_share: float
    waiting_share: float
    shifts: dict[str, float]
    reasons: tuple[str, ...]

    @property
    def trustworthy(self) -> bool:
        """Whether the client left the percentiles alone."""
        return not self.reasons

    def as_json(self) -> dict[str, Any]:
        """The keys of `client` in results."""
        return {"trustworthy": self.trustworthy, **vars(self), "reasons": list(self.reasons)}


@dataclass(frozen=True)
class Load:
    """What one or more client processes saw of themselves during a stage."""

    lag_s: Sequence[float]
    waited_s: float
    cpu_s: float
    wall_s: float
    processes: int = 1

    @classmethod
    def of(cls, watch: LoopWatch) -> Load:
        """Of a stopped watch."""
        return cls(watch.lag_s, watch.waited_s, watch.cpu_s, watch.wall_s)

    @classmethod
    def together(cls, loads: Sequence[Load]) -> Load:
        """Of processes that ran at the same time, or stages one after the other."""
        lag = [value for load in loads for value in load.lag_s]
        walls = sum(load.wall_s * load.processes for load in loads)
        return cls(lag, sum(load.waited_s for load in loads), sum(load.cpu_s for load in loads), walls)


def check(load: Load, data: StageData, *, closed_loop: bool) -> ClientCheck:
    """The verdict on one stage.

    Reading late by the loop's lag moves TTFT and E2EL by as much and TPOT by as much per token; it moves ITL too, which counts
    where the kernel says that the core was not the client's own. Sending late changes the load: in a closed loop the streams are
    idle for that share of the time, in an open one the requests come when they should not.
    """
    lag, delay = spread(load.lag_s), spread(data.columns["send_delay_s"])
    late = max(0.0, lag["p99"] - TIMER_RESOLUTION_S)
    after_first = np.array(data.tokens["output"], dtype=np.float64).mean() if data.ok else 1.0
    shifts = {}
    for name in ("ttft", "tpot", "e2el"):
        p99 = spread(data.columns[f"{name}_s"])["p99"]
        if p99 > 0:
            shifts[name] = late / (max(after_first - 1, 1) if name == "tpot" else 1) / p99
    itl = float(np.percentile(np.array(data.gaps_s), 99)) if len(data.gaps_s) else 0.0
    sending = _sending_shift(data, closed_loop=closed_loop)
    wanted = load.waited_s + load.cpu_s
    waiting = load.waited_s / wanted if wanted else 0.0
    reasons = [
        f"the client was up to {1e3 * late:.1f} ms late to read (p99): {name} p99 may be {100 * shift:.0f} % too high"
        for name, shift in shifts.items()
        if shift > MOST_SHIFT
    ]
    if sending > MOST_SHIFT:
        reasons.append(f"requests were sent {1e3 * delay['p99']:.1f} ms late (p99): the load was not the one asked for")
    if waiting > MOST_WAITING and late > MOST_SHIFT * itl:
        kept = f"other processes had its core for {100 * waiting:.0f} % of the time that it needed it"
        reasons.append(f"{kept}, and it read up to {1e3 * late:.1f} ms late (p99): itl p99 may be that much too high")
    cpu = load.cpu_s / load.wall_s if load.wall_s else 0.0
    return ClientCheck(lag, delay, cpu, waiting, shifts | {"send": sending}, tuple(reasons))


def _sending_shift(data: StageData, *, closed_loop: bool) -> float:
    """Share by which late sending changed what was measured."""
    delay = data.column("send_delay_s")
    if not len(delay):
        return 0.0
    if closed_loop:
        return float(delay.mean() / data.column("e2el_s").mean())
    return spread(delay)["p99"] / max(spread(data.columns["ttft_s"])["p99"], 1e-9)


def thinned(lag_s: Sequence[float], most: int = 2000) -> list[float]:
    """At most so many of the samples, evenly from the sorted ones, to the microsecond: their percentiles stay."""
    ordered = np.sort(np.asarray(lag_s, dtype=np.float64))
    if len(ordered) > most:
        ordered = ordered[np.linspace(0, len(ordered) - 1, most).round().astype(int)]
    return [round(value, 6) for value in ordered.tolist()]


def spread(values: Sequence[float] | Floats) -> dict[str, float]:
    """p50, p99 and max; zeros of nothing."""
    data = np.asarray(values, dtype=np.float64)
    data = data[~np.isnan(data)]
    if not len(data):
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    p50, p99 = np.percentile(data, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "max": float(data.max())}
