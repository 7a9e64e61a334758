"""Cold operands: how many sets must rotate so that none is still in a cache when it comes back, and where they lie."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

FACTOR = {"cpu": 4, "cuda": 5}  # times the last-level cache, within which no operand may come back
MOST_SETS = 4096
BLOCK = 2**22  # random elements that are drawn; the rest of an arena repeats them at other addresses


def ring_length(kind: str, cache_bytes: float, set_bytes: float) -> int:
    """Sets of operands for a cold case: ⌈factor · last-level cache / bytes of one set⌉ + 1, at most MOST_SETS."""
    return min(MOST_SETS, math.ceil(FACTOR[kind] * cache_bytes / max(set_bytes, 1.0)) + 1)


def is_cold(kind: str, cache_bytes: float, set_bytes: float, sets: int) -> bool:
    """Whether a ring of that many sets passes factor × the cache between two uses of one set."""
    return (sets - 1) * set_bytes >= FACTOR[kind] * cache_bytes


@dataclass
class Arena:
    """Random normal numbers of one type in one allocation, handed out as views that walk through it and around again.

    One draw for all cases: filling gigabytes afresh for each would take longer than timing them. Never zeros: a device draws
    less power on them and clocks higher.
    """

    device: str
    dtype: torch.dtype
    elements: int
    seed: int = 0
    _data: torch.Tensor | None = None
    _drawn: int = field(default=0)
    _at: int = field(default=0)
    filling_s: float = field(default=0.0)

    def take(self, *shape: int) -> torch.Tensor:
        """A contiguous tensor of that shape that shares memory with no other until the arena has been walked through once."""
        size = math.prod(shape)
        if self._data is None or size > self._data.numel():
            self.elements, self._drawn, self._at = max(self.elements, size), 0, 0
            self._data = None  # free the old one before the new one is made
            self._data = torch.empty(self.elements, dtype=self.dtype, device=self.device)
        if self._at + size > self._data.numel():
            self._at = 0
        start, self._at = self._at, self._at + math.ceil(size / 64) * 64  # views stay aligned
        self._fill(self._data, start + size)
        return self._data[start : start + size].view(shape)

    def _fill(self, data: torch.Tensor, end: int) -> None:
        """Random numbers up to `end`: what no case takes is never touched."""
        if not self._drawn:
            self._drawn = min(BLOCK, data.numel())
            data[: self._drawn] = self._draw(self._drawn, torch.Generator(self.device).manual_seed(self.seed))
        begun = time.perf_counter()
        block = min(BLOCK, data.numel())
        while self._drawn < end:
            more = min(block, data.numel() - self._drawn)
            data[self._drawn : self._drawn + more].copy_(data[:more])
            self._drawn += more
        self.filling_s += time.perf_counter() - begun

    @property
    def drawn_bytes(self) -> int:
        """How much of it has been filled."""
        return self._drawn * self.dtype.itemsize

    def _draw(self, size: int, generator: torch.Generator) -> torch.Tensor:
        if not self.dtype.is_floating_point:
            return torch.randint(-127, 128, (size,), generator=generator, dtype=torch.int8, device=self.device).to(self.dtype)
        return torch.randn(size, generator=generator, device=self.device).to(self.dtype)
