"""One stage of a load test: requests in a closed loop (so many at a time) or an open one (each at its time)."""

from __future__ import annotations

import asyncio
import gc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic

from roofline.loadtest.lane import Job, Lane, Shop
from roofline.loadtest.selfcheck import Load, LoopWatch
from roofline.records import RequestRecord
from roofline.serving.workloads import Workload

Sink = Callable[[RequestRecord, str], None]
"""Takes a record and the answer's text ("" unless texts are kept)."""


@dataclass(frozen=True)
class Plan:
    """What one stage sends. workload.concurrency: a closed loop; else arrivals count from the stage's start.

    first_number: number of its first request in the run; share: (i, n) = every n-th request from the i-th on, for one of n
    processes. most_in_flight: an open loop's cap (None: no cap).
    """

    number: int
    phase: str
    workload: Workload
    first_number: int = 0
    share: tuple[int, int] = (0, 1)
    most_in_flight: int | None = None

    @property
    def lanes(self) -> int:
        """Connections that this process keeps busy in a closed loop."""
        at, of = self.share
        total = self.workload.concurrency or 0
        return total // of + (at < total % of)

    def jobs(self, start_s: float) -> Iterator[Job]:
        """The requests of this process in order; start_s: the stage's start on the monotonic clock."""
        load = self.workload
        for index in range(self.share[0], len(load), self.share[1]):
            yield Job(
                self.number,
                index,
                self.first_number + index,
                self.phase,
                int(load.input_tokens[index]),
                int(load.output_tokens[index]),
                () if load.segments is None else load.segments[index],
                start_s + float(load.arrival_s[index]),
            )


async def run_stage(plan: Plan, shop: Shop, sink: Sink, start_s: float | None = None) -> Load:
    """Sends the plan's requests and gives each record to `sink` as it ends; returns what the client saw of itself.

    Connections are open before the first request. A server that is gone (Shop.gone) gets no more of them. Cancelled: requests under
    way are dropped, finished ones are with the sink.
    start_s: when to begin, on the monotonic clock (None: now), for processes that begin together.
    """
    closed = plan.workload.concurrency is not None
    lanes = [Lane(shop) for _ in range(min(plan.lanes, len(plan.workload)) if closed else 8)]
    watch = LoopWatch()
    outbox = _Outbox(sink)
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        await _open_all(lanes)
        if start_s is not None:
            await asyncio.sleep(start_s - monotonic())
        watch.start()
        try:
            await (_closed_loop if closed else _open_loop)(plan, shop, lanes, outbox)
        finally:
            watch.stop()
    finally:
        for lane in lanes:
            lane.close()
        gc.enable()
        gc.unfreeze()
        outbox.drain()
    return Load.of(watch)


async def _open_all(lanes: list[Lane]) -> None:
    """Connects a few at a time: a listen queue is short."""
    for at in range(0, len(lanes), 32):
        await asyncio.gather(*(lane.open() for lane in lanes[at : at + 32]))


async def _closed_loop(plan: Plan, shop: Shop, lanes: list[Lane], outbox: _Outbox) -> None:
    jobs = plan.jobs(monotonic())
    turns = _Turns()

    async def work(lane: Lane, due: float) -> None:
        for job in jobs:
            await turns.take()
            record = await lane.run(_due(job, due))
            outbox.put(record, lane.text)
            due = shop.origin_s + record.end_s
            if shop.gone:
                return
            if lane.pause_s:
                await asyncio.sleep(lane.pause_s)
                due = monotonic()

    async with asyncio.TaskGroup() as group:
        for lane in lanes:
            group.create_task(work(lane, monotonic()))


def _due(job: Job, due: float) -> Job:
    return Job(job.stage, job.index, job.number, job.phase, job.input_tokens, job.output_tokens, job.segments, due)


async def _open_loop(plan: Plan, shop: Shop, lanes: list[Lane], outbox: _Outbox) -> None:
    idle = list(lanes)
    room = asyncio.Semaphore(plan.most_in_flight) if plan.most_in_flight else None

    async def work(job: Job) -> None:
        lane = idle.pop() if idle else Lane(shop)
        if lane not in lanes:
            lanes.append(lane)
        try:
            outbox.put(await lane.run(job), lane.text)
        finally:
            idle.append(lane)
            if room is not None:
                room.release()

    async with asyncio.TaskGroup() as group:
        for job in plan.jobs(monotonic()):
            if shop.gone:
                return
            wait = job.due_s - monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            if room is not None:
                await room.acquire()
            group.create_task(work(job))


class _Turns:
    """Lets one request go per turn of the event loop: between two of a burst it reads, and the server can keep up."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        """Returns at once, or when it is this caller's turn."""
        if self._taken:
            turn = self._loop.create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._taken = True
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                self._loop.call_soon(self._next)
                return
        self._taken = False


class _Outbox:
    """Hands records to the sink a few at a time, so that many requests that end together do not stop the reading."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._waiting: deque[tuple[RequestRecord, str]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._error: OSError | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, record: RequestRecord, text: str) -> None:
        """Takes a record."""
        self._waiting.append((record, text))
        if self._timer is None:
            self._timer = self._loop.call_later(0.002, self._some)

    def _some(self) -> None:
        for _ in range(min(4, len(self._waiting))):
            record, text = self._waiting.popleft()
            try:
                self._sink(record, text)
            except OSError as error:
                self._error = self._error or error
        self._timer = self._loop.call_later(0.002, self._some) if self._waiting else None

    def drain(self) -> None:
        """Hands over all that waits. Raises the first OSError that the sink met (a full disk)."""
        if self._timer is not None:
            self._timer.cancel()
        while self._waiting:
            self._sink(*self._waiting.popleft())
        if self._error is not None:
            raise self._error
