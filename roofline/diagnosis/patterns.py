"""The course of a server over time, by name: what it looks like, what it means, and which cause it is known for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

FEWEST = 8


@dataclass(frozen=True)
class Pattern:
    """A named course. labels: causes that it speaks for."""

    name: str
    meaning: str
    labels: tuple[str, ...]


PATTERNS = {
    pattern.name: pattern
    for pattern in (
        Pattern("steady", "TTFT and TPOT stay where they began", ("NONE",)),
        Pattern("warms-up", "the first requests are slow: captures, compilation, an empty cache; judge what comes after", ("NONE",)),
        Pattern("queue-grows", "TTFT climbs and TPOT does not: more arrives than is served", ("PQ", "CAP")),
        Pattern("overload", "the queue grows to the end: more arrives than is served", ("PQ", "CAP")),
        Pattern("decode-slows", "TPOT climbs in the course: contexts grow, or more requests share a step", ("NONE", "KV")),
        Pattern("decode-speeds-up", "TPOT falls in the course: fewer requests share a step", ("NONE",)),
        Pattern("ramp", "TPOT follows the number of running requests: the batch is the price, and nobody waits", ("NONE",)),
        Pattern("burst", "a burst waits, and the queue empties again", ("NONE",)),
        Pattern("stalls", "even streams with single long gaps: long prefills between decodes, or preemption", ("PI", "KV")),
        Pattern("kv-pressure", "a full pool, and requests that lose their KV to others", ("KV",)),
        Pattern("collapse", "output falls by half and stays there while requests wait", ("KV",)),
    )
}


@dataclass
class Series:
    """States of a server in the order of time; kv: share or None; output: tokens/s."""

    running: list[float] = field(default_factory=list)
    waiting: list[float] = field(default_factory=list)
    kv: list[float | None] = field(default_factory=list)
    output: list[float] = field(default_factory=list)

    def add(self, running: float, waiting: float, kv: float | None, output: float) -> None:
        """One more state."""
        self.running.append(running)
        self.waiting.append(waiting)
        self.kv.append(kv)
        self.output.append(output)

    def busy(self) -> Series:
        """Without the states in which there was nothing to do."""
        kept = Series()
        for running, waiting, kv, output in zip(self.running, self.waiting, self.kv, self.output, strict=True):
            if running or waiting:
                kept.add(running, waiting, kv, output)
        return kept

    def __len__(self) -> int:
        return len(self.running)


def named(series: Series, preemptions: float) -> Pattern | None:
    """The pattern of a log's statistics; None of fewer than FEWEST states."""
    if len(series) < FEWEST:
        return None
    half = len(series) // 2
    early, late = mean(series.waiting[:half]), mean(series.waiting[half:])
    fullest = max((value for value in series.kv if value is not None), default=0.0)
    peak = _best(series.output, max(1, len(series) // 4))
    if mean(series.output[-half // 2 :]) < 0.5 * peak and late >= 1 and fullest > 0.9:
        return PATTERNS["collapse"]
    if preemptions:
        return PATTERNS["kv-pressure"]
    if late > 2 * early + 1 and series.waiting[-1] > 0.5 * max(series.waiting) > 1:
        return PATTERNS["overload"]
    if max(series.waiting) > 5 and max(series.waiting) > 4 * max(mean(series.waiting), 0.25):
        return PATTERNS["burst"]
    return None if late >= 1 else PATTERNS["steady"]


def _best(values: Sequence[float], part: int) -> float:
    return max(mean(values[at : at + part]) for at in range(len(values) - part + 1))
