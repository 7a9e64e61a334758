"""The policy of vLLM's V1 scheduler: one token budget per step, running requests first, then the queue.

Semantics as of vLLM 0.33.0; the parts that differ in 0.19.0 are options (watermark, whose default there is none).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.errors import InputError
from roofline.scheduling.batch import Chunk, ScheduledBatch
from roofline.scheduling.blocks import Pool
from roofline.scheduling.cohort import Cohort
from roofline.scheduling.queues import FcfsQueue, PriorityQueue, order
from roofline.scheduling.request import Request, Status, ensure
from roofline.scheduling.vllm_config import VllmConfig


class VllmScheduler:
    """See Scheduler. `running` is in order of admission, `waiting` in order of service."""

    def __init__(self, config: VllmConfig, pool: Pool) -> None:
        self.config, self.pool = config, pool
        self.running: list[Request] = []
        self.waiting: FcfsQueue | PriorityQueue = PriorityQueue() if config.policy == "priority" else FcfsQueue()
        self.loading: list[Request] = []
        self.num_preemptions = 0
        self._held: list[Request] = []
        self._lookahead = config.lookahead
        self._beyond_end = config.lookahead - 1  # the last token is sampled and never computed
        self._watermark_blocks = int(config.watermark * pool.num_usable)
        self._arrivals = 0
        self._blocked = False
        self._steady = False
        self._cohort = Cohort(pool)

    @property
    def num_waiting(self) -> int:
        """See Scheduler; those that load remote KV included."""
        return len(self.waiting) + len(self.loading)

    @property
    def gauges(self) -> tuple[int, int, float]:
        """See Scheduler."""
        return len(self.running), len(self.waiting) + len(self.loading), 1 - self.pool.num_free / self.pool.num_usable

    def why_never(self, request: Request) -> str | None:
        """See Scheduler."""
        limit = self.config.max_model_len
        if limit is not None and request.num_prompt_tokens >= limit:
            return f"{request.num_prompt_tokens} prompt tokens leave no room for output within max_model_len {limit}"
        most = (request.end_tokens if limit is None else min(request.end_tokens, limit)) + self._beyond_end
        need = self.pool.blocks_for(most)
        if need > self.pool.num_usable:
            return f"{most} tokens need {need} KV blocks of {self.pool.block_size} tokens and the pool has {self.pool.num_usable}"
        if not self.config.enable_chunked_prefill and most > self.config.max_num_batched_tokens:
            return f"{most} tokens exceed max_num_batched_tokens {self.config.max_num_batched_tokens} and chunked prefill is off"
        return None

    def add(self, request: Request) -> None:
        """See Scheduler."""
        reason = self.why_never(request)
        if reason:
            raise InputError(f"request {request.request_id}: {reason}")
        if self.config.max_model_len is not None:
            request.end_tokens = min(request.end_tokens, self.config.max_model_len)
        self._arrivals += 1
        request.arrival = self._arrivals
        self.waiting.append(request)
        if self.config.policy == "priority" or len(self.waiting) == 1:
            self._blocked = False

    def schedule(self) -> ScheduledBatch:
        """See Scheduler."""
        batch = ScheduledBatch()
        budget = self._schedule_running(batch)
        self._blocked = False
        if self.waiting and not batch.preempted:
            self._admit(batch, budget)
        sampling = len(batch.decodes) + sum([chunk.samples for chunk in batch.chunks]) + batch.num_ending
        self._steady = batch.full = sampling == len(self.running) and not self.config.num_speculative_tokens
        return batch

    def _schedule_running(self, batch: ScheduledBatch) -> int:
        """Phase A; returns the budget that is left. Plain decodes come first, as nearly all rows are; the rest row by row."""
        budget = self.config.max_num_batched_tokens
        index = 0 if self.config.num_speculative_tokens else self._schedule_decodes(batch)
        budget -= len(batch.decodes)
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            index += 1
            if self._completed_in_flight(request):
                batch.num_ending += 1
                continue
            new = request.num_tokens + request.num_spec_tokens + request.num_output_placeholders - request.num_computed_tokens
            if new > 0:
                before = len(self.running)
                budget = self._schedule_one(request, new, batch, budget)
                if request.status is Status.PREEMPTED:
                    break
                index -= self._removed_before(before, request, index)
        return budget

    @staticmethod
    def _completed_in_flight(request: Request) -> bool:
        """Whether the one batch that may be in flight gives the request its last token."""
        flying = request.num_output_placeholders
        return flying > 0 and request.num_computed_tokens + 2 - flying >= request.end_tokens

    def _schedule_decodes(self, batch: ScheduledBatch) -> int:
        """The leading running requests as far as they need one token and no more than free blocks; returns how many were seen."""
        cohort, allocate = self._cohort, self.pool.allocate
        if cohort.members:
            cohort.schedule(batch)
        decodes, context, ending = batch.decodes, batch.decode_context, batch.num_ending
        for request in self.running[len(cohort.members) :]:
            computed, flying = request.num_computed_tokens, request.num_output_placeholders
            if flying and computed + 2 - flying >= request.end_tokens:
                ending += 1
                continue
            if request.num_tokens + flying - computed != 1 or computed < request.num_prompt_tokens:
                break
            if computed >= request.pool_mark and not allocate(request, computed + 1, computed):
                break
            request.num_computed_tokens = computed + 1
            request.num_output_placeholders = flying + 1
            context += computed
            decodes.append(request)
            if cohort.members and not cohort.join(request):
                cohort.dissolve()
        batch.decode_context, batch.num_ending = context, ending
        return len(decodes) + ending

    def _removed_before(self, before: int, request: Request, index: int) -> int:
        """How far the list moved under the loop: only the priority policy takes victims from in front of the requester."""
        if len(self.running) == before or self.config.policy == "fcfs":
            return 0
        return index - 1 - self.running.index(request)

    def _schedule_one(self, request: Request, new: int, batch: ScheduledBatch, budget: int) -> int:
        """Gives one running request its tokens, taking blocks from others if it must; returns the budget that is left."""
        new = min(self._capped(new), budget)
        computed = request.num_computed_tokens
        slots = min(computed + new + self._lookahead, request.end_tokens + self._beyond_end)
        while not self.pool.allocate(request, slots, min(computed + new, request.num_tokens)):
            self._cohort.dissolve()
            victim = self._victim()
            budget += self._unschedule(victim, batch)
            self._preempt(victim)
            batch.preempted.append(victim)
            if victim is request:
                return budget
        if new == 1 and computed >= request.num_prompt_tokens and computed + 1 == request.num_tokens + request.num_output_placeholders:
            self._cohort.dissolve()
            request.num_computed_tokens = computed + 1
            request.num_output_placeholders += 1
            batch.decodes.append(request)
            batch.decode_context += computed
        else:
            self._record(request, new, batch)
        return budget - new - (self.config.draft_slots if request.num_spec_tokens else 0)

    def _capped(self, new: int) -> int:
        threshold = self.config.long_prefill_token_threshold
        return min(new, threshold) if threshold and len(self.running) + len(self.waiting) > 1 else new

    def _record(self, request: Request, new: int, batch: ScheduledBatch) -> None:
        computed = request.num_computed_tokens
        request.num_computed_tokens = computed + new
        ahead = computed + new - request.num_tokens - request.num_output_placeholders
        drafts = ahead if ahead > 0 else 0
        if ahead >= 0:
            request.num_output_placeholders += 1 + drafts
        batch.chunks.append(Chunk(request, new, computed, drafts, ahead >= 0))

    def _victim(self) -> Request:
        if self.config.policy == "fcfs":
            return self.running[-1]
        return max(self.running, key=order)

    def _unschedule(self, victim: Request, batch: ScheduledBatch) -> int:
        """Takes a victim that already has tokens in this batch out of it; returns the tokens given back."""
        if victim in batch.decodes:
            batch.decodes.remove(victim)
            batch.decode_context -= victim.num_computed_tokens - 1
            victim.num_output_placeholders -= 1
            return 1
        for chunk in batch.chunks:
            if chunk.request is victim:
                batch.chunks.remove(chunk)
                victim.num_output_placeholders -= (1 + chunk.drafts) if chunk.samples else 0
                return chunk.new
        return 0

    def _preempt(self, victim: Request) -> None:
        self.running.remove(victim)
        self.pool.release(victim)
        victim.num_computed_tokens = victim.num_spec_tokens = 0
        victim.num_preemptions += 1
        victim.status = Status.PREEMPTED
        self.num_preemptions += 1
        self.waiting.push_front(victim)

    def _admit(self, batch: ScheduledBatch, budget: int) -> None:
        """Phase B: from the head of the queue, which nobody passes when it is short of blocks."""
        config, passed = self.config, []
        while self.waiting and budget > 0 and len(self.running) < config.max_num_seqs:
            request = self.waiting[0]
            if config.long_prompt_tokens and self._throttled(request):
                passed.append(self.waiting.popleft())
                continue
            hits = self.pool.match(request) if request.num_computed_tokens == 0 else ()
            start = self.pool.hit_blocks(hits) * self.pool.block_size if hits else request.num_computed_tokens
            new = self._capped(request.num_tokens - start)
            if request.remote_kv:
                if not self._reserve(request, hits, request.num_tokens):
                    break
                self._load(request, batch)
                continue
            if not config.enable_chunked_prefill and new > budget:
                break
            new = min(new, budget)
            if not self._reserve(request, hits, start + new):
                break
            self.waiting.popleft()
            if request.num_cached_tokens < 0:
                request.num_cached_tokens = start
            request.num_computed_tokens = start
            request.status = Status.RUNNING
            self.running.append(request)
            self._record(request, new, batch)
            budget -= new
        if passed:
            self.waiting.put_back(passed)
        self._blocked = bool(self.waiting) and budget > 0 and config.enable_chunked_prefill

    def _throttled(self, request: Request) -> bool:
        limit = self.config.long_prompt_tokens
        if request.num_prompt_tokens <= limit:
            return False
        busy = sum(other.num_prompt_tokens > limit and other.num_computed_tokens < other.num_prompt_tokens for other in self.running)
        return busy >= self.config.max_long_prompts

    def _reserve(self, request: Request, hits: Sequence[Any], until: int) -> bool:
        """Blocks for the first `until` tokens, if the admission rules allow it."""
        pool = self.pool
        slots = min(until + self._lookahead, request.end_tokens + self._beyond_end)
        whole = max(slots, request.num_tokens) if self.config.reserve_full_isl else slots
        margin = self._watermark_blocks if self.running else 0
        if pool.shortfall(request, hits, whole) + margin > pool.num_free:
            return False
        if hits:
            pool.share(request, hits)
        pool.allocate(request, slots, 0 if request.remote_kv else until)
        return True

    def _load(self, request: Request, batch: ScheduledBatch) -> None:
        self.waiting.popleft()
        request.status = Status.WAITING_FOR_REMOTE_KVS
        self.loading.append(request)
        batch.loading.append(request)

    def kv_arrived(self, request: Request) -> None:
        """The remote KV of a request in `loading` is here: it goes to the front of the queue with its last prompt token to compute."""
        self.loading.remove(request)
        request.remote_kv = False
        request.status = Status.WAITING
        request.num_cached_tokens = request.num_computed_tokens = request.num_tokens - 1
        self.waiting.push_front(request)
        self._blocked = False

    def update(self, batch: ScheduledBatch, emitted: list[int] | None = None, stopped: tuple[Request, ...] = ()) -> list[Request]:
        """See Scheduler."""
        cohort = self._cohort
        if stopped:
            cohort.dissolve()
        done = []
        for at, chunk in enumerate(batch.chunks):
            if chunk.samples and chunk.request not in cohort.members:
                self._take(chunk, 1 if emitted is None else emitted[at])
                if chunk.request.num_tokens >= chunk.request.end_tokens:
                    done.append(chunk.request)
        done = (cohort.sample(batch) if cohort.members else self._sample(batch.decodes)) + done
        if self.config.num_speculative_tokens:
            self._draft(batch)
        for request in stopped:
            if request.num_tokens < request.end_tokens:
                request.end_tokens = request.num_tokens
                done.append(request)
        return [request for request in done if self._finish(request)] if done else done

    @staticmethod
    def _sample(decodes: list[Request]) -> list[Request]:
        done = []
        for request in decodes:
            request.num_output_placeholders -= 1
            request.num_tokens += 1
            if request.num_tokens >= request.end_tokens:
                done.append(request)
        return done

    def _take(self, chunk: Chunk, emitted: int) -> None:
        """`emitted` − 1 of the drafts were right; the others leave the sequence again."""
        request = chunk.request
        request.num_output_placeholders -= 1 + chunk.drafts
        if request.num_computed_tokens:
            request.num_computed_tokens -= chunk.drafts - (emitted - 1)
        request.num_tokens = min(request.num_tokens + emitted, request.end_tokens)

    def _draft(self, batch: ScheduledBatch) -> None:
        for request in batch.decodes + [chunk.request for chunk in batch.chunks if chunk.samples]:
            if request.status is Status.RUNNING:
                left = request.end_tokens - request.num_tokens - 1
                request.num_spec_tokens = max(0, min(self.config.num_speculative_tokens, left))

    def _finish(self, request: Request) -> bool:
        """Lets a request go; False if it had gone already (a row in flight when it stopped)."""
        request.num_tokens = request.end_tokens
        if request.status is Status.FINISHED:
            return False
        if request.status is Status.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)
        request.status = Status.FINISHED
        if request.hold_blocks:
            self._held.append(request)
        else:
            self.pool.release(request)
        self._blocked = False
        return True

    def release(self, request: Request) -> None:
        """Frees the blocks of a finished request with `hold_blocks`."""
        self._held.remove(request)
        self.pool.release(request)
        self._blocked = False

    def steady_decode(self) -> tuple[int, int, int]:
        """See Scheduler. A blocked head stays blocked meanwhile: decoding takes blocks and gives none back."""
        running, cohort = self.running, self._cohort
        if not (self._steady and running) or (self.waiting and not self._blocked):
            return 0, 0, 0
        for request in running[len(cohort.members) :]:
            if not cohort.join(request):
                cohort.dissolve()
                return 0, 0, 0
        steps, rows, free = cohort.steps, cohort.rows, self.pool.num_free
        if cohort.complete and self.waiting:
            return 0, rows, cohort.context
        while steps > 0 and rows * (steps // self.pool.block_size + 1) > free and cohort.growth(steps) > free:
            steps //= 2
        return steps, rows, cohort.context

    def advance(self, steps: int) -> list[Request]:
        """See Scheduler."""
        cohort = self._cohort
        ending = bool(cohort.complete)
        cohort.advance(1 if ending else steps)
        done = cohort.finished()
        for request in done:
            self._finish(request)
        if ending and steps > 1:  # what they held is free after the round that they end in
            cohort.advance(steps - 1)
        return done

    def check_integrity(self) -> None:
        """See Scheduler."""
        self._cohort.dissolve()
        self.pool.check_integrity([*self.running, *self.loading, *self._held])
        ensure(len(self.running) <= self.config.max_num_seqs, "more running requests than max_num_seqs")
        for request in self.running:
            ensure(request.status is Status.RUNNING, request)
            ensure(request.num_computed_tokens <= request.num_tokens + request.num_spec_tokens + request.num_output_placeholders, request)
            held = request.num_blocks * self.pool.block_size
            ensure(held >= request.num_computed_tokens, f"{request} holds {held} slots")
        for request in self.waiting:
            ensure(request.num_blocks == 0 or request.num_computed_tokens > 0, request)
