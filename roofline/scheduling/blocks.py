"""Paged KV memory: pools of fixed-size blocks, one that only counts and one with tables, sharing and a prefix cache."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Protocol

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

    def match(self, request: Request) -> Sequence[int]:
        """Blocks that already hold the beginning of the request; at least its last token stays to be computed."""

    def shortfall(self, request: Request, hits: Sequence[int], num_tokens: int) -> int:
        """Free blocks that holding `num_tokens` of the request takes, given its hits (a hit that nobody holds takes one too)."""

    def share(self, request: Request, hits: Sequence[int]) -> None:
        """Gives the request, which has no blocks yet, the blocks of its hits."""

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """Blocks for the first `num_slots` positions; False (and nothing changed) if they are not there.

        num_known: how many of the tokens are computed after the step and certain; full blocks of them can be hit from now on.
        """

    def release(self, request: Request) -> None:
        """Takes all blocks back."""

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """Raises AssertionError unless the blocks of the holders and the free ones are all blocks."""


def _checked(num_blocks: int, block_size: int) -> int:
    if num_blocks < 2 or block_size < 1:
        raise InputError(f"{num_blocks} KV blocks of {block_size} tokens: a pool needs at least 2 blocks (one is the null block)")
    return num_blocks - 1


class CountingPool:
    """Blocks as a number: no tables, no prefix cache. One of num_blocks is the null block.

    reserve_tokens: least that each request gets at once, as engines did before paging (0 = paged).
    """

    def __init__(self, num_blocks: int, block_size: int = DEFAULT_BLOCK_SIZE, *, reserve_tokens: int = 0) -> None:
        self.num_usable = self.num_free = _checked(num_blocks, block_size)
        self.block_size, self.reserve_tokens = block_size, reserve_tokens

    def blocks_for(self, num_tokens: int) -> int:
        """See Pool."""
        return -(-max(num_tokens, self.reserve_tokens) // self.block_size)

    def match(self, request: Request) -> Sequence[int]:
        """Nothing is cached."""
        return ()

    def shortfall(self, request: Request, hits: Sequence[int], num_tokens: int) -> int:
        """All blocks that the request does not hold yet."""
        return self.blocks_for(num_tokens) - request.num_blocks

    def share(self, request: Request, hits: Sequence[int]) -> None:
        """Nothing to share."""

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """See Pool."""
        need = self.blocks_for(num_slots) - request.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            self.num_free -= need
            request.num_blocks += need
            request.pool_mark = request.num_blocks * self.block_size
        return True

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
        self.num_usable = self.num_free = _checked(num_blocks, block_size)
        self.block_size, self.prefix_caching = block_size, prefix_caching
        self._queue: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._references = [0] * num_blocks
        self._keys: list[int | None] = [None] * num_blocks
        self._first: dict[int, int] = {}
        self._others: dict[int, list[int]] = {}

    def blocks_for(self, num_tokens: int) -> int:
        """See Pool."""
        return -(-num_tokens // self.block_size)

    def match(self, request: Request) -> Sequence[int]:
        """See Pool. Hits are whole blocks, up to the first miss."""
        if not self.prefix_caching:
            return ()
        lookup = self._first.get
        hits: list[int] = []
        for key in request.content.keys(0, (request.num_tokens - 1) // self.block_size, self.block_size):
            block = lookup(key)
            if block is None:
                break
            hits.append(block)
        return hits

    def shortfall(self, request: Request, hits: Sequence[int], num_tokens: int) -> int:
        """See Pool."""
        references = self._references
        need = -(-num_tokens // self.block_size) - request.num_blocks - len(hits)
        return need + sum(not references[block] for block in hits)

    def share(self, request: Request, hits: Sequence[int]) -> None:
        """See Pool."""
        references, queue = self._references, self._queue
        for block in hits:
            if not references[block]:
                del queue[block]
            references[block] += 1
        self.num_free = len(queue)
        request.block_ids = list(hits)
        request.num_blocks = request.num_hashed_blocks = len(hits)
        self._mark(request)

    def allocate(self, request: Request, num_slots: int, num_known: int) -> bool:
        """See Pool."""
        need = -(-num_slots // self.block_size) - request.num_blocks
        if need > self.num_free:
            return False
        if need > 0:
            self._hand_out(request, need)
        if self.prefix_caching:
            full = num_known // self.block_size
            if full > request.num_hashed_blocks:
                self._register(request, full)
        self._mark(request)
        return True

    def _hand_out(self, request: Request, need: int) -> None:
        pop, keys, references, table = self._queue.popitem, self._keys, self._references, request.block_ids
        for _ in range(need):
            block = pop(last=False)[0]
            key = keys[block]
            if key is not None:
                self._forget(block, key)
            references[block] = 1
            table.append(block)
        self.num_free -= need
        request.num_blocks += need

    def _register(self, request: Request, full: int) -> None:
        keys, first, done = self._keys, self._first, request.num_hashed_blocks
        for block, key in zip(request.block_ids[done:full], request.content.keys(done, full, self.block_size), strict=True):
            keys[block] = key
            if first.setdefault(key, block) != block:
                self._others.setdefault(key, []).append(block)
        request.num_hashed_blocks = full

    def _forget(self, block: int, key: int) -> None:
        self._keys[block] = None
        if key in self._others:
            others = self._others[key]
            if self._first[key] == block:
                self._first[key] = others.pop(0)
            else:
                others.remove(block)
            if not others:
                del self._others[key]
        else:
            del self._first[key]

    def _mark(self, request: Request) -> None:
        capacity = request.num_blocks * self.block_size
        if self.prefix_caching:
            capacity = min(capacity, (request.num_hashed_blocks + 1) * self.block_size - 1)
        request.pool_mark = capacity

    def release(self, request: Request) -> None:
        """See Pool."""
        references, keys, queue = self._references, self._keys, self._queue
        for block in reversed(request.block_ids):
            references[block] -= 1
            if not references[block]:
                queue[block] = None
                if keys[block] is None:
                    queue.move_to_end(block, last=False)
        self.num_free = len(queue)
        request.block_ids = []
        request.num_blocks = request.num_hashed_blocks = request.pool_mark = 0

    def check_integrity(self, holders: Iterable[Request]) -> None:
        """See Pool; also that no block is free and held, that counts of holders are right and that keys point back."""
        held = Counter(block for request in holders for block in request.block_ids)
        ensure(all(self._references[block] == held.get(block, 0) for block in range(len(self._keys))), "reference counts")
        ensure(self.num_free == len(self._queue) and not held.keys() & self._queue.keys(), "a block is free and held")
        ensure(len(held) + len(self._queue) == self.num_usable and 0 not in held, "a block is lost")
        listed = {block: key for key, block in self._first.items()} | {b: key for key, blocks in self._others.items() for b in blocks}
        ensure(listed == {block: key for block, key in enumerate(self._keys) if key is not None}, "keys and blocks disagree")
