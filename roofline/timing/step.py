"""One whole forward pass in time: hard bound, expectation and interval."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.ledger import AS_SHIPPED, DEFAULT, SINGLE, Conventions, Ledger, Parallel, Precision, build_ledger
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.profiles.model import Model
from roofline.timing import peaks
from roofline.timing.bound import StepBound, link_bandwidth, step_bound
from roofline.timing.calibrated import KernelTimes, op_times, pass_times
from roofline.timing.engines import LAUNCH_SPREAD, EngineStep, engine_step
from roofline.timing.estimate import Estimate
from roofline.timing.graphs import captured_sizes, engine_ops, least_eager_s


@dataclass(frozen=True)
class StepPrice:
    """A pass of one replica: all pipeline stages one after the other.

    ledgers: one per stage, as counted (what the bound prices). kernels_s: sum of expected kernel times, sampling_s of them the
    sampler; eager_s: how much longer launching them one by one takes, outside a captured graph; host_s: what the engine adds or
    saves otherwise. The three add up to the expected time. calibration: the constants that priced the kernels. assumptions:
    sentences on what was assumed.
    """

    estimate: Estimate
    bounds: tuple[StepBound, ...]
    ledgers: tuple[Ledger, ...]
    kernels_s: Array
    sampling_s: Array
    eager_s: Array
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

    The pass walks through all pipeline stages. Decode batches above the largest graph that the engine captures by default run
    eagerly, and so do passes with prompts where its graphs hold none. Not counted: padding to captured sizes (StepTimer does),
    queueing, tokenisation, the network, top-k and top-p filters. Raises ShardError and InputError.
    """
    constants = engine_step(engine)
    with_elementwise = replace(conventions, elementwise=True)
    whole = [
        build_ledger(model, batch, parallel=parallel, precision=precision, conventions=with_elementwise, stage=stage)
        for stage in range(parallel.pp)
    ]
    ledgers = tuple(ledger if conventions.elementwise else ledger.without_elementwise() for ledger in whole)
    bounds = tuple(step_bound(ledger, hardware) for ledger in ledgers)
    launched = [engine_ops(ledger, model, engine) for ledger in whole]
    kernels = [pass_times(ledger, hardware, engine) for ledger in launched]
    least = np.where(_captured(batch, hardware, engine, parallel.tp), 0.0, sum(least_eager_s(ledger, constants) for ledger in launched))
    bound: Array = sum((b.step_s for b in bounds), start=0.0)
    estimate, eager = _with_engine(kernels, bound, least, constants, model, batch, parallel)
    used = tuple(dict.fromkeys(name for times in kernels for name in times.used))
    total: Array = sum((times.expected_s for times in kernels), start=0.0)
    sampling = sum((op_times(op, hardware, engine).expected_s for ledger in launched for op in ledger if op.kind == "sampling"), start=0.0)
    assumptions = _assumptions(ledgers, hardware, parallel, engine, used)
    if np.any(eager > 0):
        assumptions.append(f"outside captured graphs the host launches each kernel in {1e6 * constants.launch_s:g} µs")
    return StepPrice(
        estimate, bounds, ledgers, total, sampling, eager, estimate.expected_s - total - eager, used, tuple(assumptions)
    )  # fmt: skip


def _captured(batch: Batch, hardware: Hardware, engine: str, tp: int) -> NDArray[np.bool_]:
    """Whether a pass replays captured graphs, over the grid."""
    sizes = captured_sizes(engine, hardware, tp)
    fits = np.asarray(batch.tokens <= sizes[-1]) if sizes else np.asarray(True)
    return fits if engine_step(engine).prompts_captured else fits & ~_prefills(batch)


def _prefills(batch: Batch) -> NDArray[np.bool_]:
    return np.asarray(batch.prefilling.count.sum(axis=-1) > 0)


def _with_engine(
    kernels: list[KernelTimes], bound: Array, least: Array, engine: EngineStep, model: Model, batch: Batch, parallel: Parallel
) -> tuple[Estimate, Array]:
    """(the step, what waiting for launches adds): kernels as the engine runs them, at least `least`, and what the engine adds.

    Its spread joins that of the kernels in quadrature.
    """
    expected, low, high = (sum((getattr(t, name) for t in kernels), start=0.0) for name in ("expected_s", "low_s", "high_s"))
    scaled = np.where(_prefills(batch), engine.prefill_scale, engine.decode_scale) * expected
    eager = np.maximum(least - scaled, 0.0)
    ranks = np.log2(parallel.tp * parallel.dp)
    host = engine.fixed_s + engine.per_layer_rank_s * model.num_layers * ranks + engine.per_sequence_s * batch.sequences
    step = np.maximum(np.maximum(scaled + eager + host, MOST_SAVED * expected), bound)
    waits = eager > 0
    below = step * np.hypot(np.where(waits, LAUNCH_SPREAD[0], (expected - low) / expected), engine.spread[0])
    above = step * np.hypot(np.where(waits, LAUNCH_SPREAD[1], (high - expected) / expected), engine.spread[1])
    return Estimate(bound, step, np.maximum(bound, step - below), step + above), eager


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
