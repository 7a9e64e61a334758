"""What a request says, as far as the prefix cache must know it: keys of its full blocks, chained from the first one.

Two requests that begin alike have equal keys for the blocks that they share and different ones from there on. A simulated
request tells its content by ids, one that runs on an engine by its tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Protocol

_INDEX_BITS = 32


class Content(Protocol):
    """Gives the keys of full blocks."""

    def keys(self, first: int, stop: int, block_size: int) -> list[int]:
        """Keys of the blocks first … stop − 1 of `block_size` tokens; equal keys mean equal tokens from position 0 on."""


class Segments:
    """Content told by ids: position p belongs to the first segment (end, id) with p < end, and from the last end on to `own`.

    An id stands for the text at *these positions after this beginning*: whoever gives two requests the same id says that
    they are equal up to there. The text that a request generates has the id `own`, which no other request may generate.
    """

    __slots__ = ("_segments", "own")

    def __init__(self, own: int, segments: Sequence[tuple[int, int]] = ()) -> None:
        self.own, self._segments = own, segments

    def spans(self, first: int, stop: int, block_size: int) -> list[tuple[int, int, int]]:
        """(id, first, stop) of each id among the blocks first … stop − 1.

        A block belongs to the segment of its last token, so one that straddles two counts as the later one's.
        """
        spans = []
        for end, identity in self._segments:
            until = min(end // block_size, stop)
            if until > first:
                spans.append((identity, first, until))
                first = until
        if stop > first:
            spans.append((self.own, first, stop))
        return spans

    def keys(self, first: int, stop: int, block_size: int) -> list[int]:
        """See Content."""
        keys: list[int] = []
        for identity, begin, end in self.spans(first, stop, block_size):
            base = identity << _INDEX_BITS
            keys += range(base + begin, base + end)
        return keys


class TokenContent:
    """Content told by tokens: h(i) = H(h(i − 1), tokens of block i); `extra` (LoRA, cache salt) enters before the first block."""

    def __init__(self, tokens: Iterable[int], extra: str = "") -> None:
        self.tokens = list(tokens)
        self._digests: dict[int, list[bytes]] = {}
        self._root = hashlib.blake2b(extra.encode(), digest_size=16).digest()

    def keys(self, first: int, stop: int, block_size: int) -> list[int]:
        """The tokens of these blocks must be there already."""
        digests = self._digests.setdefault(block_size, [])
        while len(digests) < stop:
            at = len(digests) * block_size
            parent = digests[-1] if digests else self._root
            text = ",".join(map(str, self.tokens[at : at + block_size])).encode()
            digests.append(hashlib.blake2b(parent + text, digest_size=16).digest())
        return [int.from_bytes(digest, "big") for digest in digests[first:stop]]
