"""What a change gains in each phase: weight and KV formats (S17), speculation over the batch (S18), tensor parallelism (S21)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from roofline.batch import Batch
from roofline.capacity import memory_plan
from roofline.errors import InputError, ShardError
from roofline.ledger import Precision
from roofline.phases import Setup
from roofline.planning.load import Load
from roofline.profiles.model import Model
from roofline.serving.drafting import speculate
from roofline.serving.speculation import Drafter

FORMATS: tuple[tuple[str | None, str | None], ...] = (
    ("w8a16", None), ("w4a16", None), ("int8", None), ("fp8", None), ("nvfp4", None), (None, "fp8"), ("fp8", "fp8"),
)  # fmt: skip
BATCHES = (1, 4, 16, 64, 256)


@dataclass(frozen=True)
class PhaseGain:
    """One change against the setup as it is: speed-ups (time before / time after) of a prefill and of a decode step at a small and a
    large batch, and KV tokens of a replica against before. None: nothing fits before or after."""

    change: str
    prefill: float
    decode_small: float
    decode_large: float
    kv_tokens: float | None


def quantisation_gains(setup: Setup, load: Load, *, large: int = 64) -> list[PhaseGain]:
    """Weight formats and KV formats by phase; speed and capacity are told apart (S17).

    Formats that the device has no units for run as weight-only, so their prefill gains nothing. Those that the model already has
    are left out, as are those that cannot be priced.
    """
    gains = []
    for weights, kv in FORMATS:
        precision = Precision(weights=weights or setup.precision.weights, kv=kv or setup.precision.kv)
        if precision == setup.precision:
            continue
        name = " + ".join(part for part in (f"{weights} weights" if weights else "", f"{kv} KV" if kv else "") if part)
        try:
            gains.append(_gain(name, setup, replace(setup, precision=precision), load, large))
        except InputError:
            continue
    return gains


def parallel_gains(setup: Setup, load: Load, *, sizes: Sequence[int] = (2, 4, 8), large: int = 64) -> list[PhaseGain]:
    """Tensor parallelism by phase (S21): prefill scales with the ranks, decode less, as all-reduces and launches do not shrink."""
    gains = []
    for tp in sizes:
        parallel = replace(setup.parallel, tp=setup.parallel.tp * tp, ep=setup.parallel.ep * tp if setup.parallel.ep > 1 else 1)
        try:
            parallel.check(setup.model)
            gains.append(_gain(f"TP{parallel.tp}", setup, replace(setup, parallel=parallel), load, large))
        except ShardError:
            continue
    return gains


def _gain(name: str, before: Setup, after: Setup, load: Load, large: int) -> PhaseGain:
    batches = (
        Batch.prefill(1, load.input_len), Batch.decode(1, load.mean_context), Batch.decode(before.per_pass(large), load.mean_context),
    )  # fmt: skip
    prefill, small, wide = (seconds(before, batch) / seconds(after, batch) for batch in batches)
    tokens = [_kv_tokens(setup) for setup in (before, after)]
    return PhaseGain(name, prefill, small, wide, tokens[1] / tokens[0] if all(tokens) else None)


def seconds(setup: Setup, batch: Batch) -> float:
    """Expected time of a pass."""
    return float(np.asarray(setup.price(batch).estimate.expected_s))


def _kv_tokens(setup: Setup) -> int:
    plan = memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, engine=setup.engine)
    return plan.kv_tokens_total if plan.fits else 0


@dataclass(frozen=True)
class SpeculationPoint:
    """Decode at one batch: step without drafts, a step that checks them, drafting, tokens per step, and the speed-up."""

    batch: int
    step_s: float
    verify_s: float
    draft_s: float
    tokens_per_step: float

    @property
    def speedup(self) -> float:
        """Tokens per second of a sequence against decoding without drafts."""
        return self.tokens_per_step * self.step_s / (self.verify_s + self.draft_s)

    @property
    def break_even_acceptance_tokens(self) -> float:
        """Tokens that a step must emit on average to be worth its time."""
        return (self.verify_s + self.draft_s) / self.step_s


@dataclass(frozen=True)
class SpeculationCurve:
    """Speculation over the batch (S18). limit: the largest batch at which it is at least as fast as without (None: at no batch;
    `most` if at all). kv_tokens_lost: tokens of the replica's KV pool that the drafter's weights and KV take."""

    tokens: int
    acceptance: float
    points: tuple[SpeculationPoint, ...]
    limit: int | None
    most: int
    kv_tokens_lost: int


def speculation_curve(
    setup: Setup,
    load: Load,
    tokens: int,
    acceptance: float,
    *,
    draft: Model | str = "head",
    batches: Sequence[int] = BATCHES,
    most: int = 1024,
) -> SpeculationCurve:
    """The gain of `tokens` drafts per step over the batch, and where it ends. draft: see serving.drafting.speculate."""
    spec = speculate(
        setup.model, setup.hardware, tokens, acceptance, draft=draft, parallel=setup.parallel, precision=setup.precision,
        engine=setup.engine, context=load.mean_context,
    )  # fmt: skip
    points = tuple(_speculating(setup, load, spec.drafter, batch) for batch in batches)
    without = memory_plan(setup.model, setup.hardware, setup.parallel, setup.precision, engine=setup.engine)
    additions = () if spec.addition is None else (spec.addition,)
    drafting = memory_plan(
        setup.model, setup.hardware, setup.parallel, setup.precision, engine=setup.engine, spec_tokens=tokens, additions=additions
    )
    lost = without.kv_tokens_total - drafting.kv_tokens_total
    return SpeculationCurve(tokens, acceptance, points, _break_even(setup, load, spec.drafter, most), most, lost)


def _speculating(setup: Setup, load: Load, drafter: Drafter, batch: int) -> SpeculationPoint:
    """The check is a decode of batch · (1 + drafts) rows whose KV is read once: linear layers at all rows, attention at `batch`."""
    plain = Batch.decode(setup.per_pass(batch), load.mean_context)
    wide = Batch.decode(setup.per_pass(batch) * (1 + drafter.tokens), 0)
    narrow = Batch.decode(setup.per_pass(batch), 0)
    step = seconds(setup, plain)
    verify = step + max(0.0, seconds(setup, wide) - seconds(setup, narrow))
    return SpeculationPoint(batch, step, verify, drafter.draft_time(batch), drafter.tokens_per_step())


def _break_even(setup: Setup, load: Load, drafter: Drafter, most: int) -> int | None:
    """The largest batch up to `most` that gains, by halving: the gain falls as the batch grows."""

    def gains(batch: int) -> bool:
        return _speculating(setup, load, drafter, batch).speedup >= 1

    if not gains(1):
        return None
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if gains(middle) else (low, middle)
    return low
