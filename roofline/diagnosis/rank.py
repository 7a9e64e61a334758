"""From evidence to ranked causes with a confidence each, and to one of three answers: a cause, healthy, or not enough evidence."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rules import HEALTHY, RULES, Evidence, Rule

SHARPNESS = 0.9  # weight → log-odds; chosen so that stated confidence is the observed share of right answers (tests/diagnosis)
UNSUPPORTED = -1.5  # weight of a cause for which nothing speaks
UNKNOWN = 1.5  # weight of a cause that is not in the list, or of nothing to find
ALARM = 0.5
COMPLAINT = 0.8  # weight that a reported symptom gives to the causes it is known for


@dataclass(frozen=True)
class Cause:
    """A rule with its evidence and confidence (0 … 1; all causes and the unknown one add up to 1)."""

    rule: Rule
    confidence: float
    evidence: tuple[Evidence, ...]

    @property
    def label(self) -> str:
        """As in docs/how-to/diagnose.md."""
        return self.rule.label

    @property
    def supporting(self) -> tuple[Evidence, ...]:
        """What speaks for it, strongest first."""
        return tuple(sorted((e for e in self.evidence if e.weight > 0), key=lambda e: -e.weight))

    @property
    def opposing(self) -> tuple[Evidence, ...]:
        """What speaks against it, strongest first."""
        return tuple(sorted((e for e in self.evidence if e.weight < 0), key=lambda e: e.weight))


@dataclass(frozen=True)
class Diagnosis:
    """All causes, likeliest first. verdict: cause, healthy, or unclear (not enough evidence)."""

    causes: tuple[Cause, ...]
    unknown: float

    @property
    def first(self) -> Cause:
        """The likeliest cause."""
        return self.causes[0]

    @property
    def verdict(self) -> str:
        """Only a cause with more confidence than ALARM, and with something that speaks for it, is one."""
        if self.first.confidence < ALARM or not self.first.supporting:
            return "unclear"
        return "healthy" if self.first.label == HEALTHY else "cause"


def diagnose(seen: Observations, complaint: Collection[str] = ()) -> Diagnosis:
    """Weighs every cause. complaint: labels of causes that a reported symptom is known for; they start a little higher."""
    found: list[tuple[Rule, tuple[Evidence, ...], float]] = []
    for rule in RULES:
        evidence = tuple(rule.weigh(seen))
        weight = sum(e.weight for e in evidence) + (COMPLAINT if rule.label in complaint else 0.0)
        weight += 0.0 if any(e.weight > 0 for e in evidence) else UNSUPPORTED
        found.append((rule, evidence, weight))
    shares = _shares([weight for _, _, weight in found])
    causes = [Cause(rule, share, evidence) for (rule, evidence, _), share in zip(found, shares, strict=False)]
    return Diagnosis(tuple(sorted(causes, key=lambda cause: -cause.confidence)), shares[-1])


def _shares(weights: Sequence[float]) -> list[float]:
    """Softmax of the weights and, last, of the unknown cause."""
    scaled = [SHARPNESS * weight for weight in (*weights, UNKNOWN)]
    top = max(scaled)
    powers = [math.exp(weight - top) for weight in scaled]
    return [power / sum(powers) for power in powers]
