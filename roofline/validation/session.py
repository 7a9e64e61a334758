"""A validation that is going on: what it validates, how much time it has left, what it left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.validation.predictions import THIS_RUN, Basis

if TYPE_CHECKING:
    from microbench.device import Device

SHARES = {"fit": 0.28, "kernels": 0.15, "engine": 0.26}  # of the budget; the trace has what is left
RESERVE_S = 10.0  # to judge, draw and write the report
DTYPE = {"cpu": "fp32", "cuda": "bf16"}


@dataclass
class Session:
    """deadline: on time.perf_counter; say: is told each stage; bases: as of now, the weakest first."""

    model: Model
    device: Device
    hardware: Hardware | None
    folder: Path
    deadline: float
    budget_s: float
    seed: int
    say: Callable[[str], None]
    bases: list[Basis] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    untrustworthy: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def dtype(self) -> str:
        """The type that everything is computed in."""
        return DTYPE[self.device.kind]

    @property
    def left_s(self) -> float:
        """Seconds until the reserve for the report begins."""
        return self.deadline - RESERVE_S - time.perf_counter()

    def until(self, *stages: str) -> float:
        """Seconds that these stages may take together."""
        return max(min(sum(SHARES[stage] for stage in stages) * self.budget_s, self.left_s), 1.0)

    @property
    def renewed(self) -> list[Basis]:
        """The bases that each pass states anew; those of the profile are stated once, before anything runs."""
        return [basis for basis in self.bases if basis.name == THIS_RUN or self.hardware is None]

    @property
    def mine(self) -> Basis:
        """The constants of this run. Raises StopIteration before there are any."""
        return next(basis for basis in self.bases if basis.name == THIS_RUN)

    def renew(self, bases: Sequence[Basis]) -> None:
        """Takes these in place of those of the same name."""
        kept = [basis for basis in self.bases if basis.name not in {new.name for new in bases}]
        self.bases = [*kept, *bases]

    def leave_out(self, *what: str) -> None:
        """Says once that this is missing."""
        self.left_out += [text for text in what if text not in self.left_out]
