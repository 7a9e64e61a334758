"""When the requests of a workload are sent, given when the earlier ones ended."""

from __future__ import annotations

import heapq
import math

import numpy as np

from roofline.serving.workloads import Workload


def stream(workload: Workload) -> Arrivals | Users:
    """The stream of (time, index) of a workload."""
    return Users(workload) if workload.concurrency is not None and workload.think_s is not None else Arrivals(workload)


class Users:
    """A stream of (time, index): the requests in their order, each sent by the user whose pause ends next."""

    def __init__(self, workload: Workload) -> None:
        assert workload.think_s is not None  # noqa: S101 - users come with think times
        self._awake: list[float] = sorted(workload.arrival_s[: workload.concurrency].tolist())
        self._pauses: list[float] = workload.think_s.tolist()
        self._sent = self._ended = 0

    @property
    def next_time(self) -> float:
        """When the next request is sent, as far as is known now; inf if none."""
        return self._awake[0] if self._awake and self._sent < len(self._pauses) else math.inf

    def pop(self) -> tuple[float, int]:
        """The next (time, index)."""
        self._sent += 1
        return heapq.heappop(self._awake), self._sent - 1

    def ended(self, index: int, time: float) -> None:
        """A request left the system at `time`: its user pauses."""
        heapq.heappush(self._awake, time + self._pauses[self._ended])
        self._ended += 1


class Arrivals:
    """A stream of (time, index): the roots in order of arrival, and those that the end of another request sets off."""

    def __init__(self, workload: Workload) -> None:
        order = np.argsort(workload.arrival_s, kind="stable")
        if workload.parent is not None:
            order = order[workload.parent[order] < 0]
        self._workload = workload
        self._indices: list[int] = order.tolist()
        self._times: list[float] = workload.arrival_s[order].tolist()
        self._at = 0
        self._open = len(order) if workload.concurrency is None else min(len(order), workload.concurrency)
        self._set_off: list[tuple[float, int]] = []
        self._children: dict[int, list[int]] = {}
        if workload.parent is not None:
            for index in np.flatnonzero(workload.parent >= 0).tolist():
                self._children.setdefault(int(workload.parent[index]), []).append(index)

    @property
    def next_time(self) -> float:
        """When the next request is sent, as far as is known now; inf if none."""
        time = self._times[self._at] if self._at < self._open else math.inf
        return min(time, self._set_off[0][0]) if self._set_off else time

    def pop(self) -> tuple[float, int]:
        """The next (time, index)."""
        at = self._at
        if at < self._open and not (self._set_off and self._set_off[0][0] < self._times[at]):
            self._at = at + 1
            return self._times[at], self._indices[at]
        return heapq.heappop(self._set_off)

    def ended(self, index: int, time: float) -> None:
        """Request `index` left the system at `time`: whoever waited for that is sent."""
        workload = self._workload
        if workload.concurrency is not None and self._open < len(self._indices):
            follower = self._open
            self._times[follower] = max(self._times[follower], time)
            self._open = follower + 1
        for child in self._children.pop(index, ()):
            assert workload.think_s is not None  # noqa: S101 - parents come with think times
            heapq.heappush(self._set_off, (max(float(workload.arrival_s[child]), time + float(workload.think_s[child])), child))
