"""Kernels on a CPU: a call, arithmetic and memory traffic that overlap more or less, and one extra pass.

The extra pass is what a CPU library does beside the ledger's bytes: GEMM copies the weights into its own order when there are
enough rows to pay for it; attention takes exponentials. Constants are fitted per machine (calibration.machine).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.ledger import Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing.forms.base import pnorm

FORM = "host"
PACKED_ROWS = 3  # rows from which a matrix product is no longer run as matrix-vector products


def host_op_s(op: Op, hardware: Hardware, constants: Mapping[str, float]) -> Array:
    """Expected seconds of one run of a GEMM or attention op, cold operands.

    constants: t0_us (the call), ec and em (shares of peak and bandwidth), p (overlap), extra (passes over the weights at that
    bandwidth, for m ≥ 3; for attention the nanoseconds of one score).
    """
    compute = op.flops_each / (constants["ec"] * hardware.peak(op.compute))
    memory = op.bytes_each / (constants["em"] * hardware.memory_bandwidth)
    if op.kind == "gemm":
        passes = np.where(np.asarray(op.m) >= PACKED_ROWS, op.weight_bytes_each, 0.0) / (constants["em"] * hardware.memory_bandwidth)
        extra = constants["extra"] * passes
    else:
        width = op.shape["head_dim"] + op.shape["v_head_dim"]
        extra = constants["extra"] * 1e-9 * np.asarray(op.flops_each) / (2 * width)  # FLOPs are 2 · pairs · heads · width
    return np.asarray(constants["t0_us"] * 1e-6 + pnorm(np.asarray(compute), np.asarray(memory), constants["p"]) + extra)
