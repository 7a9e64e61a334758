"""A case is visited several times in a sweep: its visits as one measurement, and how far they lie apart.

Samples of one visit are taken within a tenth of a second. They do not see what a machine does over minutes: neighbours on the same
memory, clocks, a page cache. The visits of a case lie as far apart as the sweep is long, so the differences between them do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import numpy as np

from microbench.stopping import flags
from roofline.records import Measurement


def merged(measurements: Sequence[Measurement]) -> list[Measurement]:
    """One measurement for each case with the samples of all its visits in a row; sentinels follow as they are.

    notes: those of the last visit, with flags of all samples and `visits`, the number of samples of each.
    """
    cases: dict[str, list[Measurement]] = {}
    for m in measurements:
        if not m.notes.get("sentinel"):
            cases.setdefault(str(m.notes["case"]), []).append(m)
    return [*map(_joined, cases.values()), *(m for m in measurements if m.notes.get("sentinel"))]


def _joined(visits: Sequence[Measurement]) -> Measurement:
    samples = tuple(s for m in visits for s in m.samples_s)
    stale = ("outliers", "noisy", "few_samples")
    notes = {key: value for key, value in visits[-1].notes.items() if key not in stale} | flags(samples)
    if "rival" in notes:
        notes["rival"] = notes["rival"] | {"samples_s": [s for m in visits for s in m.notes["rival"]["samples_s"]]}
    notes["visits"] = [size for m in visits for size in _sizes(m)]
    return Measurement(**{**vars(visits[0]), "samples_s": samples, "notes": notes})


def _sizes(m: Measurement) -> list[int]:
    return list(m.notes.get("visits", [len(m.samples_s)]))


def split(m: Measurement) -> list[tuple[float, ...]]:
    """The samples of each visit."""
    left = iter(m.samples_s)
    return [tuple(islice(left, size)) for size in _sizes(m)]


def interval(m: Measurement, moved: float = 0.0, usual: float = 0.0) -> tuple[float, float]:
    """Seconds between which the median of another run should lie.

    The 10 % quantile of the fastest visit's samples and the 90 % quantile of the slowest one's: what a run would have seen that came
    at the best or at the worst of these moments. Widened by `moved`, what the case's own visits may have missed of the machine: how
    much the sentinel moved over the whole sweep (`sweep.drift`). A case with one visit has not seen any change itself: it is widened
    by at least `usual`, how far visits of the other cases lie apart (`apart`). A change over hours is not covered: no sweep sees it.
    """
    quantiles = [np.quantile(samples, [0.1, 0.9]) for samples in split(m)]
    wide = 1 + (moved if len(quantiles) > 1 else max(moved, usual))
    return float(min(low for low, _ in quantiles)) / wide, float(max(high for _, high in quantiles)) * wide


def apart(measurements: Sequence[Measurement], share: float = 0.9) -> float:
    """Slowest / fastest visit's median − 1: the quantile `share` over the cases that were visited more than once; 0 without any."""
    medians = [[np.median(samples) for samples in split(m)] for m in measurements if len(_sizes(m)) > 1]
    return float(np.quantile([max(each) / min(each) - 1 for each in medians], share)) if medians else 0.0


def against_rival(m: Measurement) -> float | None:
    """Our rate / the rival's: the median over the pairs of samples that were taken in turn; None without a rival."""
    rival = m.notes.get("rival")
    if not rival:
        return None
    return math.exp(float(np.median([math.log(theirs / ours) for ours, theirs in zip(m.samples_s, rival["samples_s"], strict=False)])))
