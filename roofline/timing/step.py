"""One whole forward pass in time: hard bound, expectation and interval."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from roofline.batch import Batch
from roofline.ledger import AS_SHIPPED, DEFAULT, SINGLE, Conventions, Ledger, Parallel, Precision, build_ledger
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing import peaks
from roofline.timing.bound import StepBound, link_bandwidth, step_bound
from roofline.timing.calibrated import KernelTimes, as_run, pass_times
from roofline.timing.engines import EngineStep, engine_step
from roofline.timing.estimate import Estimate


@dataclass(frozen=True)
class StepPrice:
    """A pass of one replica: all pipeline stages one after the other.

    ledgers: one per stage, as counted (what the bound prices). kernels_s: sum of expected kernel times; host_s: what the
    engine adds to or saves of them. calibration: the constants that priced the kernels. assumptions: sentences on what was assumed.
    """

    estimate: Estimate
    bounds: tuple[StepBound, ...]
    ledgers: tuple[Ledger, ...]
    kernels_s: Array
    host_s: Array
    calibration: tuple[str, ...]
    assumptions: tuple[str, ...]

    def total(self, what: str) -> Array:
        """Sum of a ledger total over the stages (see Ledger.total)."""
        return sum((ledger.total(what) for ledger in self.ledgers), start=0.0)

    @property
    def limited_by(self) -> str:
        """Which resource sets the hard bound (scalar passes only): compute, memory or link."""
        sums = {name: sum(float(getattr(b, f"{name}_s")) for b in self.bounds) for name in ("compute", "memory", "link")}
        return max(sums, key=sums.__getitem__)

    @property
    def serial_s(self) -> Array:
        """Sum of op bounds: no overlap between ops."""
        return sum((bound.serial_s for bound in self.bounds), start=0.0)


def price_step(
    model: Model,
    batch: Batch,
    hardware: Hardware,
    *,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    conventions: Conventions = DEFAULT,
    engine: str = "vllm",
) -> StepPrice:
    """Time of one pass of `batch` (the sequences of one data-parallel rank and one pipeline micro-batch), cold operands.

    The pass walks through all pipeline stages. Not counted: queueing, tokenisation, the network, sampling beyond the head.
    Raises ShardError and InputError.
    """
    constants = engine_step(engine)
    with_elementwise = replace(conventions, elementwise=True)
    whole = [
        build_ledger(model, batch, parallel=parallel, precision=precision, conventions=with_elementwise, stage=stage)
        for stage in range(parallel.pp)
    ]
    ledgers = tuple(ledger if conventions.elementwise else ledger.without_elementwise() for ledger in whole)
    bounds = tuple(step_bound(ledger, hardware) for ledger in ledgers)
    bound: Array = sum((b.step_s for b in bounds), start=0.0)
    kernels = [pass_times(as_run(ledger), hardware, engine) for ledger in whole]
    estimate = _with_engine(kernels, bound, constants, model, batch, parallel)
    used = tuple(dict.fromkeys(name for times in kernels for name in times.used))
    total: Array = sum((times.expected_s for times in kernels), start=0.0)
    return StepPrice(
        estimate, bounds, ledgers, total, estimate.expected_s - total, used, tuple(_assumptions(ledgers, hardware, parallel, engine, used))
    )


def _with_engine(kernels: list[KernelTimes], bound: Array, engine: EngineStep, model: Model, batch: Batch, parallel: Parallel) -> Estimate:
    """Kernels as the engine runs them, and what it adds; its spread joins that of the kernels in quadrature."""
    expected, low, high = (sum((getattr(t, name) for t in kernels), start=0.0) for name in ("expected_s", "low_s", "high_s"))
    prefill = np.asarray(batch.prefilling.count.sum(axis=-1) > 0)
    scale = np.where(prefill, engine.prefill_scale, engine.decode_scale)
    ranks = np.log2(parallel.tp * parallel.dp)
    host = engine.fixed_s + engine.per_layer_rank_s * model.num_layers * ranks + engine.per_sequence_s * batch.sequences
    step = np.maximum(np.maximum(scale * expected + host, MOST_SAVED * expected), bound)
    below = step * np.hypot((expected - low) / expected, engine.spread[0])
    above = step * np.hypot((high - expected) / expected, engine.spread[1])
    return Estimate(bound, step, np.maximum(bound, step - below), step + above)


MOST_SAVED = 0.8  # fitted constants of an engine may take off at most a fifth of the kernels: beyond that they extrapolate


def _assumptions(ledgers: tuple[Ledger, ...], hardware: Hardware, parallel: Parallel, engine: str, used: tuple[str, ...]) -> list[str]:
    found = peaks.notes(hardware, {op.compute for ledger in ledgers for op in ledger})
    found.append(f"kernel times by constants of: {', '.join(used)}")
    found.append(f"engine overhead of {engine}: {engine_step(engine).source}")
    if parallel.gpus > 1:
        speed = link_bandwidth(hardware)
        if speed is None:
            found.append(f"{hardware.id}: no link or PCIe bandwidth is known, so communication costs only its start-up time")
        elif hardware.link_bandwidth is None:
            found.append(f"{hardware.id} has no interconnect of its own: GPUs talk over PCIe ({speed / 1e9:.4g} GB/s per direction)")
    if any(op.kind == "moe" for ledger in ledgers for op in ledger):
        found.append("tokens choose experts uniformly: expected distinct experts in the expected time, the fewest possible in the bound")
    return found
