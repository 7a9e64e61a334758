"""The engine's thread: takes requests in between two steps and hands each step's tokens to the event loop at once."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from roofline.engine.engine import Engine, Step
from roofline.engine.sampler import Sampling
from roofline.engine.server.metrics import Life, Metrics

clock = time.monotonic


class Update(NamedTuple):
    """News of one answer. choice: its number within its request; tokens: new ones; finish: stop, length, abort or error, None while
    it goes on; cached: prompt tokens that the prefix cache had."""

    choice: int
    tokens: list[int]
    finish: str | None
    cached: int = 0


Sink = Callable[[Update], None]


@dataclass(frozen=True)
class Job:
    """One sequence for the engine. sink: called on the event loop with each update."""

    request_id: str
    choice: int
    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    life: Life
    sink: Sink


class Worker:
    """Runs an engine in a thread of its own. Its methods are for the event loop's thread.

    If a step fails, every request ends with "error", `failure` says why, and `on_failure` is called.
    """

    def __init__(self, engine: Engine, metrics: Metrics, loop: asyncio.AbstractEventLoop, on_failure: Callable[[], None]) -> None:
        self.engine, self.metrics = engine, metrics
        self.failure = ""
        self._loop, self._on_failure = loop, on_failure
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._jobs: dict[str, Job] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begins to take requests."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Queues a job; the engine has been asked before whether it can run (`Engine.why_never`)."""
        job.life.queued_s = clock()
        self._inbox.put(partial(self._add, job))

    def abort(self, request_id: str, reason: str = "abort") -> None:
        """Ends a job that may have ended already: its blocks are free after the step that runs. reason: as /metrics counts it."""
        self._inbox.put(partial(self._abort, request_id, reason))

    async def stop(self) -> None:
        """Ends every job with "abort" and the thread after the step that runs."""
        self._inbox.put(self._stop)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._take()
                if not self._stopping and self.engine.busy:
                    self._step()
        except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must be told
            traceback.print_exc()
            self.failure = f"{type(error).__name__}: {error}"
            self._end_all("error")
            self._loop.call_soon_threadsafe(self._on_failure)

    def _take(self) -> None:
        """Does what was asked for since the last step; waits for it if there is nothing to compute."""
        try:
            while True:
                self._inbox.get(block=not self.engine.busy and not self._stopping)()
                if not self.engine.busy:
                    self._tell_state()
        except queue.Empty:
            pass

    def _step(self) -> None:
        began = clock()
        step = self.engine.step()
        if step is None:  # whoever is here cannot run until somebody leaves
            self._inbox.get()()
            return
        now = clock()
        self._scheduled(step, began)
        finished = {request.request_id for request in step.finished}
        updates = [self._emitted(request_id, tokens, request_id in finished, now) for request_id, tokens in step.emitted.items()]
        for request_id in finished:
            del self._jobs[request_id]
        self.metrics.stepped(step.batch.num_tokens, len(step.batch.preempted))
        self._tell_state()
        self._deliver(updates)

    def _scheduled(self, step: Step, began: float) -> None:
        for chunk in step.batch.chunks:
            life = self._jobs[chunk.request.request_id].life
            if life.scheduled_s != life.scheduled_s:
                life.scheduled_s = began
                life.cached_tokens = max(chunk.request.num_cached_tokens, 0)

    def _emitted(self, request_id: str, tokens: list[int], finished: bool, now: float) -> tuple[Sink, Update]:
        job = self._jobs[request_id]
        finish = None
        self.metrics.emitted(job.life, len(tokens), now)
        if finished:
            how = job.sampling
            finish = "stop" if tokens[-1] in how.stop and job.life.tokens >= how.min_tokens else "length"
            self.metrics.ended(job.life, finish, now)
        return job.sink, Update(job.choice, tokens, finish, job.life.cached_tokens)

    def _add(self, job: Job) -> None:
        self._jobs[job.request_id] = job
        self.engine.add_request(job.request_id, job.prompt, job.max_tokens, job.sampling)

    def _abort(self, request_id: str, reason: str) -> None:
        job = self._jobs.pop(request_id, None)
        if job is not None:
            self.engine.abort(request_id)
            self.metrics.ended(job.life, reason, clock())

    def _stop(self) -> None:
        self._stopping = True
        self._end_all("abort")

    def _end_all(self, finish: str) -> None:
        self._deliver([(job.sink, Update(job.choice, [], finish)) for job in self._jobs.values()])
        for request_id in list(self._jobs) if finish == "abort" else ():
            self._abort(request_id, finish)
        self._jobs.clear()

    def _tell_state(self) -> None:
        self.metrics.gauges(*self.engine.scheduler.gauges)

    def _deliver(self, updates: list[tuple[Sink, Update]]) -> None:
        if updates:
            self._loop.call_soon_threadsafe(_deliver, updates)


def _deliver(updates: list[tuple[Sink, Update]]) -> None:
    for sink, update in updates:
        sink(update)
