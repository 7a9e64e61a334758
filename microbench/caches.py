"""Cold operands: how many sets must rotate so that none is still in a cache when it comes back, and where they lie."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import torch

FACTOR = {"cpu": 4, "cuda": 5}  # times the last-level cache, within which no operand may come back
MOST_SETS = 4096
BLOCK = 2**22  # random elements that are drawn; the rest of an arena repeats them at other addresses
ALIGNED = 256  # bytes that views begin at a multiple of


def ring_length(kind: str, cache_bytes: float, set_bytes: float) -> int:
    """Sets of operands for a cold case: ⌈factor · last-level cache / bytes of one set⌉ + 1, at most MOST_SETS."""
    return min(MOST_SETS, math.ceil(FACTOR[kind] * cache_bytes / max(set_bytes, 1.0)) + 1)


def is_cold(kind: str, cache_bytes: float, set_bytes: float, sets: int) -> bool:
    """Whether a ring of that many sets passes factor × the cache between two uses of one set."""
    return (sets - 1) * set_bytes >= FACTOR[kind] * cache_bytes


@dataclass
class Arena:
    """Random normal numbers in one allocation, handed out as views that walk through it and around again.

    One draw for all cases: filling gigabytes afresh for each would take longer than timing them. Never zeros: a device draws less
    power on them and clocks higher. An arena of bfloat16 numbers serves other types too: fp32 and fp16 views of the bits are finite
    numbers around one (two make an fp32 whose upper half decides), int8 views are the bytes. fp8 views could be NaN.
    """

    device: str
    size: int
    drawn: torch.dtype = torch.bfloat16
    seed: int = 0
    _data: torch.Tensor | None = None
    _filled: int = field(default=0)
    _at: int = field(default=0)
    filling_s: float = field(default=0.0)

    def take(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A contiguous tensor of that shape that shares memory with no other until the arena has been walked through once."""
        count = math.prod(shape)
        size = math.ceil(count * dtype.itemsize / ALIGNED) * ALIGNED
        if self._data is None or size > self._data.nbytes:
            self._data, self._filled, self._at = None, 0, 0  # free the old one before the new one is made
            self._data = self._allocated(size)
        if self._at + size > self._data.nbytes:
            self._at = 0
        start, self._at = self._at // self.drawn.itemsize, self._at + size
        end = self._at // self.drawn.itemsize
        self._fill(self._data, end)
        return self._data[start:end].view(dtype)[:count].view(shape)

    def _allocated(self, least: int) -> torch.Tensor:
        """Memory of the wanted size, or of as much as there is. Raises what torch raises when there is not even `least`."""
        self.size = max(math.ceil(self.size / ALIGNED) * ALIGNED, least)
        while True:
            try:
                return torch.empty(self.size // self.drawn.itemsize, dtype=self.drawn, device=self.device)
            except RuntimeError:
                if self.size == least:
                    raise
                self.size = max(self.size // 2 // ALIGNED * ALIGNED, least)

    def _fill(self, data: torch.Tensor, end: int) -> None:
        """Random numbers up to `end`: what no case takes is never touched."""
        begun, block = time.perf_counter(), min(BLOCK, data.numel())
        if not self._filled and end:
            numbers = torch.randn(block, generator=torch.Generator(self.device).manual_seed(self.seed), device=self.device)
            data[:block] = (numbers if self.drawn.is_floating_point else 32 * numbers).to(self.drawn)
            self._filled = block
        while self._filled < end:
            more = min(block, data.numel() - self._filled)
            data[self._filled : self._filled + more].copy_(data[:more])
            self._filled += more
        self.filling_s += time.perf_counter() - begun

    @property
    def filled_bytes(self) -> int:
        """How much of it has been filled."""
        return self._filled * self.drawn.itemsize
