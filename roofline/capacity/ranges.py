"""A quantity of bytes that is estimated: expected value and interval."""

from __future__ import annotations

from dataclasses import dataclass

GiB = 2.0**30


@dataclass(frozen=True)
class ByteRange:
    """Bytes as an expected value between low and high; all three are equal where nothing is estimated."""

    expected: float
    low: float
    high: float

    @classmethod
    def exactly(cls, value: float) -> ByteRange:
        """A value that is known."""
        return cls(value, value, value)

    def __add__(self, other: ByteRange) -> ByteRange:
        """Sum with the ends added: errors of memory items are not independent."""
        return ByteRange(self.expected + other.expected, self.low + other.low, self.high + other.high)

    def times(self, factor: float) -> ByteRange:
        """This range `factor` times (factor ≥ 0)."""
        return ByteRange(self.expected * factor, self.low * factor, self.high * factor)

    def at_least(self, other: ByteRange) -> ByteRange:
        """The larger of two peaks that do not happen at the same time, end by end."""
        return ByteRange(max(self.expected, other.expected), max(self.low, other.low), max(self.high, other.high))


NOTHING = ByteRange.exactly(0.0)
