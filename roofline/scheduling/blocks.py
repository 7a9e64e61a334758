"""Paged KV memory: pools of fixed-size blocks, one that only counts and one with tables, sharing and a prefix cache."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from roofline.errors import InputError
from roofline.scheduling.request import Request, ensure

DEFAULT_BLOCK_SIZE = 16


class Pool(Protocol):
    """Memory for KV in blocks of `block_size` tokens; `num_free` blocks can be handed out now, `num_usable` exist."""

    block_size: int
    num_free: int
    num_usable: int

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks of a sequence of `num_tokens`."""

    def match(self, request: Request) -> Sequence[Any]:
        """Blocks that already hold the beginning of the request; at least its last token stays to be computed."""

    def hit_blocks(self, hits: Sequence[Any]) -> int:
        """How many blocks these hits are."""

    def shortfall(self, request: Request, hits: Sequence[Any], num_tokens: int) -> int:
        """Free blocks that holding `num_tokens` of the request takes, given its hits (a hit that nobody holds takes one too)."""

    def share(self, request: Request, hits: Sequence[Any]) -> None:
        """Gives the request, which has no blocks yet, the blocks of its hits."""

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """Blocks for the first `num_slots` positions; False (and nothing changed) if they are not there.

        num_known: how many of the tokens are computed after the step and certain; full blocks of the prompt among them can be hit
        from now on. Blocks with generated tokens can be hit once the request lets go of them: nobody can know their text before.
        """

    def take(self, num_blocks: int) -> None:
        """Hands out so many blocks, which must be there, to requests that grow together; `settle` says who got them."""

    def settle(self, request: Request, num_slots: int) -> None:
        """Gives a request what it is short of for its first `num_slots` positions, of the blocks that were taken."""

    def release(self, request: Request) -> None:
        """Takes all blocks back."""

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """Raises AssertionError unless the blocks of the holders and the free ones are all blocks."""


def checked_blocks(num_blocks: int, block_size: int) -> int:
    """Usable blocks of a pool. Raises InputError where there are none."""
    if num_blocks < 2 or block_size < 1:
        raise InputError(f"{num_blocks} KV blocks of {block_size} tokens: a pool needs at least 2 blocks (one is the null block)")
    return num_blocks - 1


