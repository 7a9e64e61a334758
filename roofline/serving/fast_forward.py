"""Stretches of decode steps in which nothing changes but the context: the same additions as stepping makes, in a bare loop.

Times are exactly those of stepping, because the same numbers are added in the same order. The gaps between tokens are logged
as straight lines (`Recorder.gaps`).
"""

from __future__ import annotations

from array import array
from typing import Protocol

from roofline.serving.recorder import gap_row


class DecodeTimer(Protocol):
    """The part of a StepTimer that is needed here."""

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """See StepTimer."""


Stretch = tuple[int, float, float, float]
"""(steps done, next moment of scheduling, end of the last batch, when the last tokens came out)."""


def alternating(
    timer: DecodeTimer, rows: int, context: int, host: float, clock: float, emitted_s: float, steps: int, until: float, log: array[float]
) -> Stretch:
    """Host and device take turns: each step begins at `clock` (< until) and its tokens come out when it ends.

    rows, context: sequences and their past tokens in all; host: CPU seconds of each step; emitted_s: when the rows emitted last.
    """
    done = 0
    while done < steps and clock < until:
        base, slope, last = timer.decode_line(rows, context)
        even, begin = clock == emitted_s, context
        stop = context + min(steps - done, (last - context) // rows + 1) * rows
        first_gap = clock + host + (base + slope * context) - emitted_s
        for context in range(begin, stop, rows):
            if clock >= until:
                break
            clock = clock + host + (base + slope * context)
        else:
            context = stop
        count = (context - begin) // rows
        done += count
        emitted_s = clock
        if not even:
            log.frombytes(gap_row(first_gap, first_gap, 1, rows))
            begin, count = begin + rows, count - 1
        if count:
            log.frombytes(gap_row(host + (base + slope * begin), host + (base + slope * (context - rows)), count, rows))
    return done, clock, clock, emitted_s


def pipelined(
    timer: DecodeTimer, rows: int, context: int, host: float, clock: float, end: float, steps: int, until: float, log: array[float]
) -> Stretch:
    """A batch (it ends at `end`) runs while the next is scheduled at `clock` (< until); scheduling one takes in the one before.

    Arguments as in `alternating`; the tokens of the batch in flight are the caller's to log. A step starts when the device is
    free and the host is ready, whichever is later.
    """
    done, emitted_s = 0, end
    while done < steps and clock < until:
        base, slope, last = timer.decode_line(rows, context)
        begin, stop = context, context + (steps - done) * rows
        if stop > last + rows:
            stop = context + ((last - context) // rows + 1) * rows
        apart = 1  # gaps that are not on the line of the others: the first is the caller's, or from the line before
        if done:
            log.frombytes(gap_row(end - emitted_s, end - emitted_s, 1, rows))
        second_gap = last_gap = host + slope * rows
        if end >= clock + host and base + slope * context >= host:
            for context in range(begin, stop, rows):
                if clock >= until:
                    break
                clock = end
                end = clock + (base + slope * context)
            else:
                context = stop
            emitted_s, second_gap, last_gap = clock, base + slope * begin, base + slope * (context - 2 * rows)
        elif end < clock + host and base + slope * stop < host:
            for context in range(begin, stop, rows):
                if clock >= until:
                    break
                if context == begin + rows:
                    log.frombytes(gap_row(end - emitted_s, end - emitted_s, 1, rows))
                    apart = 2
                emitted_s = end
                clock = clock + host
                end = clock + (base + slope * context)
            else:
                context = stop
        else:
            emitted_s = end
            clock = max(end, clock + host)
            end = clock + (base + slope * context)
            context += rows
        count = (context - begin) // rows
        done += count
        if count > apart:
            log.frombytes(gap_row(second_gap, last_gap, count - apart, rows))
    return done, clock, end, emitted_s
