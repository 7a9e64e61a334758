"""The prefix cache for simulation: the same decisions as BlockPool, kept as runs of blocks instead of single ones.

What a request shares or leaves behind is a few stretches of consecutive blocks, so that allocating, caching, evicting and
releasing thousands of blocks is a handful of operations. No block has an id here; an engine needs BlockPool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from roofline.errors import InputError
from roofline.scheduling.blocks import DEFAULT_BLOCK_SIZE, checked_blocks, settle_count
from roofline.scheduling.content import Segments
from roofline.scheduling.request import Request, ensure


class Run:
    """Blocks first … stop − 1 of the text `identity`, in one state: held by `holders`, or free and linked into the queue."""

    __slots__ = ("after", "before", "first", "holders", "identity", "stop")

    def __init__(self, identity: int, first: int, stop: int) -> None:
        self.identity, self.first, self.stop = identity, first, stop
        self.holders: list[Request] = []
        self.before: Run = self
        self.after: Run = self

    def link(self, before: Run, after: Run) -> None:
        """Into the queue between two others."""
        self.before, self.after = before, after
        before.after = after.before = self

    def unlink(self) -> None:
        """Out of the queue."""
        self.before.after, self.after.before = self.after, self.before
        self.before = self.after = self


class Hit(NamedTuple):
    """Blocks first … stop − 1 are in this run."""

    run: Run
    first: int
    stop: int


class RunPool:
    """A Pool whose hits are a list of Hit. Free blocks without content go first, then the front run of the queue, tail first."""

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE) -> None:
        self.num_usable = self.num_free = self._blank = checked_blocks(num_blocks, block_size)
        self.block_size = block_size
        self._queue = Run(0, 0, 0)
        self._cached: dict[int, list[Run]] = {}
        self._held: dict[Request, list[Run]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """See Pool."""
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> Sequence[Hit]:
        """See Pool; of runs with the same blocks the one that was cached first is hit."""
        hits: list[Hit] = []
        cached = self._cached
        for identity, first, stop in self._spans(request, 0, (request.num_tokens - 1) // self.block_size):
            runs, at = cached.get(identity, ()), first
            while at < stop:
                run = next((run for run in runs if run.first <= at < run.stop), None)
                if run is None:
                    return hits
                hits.append(Hit(run, at, min(self._hidden(runs, run, at), stop)))
                at = hits[-1].stop
        return hits

    @staticmethod
    def _hidden(runs: Sequence[Run], run: Run, at: int) -> int:
        """Where, after `at`, this run ends or one that was cached earlier begins."""
        end = run.stop
        for earlier in runs:
            if earlier is run:
                break
            if at < earlier.first < end:
                end = earlier.first
        return end

    def _spans(self, request: Request, first: int, stop: int) -> list[tuple[int, int, int]]:
        content = request.content
        if not isinstance(content, Segments):
            raise InputError("RunPool needs content told by ids; use BlockPool for tokens")
        return content.spans(first, stop, self.block_size)

    def hit_blocks(self, hits: Sequence[Hit]) -> int:
        """See Pool."""
        return sum([stop - first for _, first, stop in hits])

    def shortfall(self, request: Request, hits: Sequence[Hit], num_tokens: int) -> int:
        """See Pool."""
        held = sum([stop - first for run, first, stop in hits if run.holders])
        return self.blocks_for(num_tokens) - request.num_blocks - held

    def share(self, request: Request, hits: Sequence[Hit]) -> None:
        """See Pool."""
        held = self._held.setdefault(request, [])
        for run, first, stop in hits:
            part = self._cut(run, first, stop)
            if not part.holders:
                part.unlink()
                self.num_free -= stop - first
            part.holders.append(request)
            held.append(part)
            request.num_blocks += stop - first
        request.num_hashed_blocks = request.num_blocks
        request.pool_mark = request.num_blocks * self.block_size

    def _cut(self, run: Run, first: int, stop: int) -> Run:
        """The part first … stop − 1 of a run, split off on both sides as far as needed."""
        if stop < run.stop:
            self._split(run, stop)
        return self._split(run, first) if first > run.first else run

    def _split(self, run: Run, at: int) -> Run:
        """Makes the blocks from `at` on a run of their own, in the same state, and returns it. In the queue the tail goes first."""
        tail = Run(run.identity, at, run.stop)
        run.stop = at
        siblings = self._cached[run.identity]
        siblings.insert(siblings.index(run) + 1, tail)
        if run.holders:
            tail.holders = list(run.holders)
            for holder in run.holders:
                runs = self._held[holder]
                runs.insert(runs.index(run) + 1, tail)
        else:
            tail.link(run.before, run)
        return tail

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """See Pool."""
        need = -(-num_slots // self.block_size) - request.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            request.num_blocks += need
            request.pool_mark = request.num_blocks * self.block_size
            self.take(need)
        full = min(num_known, request.num_prompt_tokens) // self.block_size
        if full > request.num_hashed_blocks:
            self._cache(request, full)
        return True

    def settle(self, request: Request, num_slots: int) -> None:
        """See Pool."""
        settle_count(request, num_slots, self.block_size)

    def take(self, num_blocks: int) -> None:
        """See Pool; evicts from the queue when the blank ones are used up."""
        self.num_free -= num_blocks
        self._blank -= num_blocks
        while self._blank < 0:
            run = self._queue.after
            evicted = min(run.stop - run.first, -self._blank)
            run.stop -= evicted
            self._blank += evicted
            if run.stop == run.first:
                run.unlink()
                self._drop(run)

    def _drop(self, run: Run) -> None:
        siblings = self._cached[run.identity]
        siblings.remove(run)
        if not siblings:
            del self._cached[run.identity]

    def _cache(self, request: Request, full: int) -> None:
        """Makes the first `full` blocks of the request hit-able."""
        held = self._held.setdefault(request, [])
        for identity, first, stop in self._spans(request, request.num_hashed_blocks, full):
            run = Run(identity, first, stop)
            run.holders.append(request)
            self._cached.setdefault(identity, []).append(run)
            held.append(run)
        request.num_hashed_blocks = full

    def release(self, request: Request) -> None:
        """See Pool."""
        full = min(request.num_computed_tokens, request.num_tokens) // self.block_size
        if full > request.num_hashed_blocks and not request.remote_kv:
            self._cache(request, full)
        blank = request.num_blocks - request.num_hashed_blocks
        self._blank += blank
        self.num_free += blank
        for run in reversed(self._held.pop(request, [])):
            run.holders.remove(request)
            if not run.holders:
                run.link(self._queue.before, self._queue)
                self.num_free += run.stop - run.first
        request.num_blocks = request.num_hashed_blocks = request.pool_mark = 0

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """See Pool; also that runs are in one state and where they belong."""
        holders = list(holders)
        held = {id(run): run for request in holders for run in self._held.get(request, ())}
        ensure(all(request in holders for request in self._held), "a request that is gone holds runs")
        queued, run = 0, self._queue.after
        while run is not self._queue:
            ensure(not run.holders and run.stop > run.first and run.after.before is run, "the queue is broken")
            queued, run = queued + run.stop - run.first, run.after
        ensure(self.num_free == self._blank + queued, f"{self.num_free} free, {self._blank} blank, {queued} in the queue")
        blank = sum(request.num_blocks - request.num_hashed_blocks for request in holders)
        ensure(self.num_free + blank + sum(run.stop - run.first for run in held.values()) == self.num_usable, "a block is lost")
