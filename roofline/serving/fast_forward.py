"""Stretches of decode steps in which nothing changes but the context: the same additions as stepping makes, in a bare loop.

Times are exactly those of stepping, because the same numbers are added in the same order. The gaps between tokens are logged
as straight lines (`Recorder.gaps`).
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol


class DecodeTimer(Protocol):
    """The part of a StepTimer that is needed here."""

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """See StepTimer."""


class Stretch(NamedTuple):
    """steps done; clock: next moment of scheduling; end: of the last batch; emitted_s: when the last tokens came out."""

    steps: int
    clock: float
    end: float
    emitted_s: float


class Gaps:
    """Logs a run of gaps between tokens of `rows` sequences: the first ones as they are, the others as one line."""

    def __init__(self, log: array[float], rows: int) -> None:
        self._log, self._rows = log, rows

    def add(self, first_s: float, last_s: float, steps: int) -> None:
        """`steps` gaps that go evenly from first_s to last_s."""
        if steps > 0:
            self._log.extend((first_s, last_s, steps, self._rows))


def alternating(
    timer: DecodeTimer, rows: int, context: int, host: float, clock: float, emitted_s: float, steps: int, until: float, log: array[float]
) -> Stretch:
    """Host and device take turns: each step begins at `clock` (< until) and its tokens come out when it ends.

    rows, context: sequences and their past tokens in all; host: CPU seconds of each step; emitted_s: when the rows emitted last.
    """
    gaps, done = Gaps(log, rows), 0
    while done < steps and clock < until:
        base, slope, last = timer.decode_line(rows, context)
        begin, at, left = done, context, min(steps - done, (last - context) // rows + 1)
        first_end = clock + host + (base + slope * context)
        while left and clock < until:
            clock = clock + host + (base + slope * context)
            context += rows
            left -= 1
        count = (context - at) // rows
        done = begin + count
        gaps.add(first_end - emitted_s, first_end - emitted_s, 1)
        gaps.add(host + (base + slope * (at + rows)), host + (base + slope * (context - rows)), count - 1)
        emitted_s = clock
    return Stretch(done, clock, clock, emitted_s)


def pipelined(
    timer: DecodeTimer,
    rows: int,
    context: int,
    host: float,
    clock: float,
    end: float,
    emitted_s: float,
    steps: int,
    until: float,
    log: array[float],
) -> Stretch:
    """A batch (it ends at `end`) runs while the next is scheduled at `clock` (< until); scheduling one takes in the one before.

    Arguments as in `alternating`. A step starts when the device is free and the host is ready, whichever is later.
    """
    gaps, done = Gaps(log, rows), 0
    while done < steps and clock < until:
        base, slope, last = timer.decode_line(rows, context)
        left = min(steps - done, (last - context) // rows + 1)
        device_bound = end >= clock + host
        singles, first, count = 2, 0.0, 0
        while left and clock < until:
            ready = clock + host
            if (end >= ready) is not device_bound:
                break
            gap = end - emitted_s
            emitted_s = end
            clock = end if device_bound else ready
            end = clock + (base + slope * context)
            context += rows
            left -= 1
            done += 1
            if singles:
                singles -= 1
                gaps.add(gap, gap, 1)
            elif count == 0:
                first, count = gap, 1
            else:
                count += 1
        gaps.add(first, gap, count)
    return Stretch(done, clock, end, emitted_s)
