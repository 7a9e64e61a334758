"""PASS, FAIL or AMBIGUOUS: an interval that was predicted against the spread of what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roofline.validation.predictions import BASES, THIS_RUN, Prediction

PASS, FAIL, AMBIGUOUS = "PASS", "FAIL", "AMBIGUOUS"
WIDE = 2.0  # high / low of a measurement from which it decides nothing
BEATS = 0.98  # of the bound: below it, the count or the clock is wrong
TARGETS = {"gemm": 0.15, "attention": 0.15, "decode": 0.15, "prefill": 0.20, "ttft": 0.20, "tpot": 0.20}  # median error


@dataclass(frozen=True)
class Measured:
    """Seconds of a target: median, and between which the median of another run should lie.

    samples: how many; passes: of how many this is the middle one; width: high / low − 1 of several passes, of one pass the
    interquartile range / median of its samples.
    """

    median_s: float
    low_s: float
    high_s: float
    samples: int = 1
    passes: int = 1
    width: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """word: PASS, FAIL or AMBIGUOUS; why: in words."""

    word: str
    why: str


@dataclass(frozen=True)
class Row:
    """A target with its predictions by basis, what was measured, the verdict (on `judged`) and what explains a step's error."""

    target: str
    group: str
    measured: Measured
    predictions: Mapping[str, Prediction]
    judged: str
    verdict: Verdict
    attribution: str = ""
    differences: Mapping[str, float] = field(default_factory=dict)

    def error(self, basis: str) -> float | None:
        """predicted / measured − 1."""
        found = self.predictions.get(basis)
        return found.expected_s / self.measured.median_s - 1 if found else None

    def to_json(self) -> dict[str, Any]:
        """Flat, for tables: times in seconds, errors as shares."""
        row: dict[str, Any] = {
            "group": self.group,
            "target": self.target,
            "label": label(self.target),
            "verdict": self.verdict.word,
            "measured_s": self.measured.median_s,
        }
        judged = self.predictions[self.judged]
        row |= {"expected_s": judged.expected_s, "low_s": judged.low_s, "high_s": judged.high_s, "bound_s": judged.bound_s}
        row |= {"judged": self.judged, "measured_low_s": self.measured.low_s, "measured_high_s": self.measured.high_s}
        row |= {"samples": self.measured.samples, "passes": self.measured.passes, "why": self.verdict.why, "attribution": self.attribution}
        for basis in BASES:
            found = self.predictions.get(basis)
            row |= {f"{basis}_expected_s": found.expected_s if found else None, f"{basis}_error": self.error(basis)}
        return row


def label(target: str) -> str:
    """A target in few words: gemm/fp32/m=1,n=768,k=768/cold → gemm m=1 n=768 k=768; what is usual is left out."""
    parts = target.split("/")
    sizes = next((part for part in parts if "=" in part), "")
    if not sizes:
        return " ".join(parts)
    kept = [size for size in sizes.split(",") if size not in _USUAL and not size.startswith("kv_dtype")]
    return " ".join([parts[0].replace("_", " "), *kept])


_USUAL = ("window=0", "past_tokens=0", "past=0", "kernel=flash")


def judge(prediction: Prediction, measured: Measured) -> Verdict:
    """PASS: the median lies in the predicted interval. FAIL: the two intervals do not touch, or the bound is beaten.

    AMBIGUOUS: they overlap without that, or the measurement is so wide that it decides nothing.
    """
    if prediction.basis != THIS_RUN and measured.median_s < BEATS * prediction.bound_s:
        ratio = prediction.bound_s / measured.median_s
        return Verdict(FAIL, f"{ratio:.2f} × faster than the hard bound: operands were in a cache, the count is wrong, or the profile is")
    if measured.low_s > prediction.high_s or measured.high_s < prediction.low_s:
        way = "slower" if measured.low_s > prediction.high_s else "faster"
        return Verdict(FAIL, f"{way} than predicted, beyond both intervals")
    if measured.high_s > WIDE * measured.low_s:
        return Verdict(AMBIGUOUS, f"the measurement spreads by {measured.high_s / measured.low_s:.1f} ×")
    if prediction.low_s <= measured.median_s <= prediction.high_s:
        return Verdict(PASS, "inside the predicted interval")
    return Verdict(AMBIGUOUS, "outside the predicted interval, within the spread of the measurement")


