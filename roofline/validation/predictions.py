"""What is expected of a kernel or of a step of the engine, from profiles and constants alone: nothing here can see a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from roofline.batch import Batch
from roofline.ledger import Conventions, Op, Precision, build_ledger
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing import generic
from roofline.timing.bound import op_bound_s, step_bound
from roofline.timing.calibrated import as_run, op_times
from roofline.timing.host import PREFIX

UNCALIBRATED, SHIPPED, THIS_RUN = "uncalibrated", "shipped", "this_run"
BASES = (UNCALIBRATED, SHIPPED, THIS_RUN)
_CORRELATION = 0.5  # share of a kernel's error that it has in common with the others of a step, as in timing.calibrated


@dataclass(frozen=True)
class Prediction:
    """Seconds of one target before it is measured: hard bound, expectation, 80 % interval.

    target: id of the kernel case or step; group: what it is judged with; basis: one of BASES. parts: of a step, seconds by op
    name (all layers together), and what the engine adds as "engine".
    """

    target: str
    group: str
    basis: str
    bound_s: float
    expected_s: float
    low_s: float
    high_s: float
    parts: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The record as one JSON object."""
        return {"kind": "prediction", **asdict(self)}


@dataclass(frozen=True)
class Step:
    """A step of the engine: `batch` sequences with `new` tokens on `past` cached ones each, and whole `prompts` of these lengths."""

    batch: int
    new: int
    past: int
    prompts: tuple[int, ...] = ()

    @property
    def phase(self) -> str:
        """prefill, decode, or mixed with prompts beside the decodes."""
        return "mixed" if self.prompts else "decode" if self.new == 1 else "prefill"

    @property
    def id(self) -> str:
        """Text that tells it from every other step."""
        beside = f",prompts={'+'.join(map(str, self.prompts))}" if self.prompts else ""
        return f"{self.phase}/batch={self.batch},new={self.new},past={self.past}{beside}"

    @property
    def tokens(self) -> int:
        """New tokens of all sequences."""
        return self.batch * self.new + sum(self.prompts)

    @property
    def groups(self) -> int:
        """Groups of rows with equally many new tokens: each attends in a call of its own."""
        return len({self.new, *self.prompts})

    @property
    def cached(self) -> int:
        """Positions that are gathered from the paged cache: none in a prefill that starts a sequence."""
        return self.batch * (self.past + self.new) if self.past else 0

    @property
    def as_batch(self) -> Batch:
        """As the ledger takes it."""
        if self.prompts:
            return Batch.of([self.new] * self.batch + list(self.prompts), [self.past] * self.batch + [0] * len(self.prompts))
        return Batch.decode(self.batch, self.past) if self.new == 1 else Batch.prefill(self.batch, self.new, self.past)


@dataclass(frozen=True)
class StepConstants:
    """What the reference engine makes of its kernels.

    seconds = fixed + per_token · new tokens + scale · kernels + per_cached · gathered + per_group · groups of equally many new tokens
    beyond the first. spread: relative standard deviation of the steps that it was fitted to.
    """

    fixed_s: float = 0.0
    per_token_s: float = 0.0
    scale: float = 1.0
    per_cached_s: float = 0.0
    per_group_s: float = 0.0
    spread: float = 0.1

    def added_s(self, tokens: int, cached: int, groups: int, kernels_s: float) -> float:
        """Seconds beyond the kernels as they run alone."""
        line = self.fixed_s + self.per_token_s * tokens + self.per_cached_s * cached + self.per_group_s * (groups - 1)
        return line + (self.scale - 1) * kernels_s


