"""The three numbers that every time is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64] | float


@dataclass(frozen=True)
class Estimate:
    """A time in seconds as a hard bound (no machine beats it), a calibrated expectation and an 80 % interval.

    Fields are floats or arrays of one shape. bound_s ≤ expected_s and low_s ≤ expected_s ≤ high_s.
    """

    bound_s: Array
    expected_s: Array
    low_s: Array
    high_s: Array

    def as_json(self) -> dict[str, Any]:
        """The object of the JSON contract: {bound, expected, low, high} in seconds."""
        pairs = {"bound": self.bound_s, "expected": self.expected_s, "low": self.low_s, "high": self.high_s}
        return {key: value.tolist() if isinstance(value, np.ndarray) else float(value) for key, value in pairs.items()}
