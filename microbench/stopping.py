"""When enough samples are enough, and which of them look odd."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

OUTLIER_FENCE = 3.0  # interquartile ranges beyond the quartiles (Tukey's "far out")
NOISY = 0.10  # interquartile range / median from which a warning is given


@dataclass(frozen=True)
class Rule:
    """Repeat until precise, until the noise has converged, or until the budget ends.

    budget_s: for the samples of one case. precision: relative standard deviation that is good enough after least_s seconds.
    settled: the noise has converged when it changed by less than this share over the second half of at least 20 samples.
    warm_s: warm-up, by time. least_samples: taken even when the budget is over; most_samples: more say nothing new.
    """

    budget_s: float = 1.0
    precision: float = 0.005
    least_s: float = 0.5
    settled: float = 0.05
    warm_s: float = 0.1
    least_samples: int = 5
    most_samples: int = 1000

    def verdict(self, samples: Sequence[float], elapsed_s: float) -> str:
        """Why to stop now ("precise", "converged", "samples", "budget"), or "" to go on."""
        if len(samples) < self.least_samples:
            return ""
        if elapsed_s >= min(self.least_s, self.budget_s):
            noise = relative_deviation(samples)
            if len(samples) >= 5 and noise < self.precision:
                return "precise"
            if len(samples) >= 20 and abs(relative_deviation(samples[: len(samples) // 2]) - noise) < self.settled * noise:
                return "converged"
        if len(samples) >= self.most_samples:
            return "samples"
        return "budget" if elapsed_s >= self.budget_s else ""


def relative_deviation(samples: Sequence[float]) -> float:
    """Standard deviation / mean."""
    return statistics.stdev(samples) / statistics.fmean(samples)


def flags(samples: Sequence[float]) -> dict[str, object]:
    """What a reader should know of the samples: indices of outliers (kept, not dropped) and a warning when they spread."""
    if len(samples) < 4:
        return {"few_samples": len(samples)}
    low, middle, high = statistics.quantiles(samples, n=4, method="inclusive")
    reach = OUTLIER_FENCE * (high - low)
    odd = [i for i, s in enumerate(samples) if s > high + reach or s < low - reach]
    found: dict[str, object] = {"outliers": odd} if odd else {}
    if (high - low) / middle > NOISY:
        found["noisy"] = round((high - low) / middle, 3)
    return found