@dataclass(frozen=True)
class GroupVerdict:
    """All rows of a group: median |error| by basis, counts of verdicts, the word."""

    group: str
    word: str
    rows: int
    counts: Mapping[str, int]
    median_error: Mapping[str, float]
    target: float | None

    def to_json(self) -> dict[str, Any]:
        """As one object."""
        return {
            "group": self.group, "verdict": self.word, "rows": self.rows,
            **{w.lower(): self.counts.get(w, 0) for w in (PASS, FAIL, AMBIGUOUS)},
            **{f"{basis}_median_error": self.median_error.get(basis) for basis in BASES}, "target": self.target,
        }  # fmt: skip


def judge_groups(rows: Sequence[Row]) -> list[GroupVerdict]:
    """One verdict per group: FAIL when more than half of its rows fail; PASS when half or more pass and, for constants of this
    run, the median error is within TARGETS; else AMBIGUOUS. (One row in five leaves an 80 % interval when all is well.)"""
    found = []
    for group in dict.fromkeys(row.group for row in rows):
        mine = [row for row in rows if row.group == group]
        counts = {word: sum(row.verdict.word == word for row in mine) for word in (PASS, FAIL, AMBIGUOUS)}
        errors = {basis: [abs(e) for row in mine if (e := row.error(basis)) is not None] for basis in BASES}
        median = {basis: float(np.median(values)) for basis, values in errors.items() if values}
        target = TARGETS.get(group)
        near = target is None or THIS_RUN not in median or median[THIS_RUN] <= target
        word = FAIL if 2 * counts[FAIL] > len(mine) else PASS if 2 * counts[PASS] >= len(mine) and near else AMBIGUOUS
        found.append(GroupVerdict(group, word, len(mine), counts, median, target))
    return found


def overall(groups: Sequence[GroupVerdict]) -> str:
    """The worst word; AMBIGUOUS of nothing."""
    words = {group.word for group in groups}
    return FAIL if FAIL in words else AMBIGUOUS if AMBIGUOUS in words or not words else PASS


def attribute(measured_s: float, prediction: Prediction, kernels_s: Mapping[str, float]) -> tuple[str, dict[str, float]]:
    """Which part of a step explains measured − predicted, and the difference of each part in seconds.

    kernels_s: seconds of the step's ops as measured alone, all layers together, by op name. What no kernel explains is the
    engine's: launches, element-wise work, the host.
    """
    known = {name: seconds - prediction.parts[name] for name, seconds in kernels_s.items() if name in prediction.parts}
    rest = measured_s - prediction.expected_s - sum(known.values())
    missing = [name for name in prediction.parts if name not in kernels_s and name != "engine"]
    parts = {**known, "engine": rest}
    largest = max(parts, key=lambda name: abs(parts[name]))
    gap = measured_s - prediction.expected_s
    if abs(gap) < 0.05 * measured_s:
        return "within 5 %", parts
    same = {name: part for name, part in parts.items() if part * gap > 0}
    largest = max(same or parts, key=lambda name: abs(parts[name]))
    what = "launches, element-wise work and host" if largest == "engine" else largest
    more = "more" if parts[largest] > 0 else "less"
    heavy = [name for name in missing if prediction.parts[name] > 0.05 * prediction.expected_s]
    names = ", ".join(heavy) if len(heavy) <= 2 else f"{len(heavy)} kernels"
    return f"{what}: {abs(parts[largest]) / measured_s:.0%} {more} of the step" + (f" ({names} not measured alone)" if heavy else ""), parts
