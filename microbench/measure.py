"""One case from operands to record: correct first, then warm, then timed until the rule is content."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    has NaN or infinity; None where there is nothing to compare. rival: name of another library and its call that does the same; the
    two take turns, sample by sample, so that whatever the machine does meanwhile meets both.
    """

    call: Call
    reads: Sequence[Any] = ()
    writes: Sequence[Any] = ()
    error: Callable[[], float] | None = None
    rival: tuple[str, Call] | None = None


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


def measure(case: Case, device: Device, rule: Rule, environment: str, *, clock: Callable[[], float] = time.perf_counter) -> Measurement:
    """The measurement of `case`.

    Raises UntrustworthyError for a wrong result or a rate above the datasheet's, and whatever the device raises when it is
    out of memory.
    """
    sets = caches.ring_length(device.kind, device.cache_bytes, case.set_bytes) if case.cold else 1
    short = case.cold and not caches.is_cold(device.kind, device.cache_bytes, case.set_bytes, sets)
    timer = device.timer(eager=case.eager, flush=short)
    notes: dict[str, Any] = {"case": case.id, "flops": float(case.op.flops_each), "bytes": case.set_bytes, "compute": case.op.compute}
    notes["before"] = device.state()
    started = clock()
    first = case.build(device)
    notes |= {"first_call_s": timer.once(first.call), "error": _checked(case, first)}
    if first.rival:  # an odd number of sets: each gets both calls as the two take turns around the ring
        sets, rule = sets | 1, replace(rule, least_samples=2 * rule.least_samples, most_samples=2 * rule.most_samples)
    ring = _ring([first, *(case.build(device) for _ in range(sets - 1))])
    rough, used = _warm(ring, timer, rule, clock)
    oldest = used % len(ring)  # the sampler goes on where the warm-up stopped: its last sets are still in the cache
    inner = 1 if first.rival else max(1, math.ceil(timer.least_s / max(rough, 1e-9)))
    sampling = clock()
    samples, stop = _sample(timer.sampler(ring[oldest:] + ring[:oldest], inner), rough, rule, clock)
    notes |= {"sets": sets, "stop": stop, "seconds": clock() - started, "sampling_s": clock() - sampling, "after": device.state()}
    if first.rival:
        notes["rival"] = {"name": first.rival[0], "samples_s": samples[1 - oldest % 2 :: 2]}
        samples = samples[oldest % 2 :: 2]
    if short and not getattr(timer, "flush", None):
        notes["not_cold"] = f"{sets} sets of {case.set_bytes:.3g} B do not pass the cache"
    elif case.cold and not device.passes_caches():
        notes["not_cold"] = "too little memory for operands that pass the cache"
    found = Measurement(
        case.kind, dict(case.shape), device.id, case.dtype, tuple(samples), f"{METHOD}, {timer.name}", environment,
        software={"torch": torch.__version__}, cold=case.cold, notes=notes | flags(samples),
    )  # fmt: skip
    check_roof(found, device)
    return found


def _ring(trials: Sequence[Trial]) -> list[Call]:
    """The calls in the order of the sets; with a rival twice around, every other call the rival's."""
    if trials[0].rival is None:
        return [trial.call for trial in trials]
    return [trial.rival[1] if trial.rival and turn % 2 else trial.call for turn, trial in enumerate([*trials, *trials])]


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
        group = math.floor(min(BATCH_S, rule.budget_s / 4) / each)
        group = max(1, min(group, rule.most_samples - len(samples)))
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
