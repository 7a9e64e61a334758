"""Running requests that decode in step with each other: one count of rounds stands for the counts of all of them."""

from __future__ import annotations

import heapq

from roofline.scheduling.batch import ScheduledBatch
from roofline.scheduling.blocks import Pool
from roofline.scheduling.request import Request


class Cohort:
    """Members get one token in each round until all their tokens are scheduled; rounds cost the same whatever their number.

    What a member has itself, counts and blocks, stands still and is written when it leaves. members: in order of joining, with what
    each had computed then less the rounds until then. rows, context: members that still decode, and their computed tokens in all;
    complete: the others. flying: tokens of each member that are scheduled and not sampled yet.
    """

    def __init__(self, pool: Pool) -> None:
        self.members: dict[Request, int] = {}
        self.complete: list[Request] = []
        self.rows = self.context = self.flying = 0
        self._pool, self._size = pool, pool.block_size
        self._round = 0
        self._ends: list[int] = []
        self._ending: dict[int, list[Request]] = {}
        self._due = [0] * (2 * pool.block_size)  # members that need a block in rounds ≡ i, twice over so that any stretch is a slice

    @property
    def steps(self) -> int:
        """Rounds until the next member is complete; 0 if all are."""
        return self._ends[0] - self._round if self._ends else 0

    def join(self, request: Request) -> bool:
        """Takes in a request that needs one token a step; False if it is not in step with the others or holds blocks in advance."""
        computed, last = request.num_computed_tokens, request.end_tokens - 1
        held = request.num_blocks * self._size
        if (self.members and request.num_output_placeholders != self.flying) or computed + self._size <= held < last:
            return False
        self.flying = request.num_output_placeholders
        self.members[request] = offset = computed - self._round
        if computed == last:
            self.complete.append(request)
            return True
        end = last - offset
        if end in self._ending:
            self._ending[end].append(request)
        else:
            self._ending[end] = [request]
            heapq.heappush(self._ends, end)
        self._count(request, 1)
        self.context += computed
        return True

    def _count(self, request: Request, by: int) -> None:
        self.rows += by
        held = request.num_blocks * self._size
        if held < request.end_tokens - 1:
            at = (held - self.members[request]) % self._size
            self._due[at] += by
            self._due[at + self._size] += by

    def growth(self, rounds: int) -> int:
        """Blocks that the next rounds take, no more of them than `steps`."""
        size, due = self._size, self._due
        first = self._round % size
        if rounds < size:
            return sum(due[first : first + rounds])
        return sum(due[:size]) * (rounds // size) + sum(due[first : first + rounds % size])

    def advance(self, rounds: int) -> bool:
        """All members that still decode get so many tokens, no more than `steps`; False (and nothing changed) if blocks are missing."""
        blocks = self.growth(rounds)
        if blocks > self._pool.num_free:
            return False
        if blocks:
            self._pool.take(blocks)
        self._round += rounds
        self.context += self.rows * rounds
        if self._round == self._ends[0]:
            for request in self._ending.pop(heapq.heappop(self._ends)):
                self._count(request, -1)
                self.context -= request.end_tokens - 1
                self.complete.append(request)
        return True

    def schedule(self, batch: ScheduledBatch) -> None:
        """Puts all members that still decode into an empty batch, or lets all go if blocks are missing."""
        complete, context = self.complete, self.context
        decodes = [request for request in self.members if request not in complete] if complete else list(self.members)
        ending = len(complete)
        if decodes:
            if not self.advance(1):
                self.dissolve()
                return
            self.flying += 1
        batch.decodes, batch.decode_context, batch.num_ending = decodes, context, ending

    def sample(self, batch: ScheduledBatch) -> list[Request]:
        """The outputs of a batch are here, where any member stands for all; returns those who finished."""
        if batch.decodes or any(chunk.request in self.members for chunk in batch.chunks):
            self.flying -= 1
        return self.finished()

    def finished(self) -> list[Request]:
        """Those whose last token is sampled; they leave."""
        done: list[Request] = []
        while self.complete:
            request = self.complete[0]
            offset = self.members[request]
            if request.end_tokens - 1 - offset > self._round - self.flying:
                break
            del self.complete[0], self.members[request]
            self._write(request, offset)
            done.append(request)
        return done

    def dissolve(self) -> None:
        """All leave."""
        if self.members:
            for request, offset in self.members.items():
                self._write(request, offset)
            self.members.clear()
            self._ending.clear()
            self.complete, self._ends, self._due = [], [], [0] * (2 * self._size)
            self.rows = self.context = self.flying = 0

    def _write(self, request: Request, offset: int) -> None:
        computed = min(self._round + offset, request.end_tokens - 1)
        request.num_computed_tokens = computed
        request.num_tokens = self._round + offset + 1 - self.flying
        request.num_output_placeholders = computed + 1 - request.num_tokens
        self._pool.settle(request, computed)
