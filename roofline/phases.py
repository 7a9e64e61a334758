"""Closed answers: the prefill/decode table, the batch curve with its knee, ridges and crossover lengths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.errors import InputError
from roofline.ledger import AS_SHIPPED, DEFAULT, SINGLE, Conventions, Ledger, Parallel, Precision, build_ledger
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing.bound import step_bound
from roofline.timing.estimate import Estimate
from roofline.timing.peaks import effective_peak
from roofline.timing.step import StepPrice, price_step

LARGEST_BATCH = 1 << 20
LONGEST_CONTEXT = 1 << 27


@dataclass(frozen=True)
class Setup:
    """What is being asked about: a model on a device, as it is run."""

    model: Model
    hardware: Hardware
    parallel: Parallel = SINGLE
    precision: Precision = AS_SHIPPED
    engine: str = "vllm"
    conventions: Conventions = DEFAULT

    def price(self, batch: Batch) -> StepPrice:
        """price_step with these settings."""
        return price_step(
            self.model,
            batch,
            self.hardware,
            parallel=self.parallel,
            precision=self.precision,
            conventions=self.conventions,
            engine=self.engine,
        )

    def count(self, batch: Batch) -> Ledger:
        """The ledger of a pass, all pipeline stages one after the other."""
        stages = (
            build_ledger(self.model, batch, parallel=self.parallel, precision=self.precision, conventions=self.conventions, stage=stage)
            for stage in range(self.parallel.pp)
        )
        return Ledger(tuple(op for stage in stages for op in stage))

    def per_pass(self, sequences: NDArray[np.float64] | float) -> NDArray[np.float64]:
        """Sequences in one pass of one rank when the whole replica holds `sequences`: split over dp and pipeline micro-batches."""
        return np.asarray(np.ceil(np.asarray(sequences, dtype=np.float64) / (self.parallel.dp * self.parallel.pp)))


@dataclass(frozen=True)
class Phase:
    """One row of the phase table: a prefill or one decode step of `batch` sequences.

    new_tokens, context: per sequence. Bytes and FLOPs are of one GPU (its busiest data-parallel rank, all stages summed).
    ridge: FLOP/B of the device for the type that does most of the work. tokens_per_s: of the whole replica, expected time.
    """

    name: str
    batch: int
    new_tokens: int
    context: int
    flops: float
    weight_bytes: float
    kv_read_bytes: float
    kv_write_bytes: float
    activation_bytes: float
    intensity: float
    ridge: float
    limited_by: str
    serial_s: float
    time: Estimate
    tokens_per_s: float
    linear_flops: float
    attention_flops: float
    assumptions: tuple[str, ...]

    @property
    def bytes(self) -> float:
        """All memory traffic of the pass."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.activation_bytes


def phase(setup: Setup, name: str, *, batch: int, new_tokens: int, past: int) -> Phase:
    """The row of `batch` sequences that each compute new_tokens on `past` cached ones.

    With pipeline stages a decode step is one turn of all micro-batches: pp passes of batch/pp sequences.
    """
    if batch < 1 or new_tokens < 1 or past < 0:
        raise InputError(f"batch and new tokens must be at least 1 and context not negative, got {batch}, {new_tokens}, {past}")
    price = setup.price(Batch.uniform(setup.per_pass(batch), new_tokens, past))
    attention = sum(op.count * float(op.flops_each) for ledger in price.ledgers for op in ledger if op.kind.endswith("attention"))
    flops, total = float(price.total("flops")), float(price.total("bytes"))
    expected = float(price.estimate.expected_s)
    return Phase(
        name=name,
        batch=batch,
        new_tokens=new_tokens,
        context=past,
        flops=flops,
        weight_bytes=float(price.total("weight_bytes")),
        kv_read_bytes=float(price.total("kv_read_bytes")),
        kv_write_bytes=float(price.total("kv_write_bytes")),
        activation_bytes=float(price.total("activation_bytes")),
        intensity=flops / total,
        ridge=ridge(setup.hardware, _main_compute(price)),
        limited_by=price.limited_by,
        serial_s=float(price.serial_s),
        time=_scalar(price.estimate),
        tokens_per_s=batch * new_tokens / expected,
        linear_flops=flops - attention,
        attention_flops=attention,
        assumptions=price.assumptions,
    )


def _scalar(estimate: Estimate) -> Estimate:
    return Estimate(float(estimate.bound_s), float(estimate.expected_s), float(estimate.low_s), float(estimate.high_s))


def _main_compute(price: StepPrice) -> str:
    """The compute type that does most of the FLOPs of a pass."""
    flops: dict[str, float] = {}
    for ledger in price.ledgers:
        for op in ledger:
            if op.compute:
                flops[op.compute] = flops.get(op.compute, 0.0) + op.count * float(op.flops_each)
    return max(flops, key=flops.__getitem__)


