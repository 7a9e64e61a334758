"""SGLang's policy: prefill before decode and not with it, admission by a ratio of the output still to come, retraction.

Semantics as of SGLang 0.5.23, page size 1; tokens are counted, without slots, so this is for simulation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from roofline.errors import InputError
from roofline.scheduling.batch import Chunk, ScheduledBatch
from roofline.scheduling.radix import Node, RadixPool
from roofline.scheduling.request import Request, Status, ensure

CLIP_MAX_NEW_TOKENS = 4096
RETRACT_DECODE_STEPS = 20
MIN_RATIO_FACTOR = 0.14
RATIO_DECAY_STEPS = 600
INITIAL_RATIO = 0.7


@dataclass(frozen=True)
class SglangConfig:
    """Options by SGLang's names, defaults for devices of 60 … 160 GB.

    chunked_prefill_size: tokens of a prefill batch, the last prompt is cut to fit (None = prompts are never cut).
    max_prefill_tokens: the same for uncut prompts; only the first of a batch may exceed it. ignore_eos: outputs are known to reach
    their length, so admission counts them fully.
    """

    chunked_prefill_size: int | None = 8192
    max_prefill_tokens: int = 16384
    max_running_requests: int = 2048
    schedule_conservativeness: float = 1.0
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        chunk = 1 if self.chunked_prefill_size is None else self.chunked_prefill_size
        if min(chunk, self.max_prefill_tokens, self.max_running_requests) < 1:
            raise InputError("chunked_prefill_size, max_prefill_tokens and max_running_requests must be at least 1")
        if self.schedule_conservativeness <= 0:
            raise InputError(f"schedule_conservativeness {self.schedule_conservativeness} must be above 0")


class SglangScheduler:
    """See Scheduler. A request's KV is a locked node of the tree (its first `num_cached` tokens) and tokens of its own after that."""

    def __init__(self, config: SglangConfig, pool: RadixPool) -> None:
        self.config, self.pool = config, pool
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()
        self.num_preemptions = 0
        self._initial_ratio = min(1.0, INITIAL_RATIO * config.schedule_conservativeness)
        self._ratio = self._initial_ratio
        self._chunked: Request | None = None
        self._prefix: dict[Request, tuple[Node, int]] = {}

    @property
    def num_waiting(self) -> int:
        """See Scheduler."""
        return len(self.waiting) + (self._chunked is not None)

    @property
    def gauges(self) -> tuple[int, int, float]:
        """See Scheduler."""
        return len(self.running), self.num_waiting, 1 - self.pool.available / self.pool.num_tokens

    def why_never(self, request: Request) -> str | None:
        """See Scheduler."""
        most = request.end_tokens
        if most > self.pool.num_tokens:
            return f"{most} tokens and the pool has {self.pool.num_tokens}"
        return None

    def add(self, request: Request) -> None:
        """See Scheduler."""
        reason = self.why_never(request)
        if reason:
            raise InputError(f"request {request.request_id}: {reason}")
        self.waiting.append(request)

    def schedule(self) -> ScheduledBatch:
        """See Scheduler."""
        batch = ScheduledBatch()
        self._prefill(batch)
        if not batch.chunks:
            self._decode(batch)
        return batch

    def _prefill(self, batch: ScheduledBatch) -> None:
        """A prefill batch, if anything waits that can be admitted: the chunked request first, then the queue in order."""
        config = self.config
        budget = config.max_prefill_tokens
        chunk_budget = config.chunked_prefill_size
        reserve = self._reserve(self.running)
        if self._chunked is not None:
            request, self._chunked = self._chunked, None
            new = self._cut(request.num_tokens - request.num_computed_tokens, chunk_budget)
            if not self._compute(request, new, batch):
                self._chunked = request
                return
            budget -= new
            chunk_budget = None if chunk_budget is None else chunk_budget - new
            reserve += self._growth(request)
        while self.waiting and self._chunked is None and budget > 0 and (chunk_budget is None or chunk_budget > 0):
            if len(self.running) + len(batch.chunks) >= config.max_running_requests:
                break
            request = self.waiting[0]
            node, hit = self.pool.match(request, request.num_tokens - 1)
            self.pool.lock(node, 1)
            extend = request.num_tokens - hit
            new = self._cut(extend, chunk_budget)
            idle = not self.running and not batch.chunks
            short = extend + self._growth(request) + 1 > self.pool.available - reserve
            if (short and not idle) or (new > budget and batch.chunks):
                self.pool.lock(node, -1)
                break
            self.waiting.popleft()
            self._prefix[request] = (node, hit)
            request.num_computed_tokens = hit
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = hit
            self._compute(request, new, batch)
            budget -= new
            chunk_budget = None if chunk_budget is None else chunk_budget - new
            reserve += self._growth(request)

    @staticmethod
    def _cut(tokens: int, chunk_budget: int | None) -> int:
        return tokens if chunk_budget is None else min(tokens, chunk_budget)

    def _growth(self, request: Request) -> int:
        return min(request.end_tokens - request.num_tokens, CLIP_MAX_NEW_TOKENS)

    def _reserve(self, requests: list[Request]) -> float:
        """Tokens that running requests are expected to need yet."""
        ratio = 1.0 if self.config.ignore_eos else self._ratio
        return ratio * sum([self._growth(request) for request in requests])

    def _compute(self, request: Request, new: int, batch: ScheduledBatch) -> bool:
        """Gives a request slots for `new` tokens; what does not fit the batch or its chunk is the chunked request of the next."""
        if not self.pool.take(new):
            return False
        past = request.num_computed_tokens
        request.num_computed_tokens = past + new
        request.status = Status.RUNNING
        samples = request.num_computed_tokens == request.num_tokens
        if samples:
            request.num_output_placeholders = 1
            self.running.append(request)
        else:
            self._chunked = request
        batch.chunks.append(Chunk(request, new, past, 0, samples))
        return True

    def _decode(self, batch: ScheduledBatch) -> None:
        """One token for every running request that has none in flight to end it, after retracting as many as memory asks for."""
        rows = self._rows()
        if len(rows) > self.pool.available:
            self._retract(batch)
            rows = self._rows()
        elif rows:
            decay = self._initial_ratio * (1 - MIN_RATIO_FACTOR) / RATIO_DECAY_STEPS
            self._ratio = max(self._ratio - decay, self._initial_ratio * MIN_RATIO_FACTOR)
        self.pool.take(len(rows))
        for request in rows:
            batch.decode_context += request.num_computed_tokens
            request.num_computed_tokens += 1
            request.num_output_placeholders += 1
        batch.decodes = rows
        batch.num_ending = len(self.running) - len(rows)
        batch.full = bool(rows)

    def _rows(self) -> list[Request]:
        return [request for request in self.running if request.num_tokens + request.num_output_placeholders < request.end_tokens]

    def _retract(self, batch: ScheduledBatch) -> None:
        """Sends back those with the fewest output tokens, longest prompt first, until the others can go on for a while."""
        order = sorted(self.running, key=lambda request: (-request.num_output_tokens, request.num_prompt_tokens))
        while len(order) > 1 and (not batch.preempted or self.pool.available < len(order) * RETRACT_DECODE_STEPS):
            victim = order.pop()
            self.running.remove(victim)
            self._send_back(victim, batch)
        if self.pool.available < len(order) and self._chunked is not None:
            self._send_back(self._chunked, batch)
            self._chunked = None
        decoded = sum(request.num_output_tokens for request in order)
        most = sum(request.max_tokens for request in order)
        self._ratio = min(1.0, (decoded + RETRACT_DECODE_STEPS * len(order)) / max(1, most))

    def _send_back(self, victim: Request, batch: ScheduledBatch) -> None:
        self._let_go(victim, keep=False)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = Status.PREEMPTED
        self.num_preemptions += 1
        batch.preempted.append(victim)
        self.waiting.append(victim)

    def _let_go(self, request: Request, *, keep: bool) -> None:
        """Frees a request's KV; keep: into the tree, where others find it."""
        node, had = self._prefix.pop(request)
        if keep and self.pool.caching:
            self.pool.insert(request, request.num_computed_tokens, had)
        else:
            self.pool.free += request.num_computed_tokens - had
        self.pool.lock(node, -1)

    def update(self, batch: ScheduledBatch, emitted: list[int] | None = None, stopped: tuple[Request, ...] = ()) -> list[Request]:
        """See Scheduler. A prompt enters the tree when it is computed, chunk by chunk."""
        del emitted
        for chunk in batch.chunks:
            request = chunk.request
            if self.pool.caching and request in self._prefix:
                node, had = self._prefix[request]
                self._prefix[request] = self.pool.insert(request, chunk.past + chunk.new, had)
                self.pool.lock(self._prefix[request][0], 1)
                self.pool.lock(node, -1)
        done = []
        for request in batch.sampling:
            request.num_output_placeholders -= 1
            request.num_tokens += 1
            if request.num_tokens >= request.end_tokens or request in stopped:
                done.append(request)
        return [request for request in done if self._finish(request)]

    def _finish(self, request: Request) -> bool:
        if request.status is Status.FINISHED:
            return False
        request.end_tokens = request.num_tokens
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._let_go(request, keep=True)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        return True

    def steady_decode(self) -> tuple[int, int, int]:
        """See Scheduler; only with an empty queue, because each decode step changes the ratio that admission goes by."""
        if not self.running or self.num_waiting:
            return 0, 0, 0
        left = min([request.end_tokens - request.num_tokens - request.num_output_placeholders for request in self.running])
        rows, context = len(self.running), sum([request.num_computed_tokens for request in self.running])
        return max(0, min(left, self.pool.available // rows)), rows, context

    def advance(self, steps: int) -> list[Request]:
        """See Scheduler."""
        decay = self._initial_ratio * (1 - MIN_RATIO_FACTOR) / RATIO_DECAY_STEPS
        for _ in range(steps):
            self._ratio = max(self._ratio - decay, self._initial_ratio * MIN_RATIO_FACTOR)
        self.pool.take(steps * len(self.running))
        done = []
        for request in self.running:
            request.num_tokens += steps
            request.num_computed_tokens += steps
            if request.num_tokens >= request.end_tokens:
                done.append(request)
        return [request for request in done if self._finish(request)]

    def check_integrity(self) -> None:
        """See Scheduler."""
        holders = [*self.running, *([self._chunked] if self._chunked else [])]
        ensure(set(holders) == set(self._prefix), "who holds KV and who runs differ")
        self.pool.check_integrity(sum(request.num_computed_tokens - self._prefix[request][1] for request in holders))
        ensure(len(self.running) <= self.config.max_running_requests, "more running requests than max_running_requests")
