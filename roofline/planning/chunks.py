"""The size of prefill chunks: smooth decoding against fast first tokens (S14)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from roofline.phases import Setup
from roofline.planning.load import Load
from roofline.planning.rehearsal import in_flight, replica
from roofline.serving.statistics import Result, Summary

CHUNKS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_MOST_CHUNKS = 256


@dataclass(frozen=True)
class ChunkPoint:
    """A token budget per step and what a simulated load sees under it: seconds, output tokens per second of the replica.

    TTFT and TPOT are those of the requests after the first, which all come at once to an empty server; gaps and rate are the whole run's.
    """

    chunk: int
    ttft_mean_s: float
    ttft_p99_s: float
    tpot_mean_s: float
    tpot_p99_s: float
    itl_p99_s: float
    output_tokens_per_s: float

    @classmethod
    def of(cls, chunk: int, result: Result, at_once: int) -> ChunkPoint:
        """The point of one run whose first `at_once` requests come together."""
        ttft, tpot = Summary.of(result.ttft_s[at_once:]), Summary.of(result.tpot_s[at_once:])
        rate = float(result.output_tokens.sum()) / (result.makespan_s or float("inf"))
        return cls(chunk, ttft.mean, ttft.p99, tpot.mean, tpot.p99, result.itl.p99, rate)


def chunk_sweep(
    setup: Setup, load: Load, concurrency: int, *, sizes: Sequence[int] | None = None, **memory_options: Any
) -> tuple[list[ChunkPoint], bool]:
    """(a point per token budget, whether the load fits): `concurrency` requests in flight, 80 … 100 % of the load's lengths.

    sizes: token budgets (max_num_batched_tokens); CHUNKS unless given, without those that cut a prompt into more than
    _MOST_CHUNKS pieces or leave no room beside the decodes. The KV pool is the same for all of them.
    """
    deployment, fits = replica(setup, load, concurrency, **memory_options)
    least = max(load.input_len // _MOST_CHUNKS, 2 * concurrency)
    chosen = sizes or [size for size in CHUNKS if size >= least] or [CHUNKS[-1], 2 * CHUNKS[-1]]
    workload = in_flight(load, concurrency)
    policy = replace(deployment.policy, kv_blocks=deployment.kv_blocks(load.longest))
    points = []
    for size in chosen:
        settings = replace(deployment.memory.settings, max_num_batched_tokens=size, max_num_seqs=min(size, deployment.max_num_seqs))
        budgeted = replace(deployment, policy=policy, memory=replace(deployment.memory, settings=settings))
        points.append(ChunkPoint.of(size, budgeted.run(workload), concurrency))
    return points, fits


def keeping(points: Sequence[ChunkPoint], *, gap_s: float | None = None, ttft_s: float | None = None) -> list[ChunkPoint]:
    """The points whose 99th percentile between two tokens is within gap_s and whose 99th percentile of TTFT is within ttft_s."""
    return [point for point in points if _within(point.itl_p99_s, gap_s) and _within(point.ttft_p99_s, ttft_s)]


def _within(seconds: float, limit_s: float | None) -> bool:
    return limit_s is None or seconds <= limit_s
