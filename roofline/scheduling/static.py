"""Static batching, for contrast: a batch is formed, runs until its longest member ends, and only then comes the next."""

from __future__ import annotations

from collections import deque

from roofline.errors import InputError
from roofline.scheduling.batch import Chunk, ScheduledBatch
from roofline.scheduling.request import Request, Status, ensure


class StaticScheduler:
    """See Scheduler. Up to `batch_size` requests start together and each reserves `reserve_tokens` of `num_tokens` KV slots.

    Prompts are computed in one step, unpadded. A member that has ended keeps its row and its KV until all have: the row is
    computed all the same, as libraries without continuous batching do.
    """

    def __init__(self, batch_size: int, num_tokens: int, reserve_tokens: int) -> None:
        if batch_size < 1 or reserve_tokens < 1 or num_tokens < reserve_tokens:
            raise InputError(f"batches of {batch_size}, {reserve_tokens} of {num_tokens} KV slots reserved per request: not even one fits")
        self.batch_size = min(batch_size, num_tokens // reserve_tokens)
        self._num_tokens, self._reserve = num_tokens, reserve_tokens
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self._members: list[Request] = []
        self._in_flight = False

    @property
    def num_waiting(self) -> int:
        """See Scheduler."""
        return len(self.waiting)

    @property
    def gauges(self) -> tuple[int, int, float]:
        """See Scheduler; KV that is reserved counts as used."""
        return len(self.running), self.num_waiting, len(self._members) * self._reserve / self._num_tokens

    def why_never(self, request: Request) -> str | None:
        """See Scheduler."""
        if request.end_tokens > self._reserve:
            return f"{request.end_tokens} tokens and {self._reserve} are reserved per request"
        return None

    def add(self, request: Request) -> None:
        """See Scheduler."""
        reason = self.why_never(request)
        if reason:
            raise InputError(f"request {request.request_id}: {reason}")
        self.waiting.append(request)

    def schedule(self) -> ScheduledBatch:
        """See Scheduler; empty while a batch is in flight."""
        batch = ScheduledBatch()
        if self._in_flight:
            return batch
        if not self.running:
            self._members = [self.waiting.popleft() for _ in range(min(self.batch_size, len(self.waiting)))]
            self.running = list(self._members)
            for request in self._members:
                request.status, request.num_cached_tokens = Status.RUNNING, 0
                request.num_computed_tokens = request.num_prompt_tokens
                batch.chunks.append(Chunk(request, request.num_prompt_tokens, 0, 0, True))
        else:
            batch.decodes = list(self.running)
            batch.num_padding = len(self._members) - len(self.running)
            batch.decode_context = sum(request.num_computed_tokens for request in self._members)
            for request in self._members:
                request.num_computed_tokens += 1
        self._in_flight = bool(batch)
        return batch

    def update(self, batch: ScheduledBatch, emitted: list[int] | None = None, stopped: tuple[Request, ...] = ()) -> list[Request]:
        """See Scheduler."""
        del emitted
        self._in_flight = False
        done = []
        for request in batch.sampling:
            request.num_tokens += 1
            if request.num_tokens >= request.end_tokens or request in stopped:
                request.status = Status.FINISHED
                self.running.remove(request)
                done.append(request)
        if not self.running:
            self._members = []
        return done

    def steady_decode(self) -> tuple[int, int, int]:
        """See Scheduler: rows of members that have ended make it never plain."""
        return 0, 0, 0

    def advance(self, steps: int) -> list[Request]:
        """See Scheduler."""
        raise NotImplementedError(f"static batching has no steady stretches to advance {steps} steps in")

    def check_integrity(self) -> None:
        """See Scheduler."""
        ensure(len(self._members) <= self.batch_size, "more members than the batch may have")
        ensure(set(self.running) <= set(self._members), "a running request is not in the batch")