def settle_count(request: Request, num_slots: int, block_size: int) -> None:
    """`Pool.settle` where blocks have no ids."""
    blocks = -(-num_slots // block_size)
    if blocks > request.num_blocks:
        request.num_blocks, request.pool_mark = blocks, blocks * block_size


class CountingPool:
    """Blocks as a number: no tables, no prefix cache. One of num_blocks is the null block.

    reserve_tokens: least that each request gets at once, as engines did before paging (0 = paged).
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, *, reserve_tokens: int = 0) -> None:
        self.num_usable = self.num_free = checked_blocks(num_blocks, block_size)
        self.block_size, self.reserve_tokens = block_size, reserve_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """See Pool."""
        return -(-max(num_tokens, self.reserve_tokens) // self.block_size)

    def match(self, request: Request) -> Sequence[Any]:
        """Nothing is cached."""
        return ()

    def hit_blocks(self, hits: Sequence[Any]) -> int:
        """See Pool."""
        return len(hits)

    def shortfall(self, request: Request, hits: Sequence[int], num_tokens: int) -> int:
        """All blocks that the request does not hold yet."""
        return self.blocks_for(num_tokens) - request.num_blocks

    def share(self, request: Request, hits: Sequence[int]) -> None:
        """Nothing to share."""

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """See Pool."""
        if num_slots <= request.pool_mark:
            return True
        need = -(-max(num_slots, self.reserve_tokens) // self.block_size) - request.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            self.num_free -= need
            request.num_blocks += need
            request.pool_mark = request.num_blocks * self.block_size
        return True

    def take(self, num_blocks: int) -> None:
        """See Pool."""
        self.num_free -= num_blocks

    def settle(self, request: Request, num_slots: int) -> None:
        """See Pool."""
        settle_count(request, num_slots, self.block_size)

    def release(self, request: Request) -> None:
        """See Pool."""
        self.num_free += request.num_blocks
        request.num_blocks = request.pool_mark = 0

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """See Pool."""
        held = sum(request.num_blocks for request in holders)
        ensure(held + self.num_free == self.num_usable, f"{held} held + {self.num_free} free blocks of {self.num_usable}")


class BlockPool:
    """Blocks with ids, tables and, unless `prefix_caching` is off, sharing by content.

    A released block keeps its content until it is handed out again. Free blocks queue in the order in which they go: one
    without a key in front, one with a key at the end, the tail of a sequence before its head. Block 0 is never handed out.
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, *, prefix_caching: bool = True) -> None:
        self.num_usable = self.num_free = checked_blocks(num_blocks, block_size)
        self.block_size, self.prefix_caching = block_size, prefix_caching
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._sharers: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        self._first: dict[int, int] = {}
        self._others: dict[int, list[int]] = {}
        self._taken: list[int] = []

    def blocks_for(self, num_tokens: int) -> int:
        """See Pool."""
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> Sequence[int]:
        """See Pool. Hits are whole blocks, up to the first miss."""
        if not self.prefix_caching:
            return ()
        hits: list[int] = []
        lookup, size = self._first.get, self.block_size
        limit, at = (request.num_tokens - 1) // size, 0
        while at < limit:
            upto = min(limit, 2 * at + 1)
            for key in request.content.keys(at, upto, size):
                block = lookup(key)
                if block is None:
                    return hits
                hits.append(block)
            at = upto
        return hits

    def hit_blocks(self, hits: Sequence[int]) -> int:
        """See Pool."""
        return len(hits)

    def shortfall(self, request: Request, hits: Sequence[int], num_tokens: int) -> int:
        """See Pool."""
        queue = self._queue
        return self.blocks_for(num_tokens) - request.num_blocks - len(hits) + sum([block in queue for block in hits])

    def share(self, request: Request, hits: Sequence[int]) -> None:
        """See Pool."""
        sharers, queue = self._sharers, self._queue
        for block in hits:
            if block in queue:
                del queue[block]
            else:
                sharers[block] = sharers.get(block, 1) + 1
        self.num_free = len(queue)
        request.block_ids = list(hits)
        request.num_blocks = request.num_hashed_blocks = len(hits)

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """See Pool."""
        need = -(-num_slots // self.block_size) - request.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            self._give(request, self._unqueue(need))
        if self.prefix_caching:
            self._register(request, min(num_known, request.num_prompt_tokens) // self.block_size)
        return True

    def take(self, num_blocks: int) -> None:
        """See Pool."""
        self._taken += self._unqueue(num_blocks)

    def settle(self, request: Request, num_slots: int) -> None:
        """See Pool."""
        need = self.blocks_for(num_slots) - request.num_blocks
        if need > 0:
            self._give(request, self._taken[:need])
            del self._taken[:need]

    def _unqueue(self, need: int) -> list[int]:
        """The next blocks to go, their content forgotten."""
        queue, forget = self._queue, self._keys.pop
        blocks = list(islice(queue, need))
        for block in blocks:
            del queue[block]
            key = forget(block, None)
            if key is not None:
                if self._others:
                    self._forget(block, key)
                else:
                    del self._first[key]
        self.num_free -= need
        return blocks

    def _give(self, request: Request, blocks: list[int]) -> None:
        request.block_ids += blocks
        request.num_blocks += len(blocks)
        request.pool_mark = request.num_blocks * self.block_size

    def _register(self, request: Request, full: int) -> None:
        """Makes the first `full` blocks of the request hit-able."""
        done = request.num_hashed_blocks
        if full <= done:
            return
        blocks, keys = request.block_ids[done:full], request.content.keys(done, full, self.block_size)
        self._keys.update(zip(blocks, keys, strict=True))
        if self._first.keys().isdisjoint(keys):
            self._first.update(zip(keys, blocks, strict=True))
        else:
            for block, key in zip(blocks, keys, strict=True):
                if self._first.setdefault(key, block) != block:
                    self._others.setdefault(key, []).append(block)
        request.num_hashed_blocks = full

    def _forget(self, block: int, key: int) -> None:
        """Takes a block off the lookup; the next one with the same content, if any, takes its place."""
        others = self._others.get(key)
        if others is None:
            del self._first[key]
            return
        if self._first[key] == block:
            self._first[key] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[key]

    def release(self, request: Request) -> None:
        """See Pool."""
        if self.prefix_caching and not request.remote_kv:
            self._register(request, min(request.num_computed_tokens, request.num_tokens) // self.block_size)
        queue, hashed = self._queue, request.num_hashed_blocks
        for block in self._no_longer_shared(request.block_ids[hashed:]):
            queue[block] = None
            queue.move_to_end(block, last=False)
        for block in self._no_longer_shared(request.block_ids[:hashed]):
            queue[block] = None
        self.num_free = len(queue)
        request.block_ids = []
        request.num_blocks = request.num_hashed_blocks = request.pool_mark = 0

    def _no_longer_shared(self, blocks: list[int]) -> list[int]:
        """Those that only one request held, in reverse order; the others lose one sharer."""
        blocks.reverse()
        sharers = self._sharers
        if not sharers:
            return blocks
        alone = [block for block in blocks if block not in sharers]
        for block in blocks:
            if block in sharers:
                sharers[block] -= 1
                if sharers[block] == 1:
                    del sharers[block]
        return alone

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """See Pool; also that no block is free and held, that counts of holders are right and that keys point back."""
        held = Counter(block for request in holders for block in request.block_ids)
        ensure({block: count for block, count in held.items() if count > 1} == self._sharers, "counts of sharers")
        ensure(self.num_free == len(self._queue) and not held.keys() & self._queue.keys(), "a block is free and held")
        ensure(len(held) + len(self._queue) == self.num_usable and 0 not in held, "a block is lost")
        listed = {block: key for key, block in self._first.items()} | {b: key for key, blocks in self._others.items() for b in blocks}
        ensure(listed == self._keys, "keys and blocks disagree")
