"""Speculative decoding: how many drafts are right, and what making them costs."""

from __future__ import annotations

import random
from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class Drafter:
    """tokens: drafts per step; acceptance: chance that a draft is right, given that those before it were.

    A step of drafting costs base_s + row_s · rows for each of the `passes` (tokens for EAGLE, MTP and draft models; 1 where all
    drafts come from one pass; 0 for n-gram). weight_bytes and kv_bytes_per_token: memory that it takes from the target's pool.
    """

    tokens: int
    acceptance: float
    base_s: float = 0.0
    row_s: float = 0.0
    passes: int | None = None
    weight_bytes: float = 0.0
    kv_bytes_per_token: float = 0.0

    def __post_init__(self) -> None:
        if self.tokens < 1 or not 0 <= self.acceptance <= 1:
            raise InputError(f"speculation {self.tokens}:{self.acceptance}: at least 1 draft, acceptance 0 … 1")

    def draft_time(self, rows: int) -> float:
        """Seconds of drafting for so many sequences."""
        passes = self.tokens if self.passes is None else self.passes
        return passes * (self.base_s + self.row_s * rows)

    def tokens_per_step(self) -> float:
        """Expected tokens that one verified step emits: 1 + a + a² + … + a^tokens."""
        return sum(self.acceptance**power for power in range(self.tokens + 1))


class Speculation:
    """Draws how many drafts are accepted: reproducible, one stream per run."""

    def __init__(self, drafter: Drafter, seed: int = 0) -> None:
        self.drafter, self._random = drafter, random.Random(seed)  # noqa: S311 - simulation, not secrets

    def draft_time(self, rows: int) -> float:
        """See Drafter."""
        return self.drafter.draft_time(rows)

    def emitted(self, drafts: int) -> int:
        """Tokens that a verified row emits: the accepted drafts and the one that the target adds."""
        accepted = 0
        while accepted < drafts and self._random.random() < self.drafter.acceptance:
            accepted += 1
        return accepted + 1
