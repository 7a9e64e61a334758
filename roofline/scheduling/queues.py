"""The two orders in which requests wait."""

from __future__ import annotations

import bisect
from collections import deque

from roofline.scheduling.request import Request


class FcfsQueue(deque[Request]):
    """First come, first served; a preempted request comes back in front."""

    def push_front(self, request: Request) -> None:
        """To the head."""
        self.appendleft(request)

    def put_back(self, passed: list[Request]) -> None:
        """Those that others were let past, to the head again in their order."""
        self.extendleft(reversed(passed))


class PriorityQueue(list[Request]):
    """By (priority, order of arrival), smaller first, whatever way a request comes in."""

    def append(self, request: Request) -> None:
        """To its place."""
        bisect.insort(self, request, key=order)

    push_front = append

    def popleft(self) -> Request:
        """The head."""
        return self.pop(0)

    def put_back(self, passed: list[Request]) -> None:
        """See FcfsQueue."""
        for request in passed:
            self.append(request)


def order(request: Request) -> tuple[int, int]:
    """Key of the priority policy: it admits the smallest first and preempts the largest first."""
    return request.priority, request.arrival
