"""SGLang's radix cache, counted in tokens: a tree of stretches of text, locked by those who use them, evicted from the leaves.

Pages are of one token. No slots have ids here: the tree says how many tokens a prefix saves and how many are free.
"""

from __future__ import annotations

import heapq
from itertools import count

from roofline.errors import InputError
from roofline.scheduling.content import Segments
from roofline.scheduling.request import Request, ensure

Span = tuple[int, int, int]


class Node:
    """Tokens first … stop − 1 of the text `identity`, after its parent's; locks: requests that use them; used: last access."""

    __slots__ = ("children", "first", "identity", "locks", "offered", "parent", "stop", "used")

    def __init__(self, parent: Node | None, identity: int, first: int, stop: int) -> None:
        self.parent, self.identity, self.first, self.stop = parent, identity, first, stop
        self.children: dict[tuple[int, int], Node] = {}
        self.locks = self.used = 0
        self.offered = False

    def __len__(self) -> int:
        return self.stop - self.first


class RadixPool:
    """KV for `num_tokens` tokens: `free` ones, those in the tree (`evictable` if nobody locks them), and those outside it.

    caching off: nothing is kept.
    """

    def __init__(self, num_tokens: int, *, caching: bool = True) -> None:
        if num_tokens < 1:
            raise InputError(f"a KV pool of {num_tokens} tokens: at least 1")
        self.num_tokens = self.free = num_tokens
        self.caching = caching
        self.evictable = 0
        self._root = Node(None, 0, 0, 0)
        self._clock = count(1)
        self._leaves: list[tuple[int, int, Node]] = []
        self._order = count()

    @property
    def available(self) -> int:
        """Tokens that can be had now, by eviction if need be."""
        return self.free + self.evictable

    def match(self, request: Request, upto: int) -> tuple[Node, int]:
        """The node that ends the longest cached prefix of the first `upto` tokens, and its length; nodes are split to fit."""
        node, matched = self._root, 0
        if not self.caching:
            return node, 0
        for identity, first, stop in _spans(request, upto):
            at = first
            while at < stop:
                child = node.children.get((identity, at))
                if child is None:
                    return node, matched
                if child.stop > stop:
                    child = self._split(child, stop)
                child.used = next(self._clock)
                matched += len(child)
                at, node = child.stop, child
        return node, matched

    def _offer(self, node: Node) -> None:
        """Into the heap of leaves, once; its place is corrected when it comes to the top."""
        if node is not self._root and not node.offered:
            node.offered = True
            heapq.heappush(self._leaves, (node.used, next(self._order), node))

    def _split(self, node: Node, at: int) -> Node:
        """Cuts a node; returns the head, which is new and becomes the tail's parent."""
        parent = node.parent
        assert parent is not None  # noqa: S101 - the root is empty and never split
        head = Node(parent, node.identity, node.first, at)
        head.locks, head.used = node.locks, node.used
        parent.children[(node.identity, node.first)] = head
        node.first, node.parent = at, head
        head.children[(node.identity, at)] = node
        return head

    def lock(self, node: Node, by: int) -> None:
        """Adds `by` (1 or −1) users to a node and all above it."""
        walk: Node | None = node
        while walk is not None and walk is not self._root:
            if by > 0 and not walk.locks:
                self.evictable -= len(walk)
            walk.locks += by
            if not walk.locks:
                self.evictable += len(walk)
                if not walk.children:
                    self._offer(walk)
            walk = walk.parent

    def take(self, tokens: int) -> bool:
        """Takes free tokens, evicting the least recently used leaves as far as needed; False if there are not so many."""
        if tokens > self.available:
            return False
        while self.free < tokens:
            used, _, node = heapq.heappop(self._leaves)
            node.offered = False
            if node.locks or node.children:
                continue
            if node.used == used:
                self._evict(node)
            else:
                self._offer(node)
        self.free -= tokens
        return True

    def _evict(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None  # noqa: S101 - the caller has looked
        del parent.children[(node.identity, node.first)]
        self.free += len(node)
        self.evictable -= len(node)
        if not parent.children and not parent.locks:
            self._offer(parent)

    def insert(self, request: Request, upto: int, had: int) -> tuple[Node, int]:
        """Puts the first `upto` tokens into the tree, of which the request holds those from `had` on outside it.

        Tokens that are in the tree already are given back. Returns the node that ends them, unlocked, and their number.
        """
        node, matched = self.match(request, upto)
        self.free += max(0, matched - had)
        new = upto - matched
        if new:
            for identity, first, stop in _spans(request, upto):
                if stop > matched:
                    child = Node(node, identity, max(first, matched), stop)
                    node.children[(identity, child.first)] = child
                    child.used = next(self._clock)
                    self.evictable += len(child)
                    node = child
            self._offer(node)
        return node, upto

    def check_integrity(self, outside: int) -> None:
        """outside: tokens that requests hold beyond the tree. Raises AssertionError if tokens are lost."""
        inside = unlocked = 0
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            inside += len(node)
            unlocked += 0 if node.locks else len(node)
            ensure(all(child.locks <= node.locks for child in node.children.values()), "a child is locked more often than its parent")
            stack += node.children.values()
        ensure(unlocked == self.evictable, f"{unlocked} evictable tokens in the tree, {self.evictable} counted")
        ensure(self.free + inside + outside == self.num_tokens, f"{self.free} free + {inside} cached + {outside} held ≠ {self.num_tokens}")


def _spans(request: Request, upto: int) -> list[Span]:
    content = request.content
    if not isinstance(content, Segments):
        raise InputError("the radix cache needs content told by ids")
    return content.spans(0, upto, 1)