@dataclass(frozen=True)
class Basis:
    """Where predictions come from. name: one of BASES; source: in words; step: of the engine."""

    name: str
    hardware: Hardware
    source: str
    step: StepConstants = StepConstants()

    def op_s(self, op: Op) -> tuple[float, float, float]:
        """Expected, low and high seconds of one run of `op`, operands cold."""
        if self.name == UNCALIBRATED:
            guess = float(generic.expected_op_s(op, self.hardware.model_copy(update={"calibration": ()})))
            below, above = generic.SPREAD
            return guess, guess * below, guess * above
        times = op_times(op, self.hardware, "torch")
        expected, low, high = (float(np.max(t)) for t in (times.expected_s, times.low_s, times.high_s))
        for block in self.hardware.calibration:
            if block.family == PREFIX + op.kind and block.dtype in (op.weight_dtype, op.compute) and "all" in block.interval_log_quantiles:
                below, above = block.interval_log_quantiles["all"]
                return expected, expected * float(np.exp(min(below, 0.0))), expected * float(np.exp(max(above, 0.0)))
        return expected, low, high


def kernel_prediction(target: str, op: Op, basis: Basis) -> Prediction:
    """One run of a ledger op. Raises InputError when the profile lacks the peak that it needs."""
    expected, low, high = basis.op_s(op)
    bound = float(np.max(op_bound_s(op, basis.hardware)))
    group = "attention" if op.kind.endswith("attention") else op.kind
    return Prediction(target, group, basis.name, bound, expected, max(low, bound), high)


def step_prediction(step: Step, model: Model, precision: Precision, basis: Basis) -> Prediction:
    """A step of the engine: its kernels one after the other and what the engine adds; sampling and scheduling are not in it."""
    ledger = build_ledger(model, step.as_batch, precision=precision, conventions=Conventions(elementwise=True))
    ops = as_run(ledger)
    times = [(op, op.count, basis.op_s(op)) for op in ops]
    parts: dict[str, float] = {}
    for op, count, (expected, _, _) in times:
        parts[op.name] = parts.get(op.name, 0.0) + count * expected
    kernels = sum(parts.values())
    parts["engine"] = basis.step.added_s(step.tokens, step.cached, step.groups, kernels)
    bound = float(np.max(step_bound(ledger.without_elementwise(), basis.hardware).step_s))
    whole = max(sum(parts.values()), bound)
    below = _width([count * (expected - low) for _, count, (expected, low, _) in times]) / kernels
    above = _width([count * (high - expected) for _, count, (expected, _, high) in times]) / kernels
    low, high = (1.2816 * basis.step.spread if basis.name == THIS_RUN else 0.0) * np.ones(2)
    low, high = whole * (1 - np.hypot(below, low)), whole * (1 + np.hypot(above, high))
    return Prediction(step.id, step.phase, basis.name, bound, whole, max(float(low), bound), float(high), parts)


def _width(widths: Sequence[float]) -> float:
    total, quadrature = sum(widths), float(np.sqrt(np.sum(np.square(widths))))
    return _CORRELATION * total + (1 - _CORRELATION) * quadrature


class LineTimer:
    """A kernel timer of roofline.timing and what the engine adds, as the simulator asks for step times."""

    def __init__(self, kernels: Any, constants: StepConstants) -> None:
        self._kernels, self._constants = kernels, constants

    def step_time(self, decodes: int, context: int, chunks: Sequence[tuple[int, int]]) -> float:
        """Seconds of one step; see roofline.serving.instance.StepTimer."""
        if not chunks:
            base, slope, _ = self.decode_line(decodes, context)
            return base + slope * context
        kernels = self._kernels.step_time(decodes, context, chunks)
        tokens = decodes + sum(new for new, _ in chunks)
        cached = context + decodes + sum(new + past for new, past in chunks if past)
        groups = len({new for new, _ in chunks} | ({1} if decodes else set()))
        return float(kernels + self._constants.added_s(tokens, cached, groups, kernels))

    def decode_line(self, decodes: int, context: int) -> tuple[float, float, int]:
        """The line of plain decode steps."""
        base, slope, last = self._kernels.decode_line(decodes, context)
        c = self._constants
        return c.scale * base + c.fixed_s + (c.per_token_s + c.per_cached_s) * decodes, c.scale * slope + c.per_cached_s, last

    def host_time(self, rows: int) -> float:
        """The engine schedules and computes in turns; its work is in the constants."""
        return 0.0
