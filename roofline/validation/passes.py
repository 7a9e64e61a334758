"""The same shapes several times over a stage, and who else used the machine meanwhile: a disturbance of seconds reaches one pass.

Whether a pass was disturbed is told by the processor time of other processes, never by how long the pass took.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roofline.records import Measurement

PASSES = 3
CASE_S = 0.35  # that a case takes at least in a pass, set-up included
DISTURBED = 0.2  # cores that others kept busy, from which a pass does not stand for its case if there is another
_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and idle while a disk is awaited


@dataclass(frozen=True)
class Busy:
    """Seconds that the cores of the machine were busy, and that this process computed, since some moment."""

    all_s: float
    own_s: float


def busy() -> Busy | None:
    """As of now; None where the system does not tell (only Linux does)."""
    try:
        columns = [int(word) for word in _STAT.read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    except (OSError, ValueError, IndexError):
        return None
    ticks = sum(value for column, value in enumerate(columns) if column not in _IDLE)
    return Busy(ticks / os.sysconf("SC_CLK_TCK"), time.process_time())


def others(before: Busy | None, after: Busy | None, wall_s: float) -> float | None:
    """Cores that other processes kept busy in between (steal by other virtual machines included); None if unknown."""
    if before is None or after is None or wall_s <= 0:
        return None
    return max((after.all_s - before.all_s) - (after.own_s - before.own_s), 0.0) / wall_s


def watched(measure: Callable[..., Measurement], number: int) -> Callable[..., Measurement]:
    """`measure` whose record notes the pass and how many cores others kept busy meanwhile."""

    def wrapped(*args: Any, **options: Any) -> Measurement:
        before, began = busy(), time.perf_counter()
        found = measure(*args, **options)
        share = others(before, busy(), time.perf_counter() - began)
        notes = {"pass": number} | ({} if share is None else {"others": round(share, 3)})
        return replace(found, notes={**found.notes, **notes})

    return wrapped


def count(budget_s: float, cases: int) -> int:
    """Passes over so many cases that a budget allows: PASSES, fewer when there is hardly time for one."""
    return max(1, min(PASSES, int(budget_s / (CASE_S * max(cases, 1)))))


def disturbed(share: float | None) -> bool:
    """Whether others kept so many cores busy that what was measured meanwhile is theirs too."""
    return share is not None and share > DISTURBED


def middle(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One measurement of each case: of its undisturbed passes (of all if there is none) that with the median in the middle.

    Sentinels are left out.
    """
    return [found[(len(found) - 1) // 2] for found in _by_case(measurements)]


def without_calm(cases: Sequence[Any], measurements: Sequence[Measurement]) -> list[Any]:
    """The cases of microbench that have passes, and only disturbed ones."""
    calm = {str(m.notes["case"]) for m in measurements if not disturbed(m.notes.get("others"))}
    there = {str(m.notes["case"]) for m in measurements}
    return [case for case in cases if case.id in there - calm]


def apart(measurements: Sequence[Measurement], share: float = 0.8) -> float:
    """How far `share` of the passes lie from the middle one of their case, as |log of the ratio|; 0 where there was one pass."""
    logs = [abs(math.log(m.median_s / found[(len(found) - 1) // 2].median_s)) for found in _by_case(measurements) for m in found]
    several = [found for found in _by_case(measurements) if len(found) > 1]
    return float(np.quantile(logs, share)) if several else 0.0


def _by_case(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """The passes of each case that count, fastest first."""
    cases: dict[str, list[Measurement]] = {}
    for m in measurements:
        if not m.notes.get("sentinel"):
            cases.setdefault(str(m.notes["case"]), []).append(m)
    return [sorted(_calm(found), key=lambda m: m.median_s) for found in cases.values()]


def _calm(found: Sequence[Measurement]) -> Sequence[Measurement]:
    return [m for m in found if not disturbed(m.notes.get("others"))] or found


def intervals(measurements: Sequence[Measurement]) -> dict[str, tuple[float, float]]:
    """By case, seconds between which the median of another run should lie while the machine stays as it is.

    From the fastest to the slowest undisturbed pass, by their medians; with one pass, 10 to 90 % of its samples.
    """
    found = {}
    for mine in _by_case(measurements):
        low, high = (mine[0].median_s, mine[-1].median_s) if len(mine) > 1 else np.quantile(mine[0].samples_s, [0.1, 0.9])
        found[str(mine[0].notes["case"])] = (float(low), float(high))
    return found


def drift(measurements: Sequence[Measurement]) -> float:
    """Slowest / fastest pass − 1, each by the median of its undisturbed sentinels: how much the machine itself changed over the run."""
    passes: dict[object, list[float]] = {}
    for number, m in enumerate(_calm([m for m in measurements if m.notes.get("sentinel")])):
        passes.setdefault(m.notes.get("pass", f"{number}"), []).append(m.median_s)
    medians = [float(np.median(found)) for found in passes.values()]
    return max(medians) / min(medians) - 1 if medians else 0.0


def drift_within(measurements: Sequence[Measurement]) -> float:
    """As drift, between the sentinels of one pass, for stages that measure their constants anew in each: the median over the passes."""
    passes: dict[object, list[float]] = {}
    for m in _calm([m for m in measurements if m.notes.get("sentinel")]):
        passes.setdefault(m.notes.get("pass"), []).append(m.median_s)
    moved = [max(found) / min(found) - 1 for found in passes.values() if len(found) > 1]
    return float(np.median(moved)) if moved else 0.0
