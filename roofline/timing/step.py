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
from roofline.timing.engines import engine_step
from roofline.timing.estimate import Estimate
from roofline.timing.generic import expected_kernels_s

# 10 % and 90 % quantiles of measured / expected of a step priced with generic constants.
GENERIC_INTERVAL = (0.78, 1.40)


@dataclass(frozen=True)
class StepPrice:
    """A pass of one replica: all pipeline stages one after the other.

    ledgers: one per stage, as counted (what the bound prices). kernels_s: sum of expected kernel times; host_s: what the
    engine adds. assumptions: sentences on what was assumed.
    """

    estimate: Estimate
    bounds: tuple[StepBound, ...]
    ledgers: tuple[Ledger, ...]
    kernels_s: Array
    host_s: Array
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
    ledgers = tuple(
        build_ledger(model, batch, parallel=parallel, precision=precision, conventions=conventions, stage=stage)
        for stage in range(parallel.pp)
    )
    bounds = tuple(step_bound(ledger, hardware) for ledger in ledgers)
    bound: Array = sum((b.step_s for b in bounds), start=0.0)
    kernels: Array = 0.0
    with_elementwise = replace(conventions, elementwise=True)
    for stage in range(parallel.pp):
        whole = build_ledger(model, batch, parallel=parallel, precision=precision, conventions=with_elementwise, stage=stage)
        kernels = kernels + expected_kernels_s(as_run(whole), hardware)
    ranks = np.log2(parallel.tp * parallel.dp)
    host = constants.fixed_s + constants.per_layer_rank_s * model.num_layers * ranks + constants.per_sequence_s * batch.sequences
    expected = np.maximum(kernels + host, bound)
    low, high = GENERIC_INTERVAL
    estimate = Estimate(bound, expected, np.maximum(bound, expected * low), expected * high)
    return StepPrice(estimate, bounds, ledgers, kernels, np.asarray(host), tuple(_assumptions(ledgers, hardware, parallel, engine)))


def as_run(ledger: Ledger) -> Ledger:
    """The kernels an engine launches: GEMMs of one input fused, residual adds inside the norms."""
    return Ledger(tuple(op for op in ledger.fused() if op.name != "residual_add"))


def _assumptions(ledgers: tuple[Ledger, ...], hardware: Hardware, parallel: Parallel, engine: str) -> list[str]:
    found = peaks.notes(hardware, {op.compute for ledger in ledgers for op in ledger})
    found.append("expected times use generic kernel constants, not measurements of this device")
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
