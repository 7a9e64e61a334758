"""One case from operands to record: correct first, then warm, then timed until the rule is content."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from microbench import METHOD, caches
from microbench.device import Device
from microbench.stopping import Rule, flags
from microbench.timers import Call, Timer
from roofline.errors import UntrustworthyError
from roofline.ledger import Op
from roofline.records import Measurement

ROOF = 1.02  # of the datasheet: above it the measurement is wrong, not the device
BATCH_S = 0.05  # samples are taken in groups of about this long, the rule is asked between groups


@dataclass(frozen=True)
class Trial:
    """One set of operands and the call on it.

    reads, writes: the tensors that it touches. error: relative norm of the difference to float64 after a call, NaN if the output
    has NaN or infinity; None where there is nothing to compare.
    """

    call: Call
    reads: Sequence[Any] = ()
    writes: Sequence[Any] = ()
    error: Callable[[], float] | None = None


@dataclass(frozen=True)
class Case:
    """One thing to time.

    kind: the record's op. op: what the ledger says that it does (FLOPs, bytes, peak); set_bytes: operands of one set, which
    decide how many rotate. build: makes a set on the device. tolerance: of Trial.error. eager: launches are part of what is
    timed (on CUDA nothing is captured).
    """

    kind: str
    shape: Mapping[str, int | str]
    dtype: str
    cold: bool
    op: Op
    build: Callable[[Device], Trial]
    tolerance: float = 0.0
    eager: bool = False

    @property
    def id(self) -> str:
        """Text that tells the case from every other: what a resumed sweep compares."""
        sizes = ",".join(f"{key}={value}" for key, value in self.shape.items())
        return f"{self.kind}/{self.dtype}/{sizes}/{'cold' if self.cold else 'hot'}"

    @property
    def set_bytes(self) -> float:
        """Bytes of one set of operands, as the ledger counts them."""
        return float(self.op.bytes_each)


def measure(
    case: Case,
    device: Device,
    rule: Rule,
    environment: str,
    *,
    timer: Timer | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Measurement:
    """The measurement of `case`.

    Raises UntrustworthyError for a wrong result or a rate above the datasheet's, and whatever the device raises when it is
    out of memory.
    """
    sets = caches.ring_length(device.kind, device.cache_bytes, case.set_bytes) if case.cold else 1
    short = case.cold and not caches.is_cold(device.kind, device.cache_bytes, case.set_bytes, sets)
    timer = timer or device.timer(eager=case.eager, flush=short)
    before = device.state()
    started = clock()
    trials = [case.build(device)]
    first_call_s = timer.once(trials[0].call)
    notes: dict[str, Any] = {"first_call_s": first_call_s, "error": _checked(case, trials[0])}
    trials += [case.build(device) for _ in range(sets - 1)]
    ring = [trial.call for trial in trials]
    rough, used = _warm(ring, timer, rule, clock)
    oldest = used % len(ring)  # the sampler goes on where the warm-up stopped: its last sets are still in the cache
    sampler = timer.sampler(ring[oldest:] + ring[:oldest], max(1, math.ceil(timer.least_s / max(rough, 1e-9))))
    sampling = clock()
    samples, stop = _sample(sampler, rough, rule, clock)
    sampling = clock() - sampling
    notes |= {
        "case": case.id,
        "flops": float(case.op.flops_each),
        "bytes": case.set_bytes,
        "compute": case.op.compute,
        "sets": sets,
        "stop": stop,
        "seconds": clock() - started,
        "sampling_s": sampling,
        "before": before,
        "after": device.state(),
        **flags(samples),
    }
    if short and not getattr(timer, "flush", None):
        notes["not_cold"] = f"{sets} sets of {case.set_bytes:.3g} B do not pass the cache"
    found = Measurement(
        case.kind,
        dict(case.shape),
        device.id,
        case.dtype,
        tuple(samples),
        f"{METHOD}, {timer.name}",
        environment,
        software={"torch": torch.__version__},
        cold=case.cold,
        notes=notes,
    )
    check_roof(found, device)
    return found


def _checked(case: Case, trial: Trial) -> float | None:
    """The error of the trial's result. Raises UntrustworthyError when it is not one."""
    if trial.error is None:
        return None
    error = trial.error()
    if not error <= case.tolerance:
        raise UntrustworthyError(f"{case.id}: wrong result, {error:.3g} off float64 where {case.tolerance:.3g} is allowed")
    return error


def _warm(ring: Sequence[Call], timer: Timer, rule: Rule, clock: Callable[[], float]) -> tuple[float, int]:
    """Calls for rule.warm_s and at least twice: the rough time of one, and how many sets of the ring have been used.

    The first set was used before, by the first call.
    """
    end = clock() + rule.warm_s
    times: list[float] = []
    while len(times) < 2 or clock() < end:
        times.append(timer.once(ring[(len(times) + 1) % len(ring)]))
    return statistics.median(times), len(times) + 1


def _sample(sampler: Callable[[int], list[float]], rough: float, rule: Rule, clock: Callable[[], float]) -> tuple[list[float], str]:
    start, samples = clock(), list[float]()
    each = max(rough, 1e-6)
    while True:
        before = clock()
        group = max(1, min(1000, math.floor(min(BATCH_S, rule.budget_s / 4) / each)))
        samples += [round(seconds, 12) for seconds in sampler(group)]  # picoseconds: no clock here knows more
        each = (clock() - before) / group  # what a sample costs, not what it reads: bursts and graphs are longer than a call
        if stop := rule.verdict(samples, clock() - start):
            return samples, stop


def check_roof(found: Measurement, device: Device) -> None:
    """Raises UntrustworthyError when a measurement is above ROOF × the datasheet's peak, or, cold, × its bandwidth.

    A profile that was itself measured is no such roof: the next sample may honestly be faster.
    """
    profile, notes = device.profile, found.notes
    if profile is None or (profile.figures and profile.provenance("memory_bandwidth").kind == "measured"):
        return
    peak = profile.peaks.get(notes["compute"])
    if peak and notes["flops"] / found.median_s > ROOF * peak:
        ratio = notes["flops"] / found.median_s / peak
        raise UntrustworthyError(
            f"{notes['case']}: {ratio:.2f} of the {notes['compute']} peak of {profile.id}: the count or the clock is wrong"
        )
    if found.cold and notes["bytes"] / found.median_s > ROOF * profile.memory_bandwidth:
        ratio = notes["bytes"] / found.median_s / profile.memory_bandwidth
        raise UntrustworthyError(
            f"{notes['case']}: {ratio:.2f} of the bandwidth of {profile.id}: the operands were in a cache, or the count is wrong"
        )
