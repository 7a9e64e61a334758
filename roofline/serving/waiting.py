"""What a simulated engine spent its time on, and what requests waited for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.serving.statistics import Result

FULL_POOL = 0.95


@dataclass(frozen=True)
class Load:
    """Shares of the run, 0 … 1, averaged over its engines.

    busy: steps ran; prefill: steps that computed prompt tokens ran (their decodes included). waiting: somebody waited for a place.
    seats, kv: of that waiting, the shares in which all places of the batch were taken, and in which the KV pool was FULL_POOL
    full; the rest waited for the token budget of steps. kv_peak: largest share of the pool in use.
    """

    busy: float
    prefill: float
    waiting: float
    seats: float
    kv: float
    kv_peak: float

    @property
    def binding(self) -> str:
        """What kept requests waiting most: "max_num_seqs", "KV memory" or "prefill"; "nothing" if less than 1 % of the time."""
        if self.waiting < 0.01:
            return "nothing"
        rest = 1 - self.seats - self.kv
        return max(("max_num_seqs", self.seats), ("KV memory", self.kv), ("prefill", rest), key=lambda pair: pair[1])[0]


def load_of(result: Result, max_num_seqs: int) -> Load:
    """The shares of a run whose engines have `max_num_seqs` places each."""
    log = result.stretches
    if not len(log):
        return Load(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    width = log[:, 1] - log[:, 0]
    engines = len(np.unique(log[:, 8]))
    span = (float(log[:, 1].max()) - float(log[:, 0].min())) * engines or 1.0
    waits = log[:, 6] > 0
    seats = waits & (log[:, 5] >= max_num_seqs)
    kv = waits & ~seats & (log[:, 7] >= FULL_POOL)
    waiting = float(width[waits].sum())
    shares = [float(width[which].sum()) / waiting if waiting else 0.0 for which in (seats, kv)]
    prefill = float(width[log[:, 4] > 0].sum())
    return Load(
        min(1.0, float(width.sum()) / span),
        min(1.0, prefill / span),
        min(1.0, waiting / span),
        shares[0],
        shares[1],
        float(log[:, 7].max()),
    )
