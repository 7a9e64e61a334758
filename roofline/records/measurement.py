"""One measured operation: what ran, on what, how long, and by which method."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from roofline.errors import RecordError

Shape = Mapping[str, int | float | str]


@dataclass(frozen=True)
class Measurement:
    """Samples of one case, kept raw; every statistic is computed from them when asked.

    op: kind of operation (gemm, decode_attention, stream, …); shape: its sizes by name (m, n, k, batch, context, …).
    device, dtype: profile id of the device and compute type; software: name → version.
    samples_s: seconds of each repetition, in the order measured. cold: operands came from memory (True), from cache (False).
    environment: id of the Environment record; method: name and version of the way it was timed; source: file or table it came
    from ("" = measured here); notes: anything else worth keeping (throttle reasons, stop criterion, first-call seconds).
    """

    op: str
    shape: Shape
    device: str
    dtype: str
    samples_s: tuple[float, ...]
    method: str
    environment: str
    software: Mapping[str, str] = field(default_factory=dict)
    cold: bool | None = None
    source: str = ""
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.samples_s or min(self.samples_s) <= 0:
            raise RecordError(f"{self.op} {dict(self.shape)}: samples_s must be one or more times > 0, got {self.samples_s[:3]}")

    @property
    def median_s(self) -> float:
        """The typical time: what a prediction is compared with."""
        return statistics.median(self.samples_s)

    @property
    def minimum_s(self) -> float:
        """The best time: what a ceiling is made of."""
        return min(self.samples_s)

    @property
    def spread(self) -> float:
        """Interquartile range / median; 0 for fewer than four samples."""
        if len(self.samples_s) < 4:
            return 0.0
        low, _, high = statistics.quantiles(self.samples_s, n=4, method="inclusive")
        return (high - low) / self.median_s

    def to_json(self) -> dict[str, Any]:
        """The record as one JSON object; `from_json` reads it back."""
        return {"kind": "measurement", **asdict(self)}

    @classmethod
    def from_json(cls, row: Mapping[str, Any], where: str = "") -> Measurement:
        """The measurement in a JSON object. where: file:line for messages. Raises RecordError for a missing or unknown key."""
        values = {key: value for key, value in row.items() if key != "kind"}
        try:
            return cls(**values | {"samples_s": tuple(values["samples_s"])})
        except (KeyError, TypeError) as error:
            raise RecordError(f"{where or 'record'}: not a measurement: {error}") from None
