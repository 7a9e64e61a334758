"""A step timer of one line, for tests: t = floor + row·rows + token·context + new·tokens + pair·pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class AffineTimer:
    floor_s: float = 6e-3
    row_s: float = 2e-5
    context_s: float = 5e-8
    new_s: float = 3e-5
    pair_s: float = 1e-9
    host_s: float = 5e-4
    piece: int = 1 << 60

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        base, slope, _ = self.decode_line(decodes, context)
        time = base + slope * context
        if chunks:
            time += sum([new * self.new_s + new * (past + new / 2) * self.pair_s for new, past in chunks])
        return time

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """Kinked every `piece` tokens, so that lines end."""
        number = context // self.piece
        return self.floor_s + self.row_s * decodes + number * 1e-5, self.context_s, (number + 1) * self.piece - 1

    def host_time(self, rows: int) -> float:
        return self.host_s + 1e-6 * rows