def ridge(hardware: Hardware, compute: str) -> float:
    """FLOP per byte at which compute time equals memory time: effective peak of the type over memory bandwidth."""
    return effective_peak(hardware, compute)[0] / hardware.memory_bandwidth


@dataclass(frozen=True)
class BatchCurve:
    """Decode over batch sizes at one context: arrays of one length, times in seconds.

    tokens_per_s: output tokens of the replica per expected second. plateau_tokens_per_s: what it tends to as the batch grows.
    knee, eighty: the smallest batches that reach half and 80 % of that plateau (None: not below LARGEST_BATCH).
    """

    context: int
    batch: NDArray[np.float64]
    tpot: Estimate
    tokens_per_s: NDArray[np.float64]
    plateau_tokens_per_s: float
    knee: int | None
    eighty: int | None


def batch_curve(setup: Setup, context: int, batches: list[int]) -> BatchCurve:
    """TPOT and throughput of decode at `context` cached tokens for each batch size."""
    sizes = np.asarray(batches, dtype=np.float64)
    price = setup.price(Batch.decode(setup.per_pass(sizes), context))
    expected = np.asarray(price.estimate.expected_s)

    def rate(batch: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(batch / setup.price(Batch.decode(setup.per_pass(batch), context)).estimate.expected_s)

    octaves = np.exp2(np.arange(LARGEST_BATCH.bit_length(), dtype=np.float64))
    rates = rate(octaves)
    plateau = float(rates[-1])

    def reaches(share: float) -> int:
        """The first batch that reaches a share of the plateau: its octave first, then the batch."""
        i = int(np.argmax(rates >= share * plateau))
        return _between(lambda b: rate(b) >= share * plateau, int(octaves[i - 1]) if i else 0, int(octaves[i]))

    return BatchCurve(
        context=context,
        batch=sizes,
        tpot=price.estimate,
        tokens_per_s=sizes / expected,
        plateau_tokens_per_s=plateau,
        knee=reaches(0.5),
        eighty=reaches(0.8),
    )


def latency_limited_batch(setup: Setup, context: int, tpot_s: float) -> int:
    """The largest batch whose expected decode step at `context` takes at most tpot_s; 0 if even one sequence takes longer."""

    def too_slow(batch: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.asarray(setup.price(Batch.decode(setup.per_pass(batch), context)).estimate.expected_s > tpot_s)

    first = _first(too_slow, LARGEST_BATCH)
    return LARGEST_BATCH if first is None else first - 1


def attention_crossover(setup: Setup, share: float = 0.5) -> int | None:
    """Prompt length from which attention is at least `share` of the FLOPs of a prefill (None: never, as with small windows)."""

    def beyond(tokens: NDArray[np.float64]) -> NDArray[np.bool_]:
        ledger = setup.count(Batch.prefill(1, tokens))
        attention = Ledger(tuple(op for op in ledger if op.kind.endswith("attention")))
        return np.asarray(attention.total("flops") >= share * ledger.total("flops"))

    return _first(beyond, LONGEST_CONTEXT)


def kv_crossover(setup: Setup, batch: int) -> int | None:
    """Context from which a decode step of `batch` sequences reads more KV than weights (None: never)."""

    def beyond(context: NDArray[np.float64]) -> NDArray[np.bool_]:
        ledger = setup.count(Batch.decode(setup.per_pass(batch), context))
        return np.asarray(ledger.total("kv_read_bytes") > ledger.total("weight_bytes"))

    return _first(beyond, LONGEST_CONTEXT)


def compute_bound_prompt(setup: Setup) -> int | None:
    """Prompt length from which the hard bound of a single prefill is compute, not memory or link (None: never)."""

    def computes(tokens: NDArray[np.float64]) -> NDArray[np.bool_]:
        bound = step_bound(setup.count(Batch.prefill(1, tokens)), setup.hardware)
        return np.asarray(bound.compute_s >= np.maximum(bound.memory_s, bound.link_s))

    return _first(computes, LONGEST_CONTEXT)


_POINTS = 256  # pricing this many at once takes little longer than one


def _first(holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]], largest: int) -> int | None:
    """The smallest positive integer up to `largest` at which a monotone condition holds; None if it does not even there."""
    return _between(holds, 0, largest) if np.all(holds(np.asarray([float(largest)]))) else None


def _between(holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]], low: int, high: int) -> int:
    """The smallest integer over `low` at which a monotone condition holds that holds at `high`.

    Each round asks about _POINTS points between the ends at once.
    """
    while high - low > 1:
        step = -(-(high - low) // _POINTS)
        points = np.append(np.arange(low + step, high, step), high).astype(np.float64)
        first = int(np.argmax(np.broadcast_to(holds(points), points.shape)))
        low, high = (int(points[first - 1]) if first else low), int(points[first])
    return high
