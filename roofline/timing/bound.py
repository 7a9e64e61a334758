"""The hard bound: what no machine with these peaks beats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.ledger import Ledger, Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing.peaks import effective_peak


@dataclass(frozen=True)
class StepBound:
    """Times in seconds of one pass, cold operands.

    step_s: the largest of the summed compute, memory and link time: every resource overlaps perfectly with the others.
    serial_s: the sum of op bounds: no overlap between ops. compute_s, memory_s, link_s: the sums themselves.
    """

    compute_s: Array
    memory_s: Array
    link_s: Array
    serial_s: Array

    @property
    def step_s(self) -> Array:
        """max(compute_s, memory_s, link_s)."""
        return np.maximum(np.maximum(self.compute_s, self.memory_s), self.link_s)

    @property
    def limited_by(self) -> str:
        """Which of compute, memory and link is the largest (scalar passes only)."""
        times = {"compute": float(self.compute_s), "memory": float(self.memory_s), "link": float(self.link_s)}
        return max(times, key=times.__getitem__)


def link_bandwidth(hardware: Hardware) -> float | None:
    """Bytes per second one device sends: its interconnect, else PCIe; None if neither is known."""
    return hardware.link_bandwidth or hardware.pcie_bandwidth


def op_times(op: Op, hardware: Hardware, *, routing: str = "fewest") -> tuple[Array, Array, Array]:
    """Compute, memory and link time of one run of `op` at full peak and bandwidth.

    routing: "fewest" charges a MoE the experts that any routing must read, "uniform" the expected number of distinct ones.
    A link of unknown bandwidth costs 0 in the bound (it is named in the assumptions of a plan).
    """
    compute = op.flops_each / effective_peak(hardware, op.compute)[0] if op.compute else 0.0
    memory = (op.fewest_bytes_each if routing == "fewest" else op.bytes_each) / hardware.memory_bandwidth
    speed = link_bandwidth(hardware)
    return compute, memory, op.link_bytes_each / speed if speed else 0.0


def op_bound_s(op: Op, hardware: Hardware, *, routing: str = "fewest") -> Array:
    """Hard bound of one run of `op`: max(FLOPs/peak, bytes/bandwidth, sent bytes/link)."""
    compute, memory, link = op_times(op, hardware, routing=routing)
    return np.maximum(np.maximum(compute, memory), link)


def step_bound(ledger: Ledger, hardware: Hardware, *, routing: str = "fewest") -> StepBound:
    """Hard bound of a pass: sums per resource, and the sum of op bounds."""
    compute_s: Array = 0.0
    memory_s: Array = 0.0
    link_s: Array = 0.0
    serial_s: Array = 0.0
    for op in ledger:
        compute, memory, link = op_times(op, hardware, routing=routing)
        compute_s = compute_s + op.count * compute
        memory_s = memory_s + op.count * memory
        link_s = link_s + op.count * link
        serial_s = serial_s + op.count * np.maximum(np.maximum(compute, memory), link)
    return StepBound(compute_s, memory_s, link_s, serial_s)


def limited_by(op: Op, hardware: Hardware) -> str:
    """compute, memory or link: the largest time of one run (scalar ops only)."""
    compute, memory, link = (float(np.max(t)) for t in op_times(op, hardware))
    return "link" if link > max(compute, memory) else "compute" if compute > memory else "memory"
