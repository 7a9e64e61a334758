"""Passes: constants, what is predicted from them, and its measurement, again and again; and who else used the machine meanwhile.

Memory that is shared with other machines changes within seconds, unseen by this one. Each pass has constants of its own moment, so
that such a change meets prediction and measurement alike, and what disturbs it for seconds reaches one pass of several. Whether a pass
was disturbed by this machine's other processes is told by their processor time, never by how long the pass took.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roofline.records import Measurement

PASSES = 5  # at most, over kernels; odd: one is in the middle
CASE_S = 0.25  # that a case takes at least in a pass, set-up included
CONSTANTS, JUDGED = "constants", "judged"  # phases of a pass
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


def watched(measure: Callable[..., Measurement], number: int, phase: str) -> Callable[..., Measurement]:
    """`measure` whose record notes pass and phase and how many cores others kept busy meanwhile."""

    def wrapped(*args: Any, **options: Any) -> Measurement:
        before, began = busy(), time.perf_counter()
        found = measure(*args, **options)
        share = others(before, busy(), time.perf_counter() - began)
        notes = {"pass": number, "phase": phase} | ({} if share is None else {"others": round(share, 3)})
        return replace(found, notes={**found.notes, **notes})

    return wrapped


def count(budget_s: float, cases: int) -> int:
    """Passes over so many cases that a budget allows: an odd number up to PASSES."""
    fit = max(1, min(PASSES, int(budget_s / (CASE_S * max(cases, 1)))))
    return fit - 1 + fit % 2


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


def by_pass(measurements: Sequence[Measurement]) -> dict[str, dict[int | None, Measurement]]:
    """By case, the measurement of each pass that counts: of its undisturbed passes, of all if there is none. Sentinels are left out."""
    return {str(found[0].notes["case"]): {m.notes.get("pass"): m for m in found} for found in _by_case(measurements)}


def _by_case(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """The passes of each case that count, fastest first."""
    cases: dict[str, list[Measurement]] = {}
    for m in measurements:
        if not m.notes.get("sentinel"):
            cases.setdefault(str(m.notes["case"]), []).append(m)
    return [sorted(_calm(found), key=lambda m: m.median_s) for found in cases.values()]


def _calm(found: Sequence[Measurement]) -> Sequence[Measurement]:
    return [m for m in found if not disturbed(m.notes.get("others"))] or found


def of_median(values: Sequence[float]) -> tuple[float, float]:
    """The 80 % interval of the median that other draws like `values` would have, from their ranks: quantiles 1/2 ± 0.64 / √n.

    The asymptotic interval of a median by order statistics (1.2816 standard normal deviations of its rank, √n / 2).
    """
    half = min(1.2816 / (2 * math.sqrt(len(values))), 0.5)
    low, high = np.quantile(values, [0.5 - half, 0.5 + half])
    return float(low), float(high)


Paces = Mapping[int, Mapping[str, float]]  # pass → case → seconds of what is measured in every pass


def paces(measurements: Sequence[Measurement]) -> Paces:
    """Of these measurements, the undisturbed ones: median seconds by pass and case."""
    samples: dict[int, dict[str, list[float]]] = {}
    for m in _calm(measurements):
        samples.setdefault(int(m.notes.get("pass") or 0), {}).setdefault(str(m.notes["case"]), []).append(m.median_s)
    return {number: {case: float(np.median(found)) for case, found in cases.items()} for number, cases in sorted(samples.items())}


def change(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """after / before − 1, the median over the shapes that both have; 0 if there are none."""
    ratios = [after[case] / before[case] for case in before if case in after]
    return float(np.median(ratios)) - 1 if ratios else 0.0


def moved(before: Paces, after: Paces) -> dict[int, float]:
    """By pass, the larger / the smaller − 1 of what a pace was before and after: how much the machine changed under a prediction."""
    ratios = {number: 1 + change(before[number], after[number]) for number in before if number in after}
    return {number: max(ratio, 1 / ratio) - 1 for number, ratio in ratios.items()}


def drift(found: Paces) -> float:
    """Slowest / fastest pass − 1: how much the machine itself changed over the run."""
    first = next(iter(found.values()), {})
    ratios = [1 + change(first, cases) for cases in found.values()]
    return max(ratios) / min(ratios) - 1 if ratios else 0.0
