"""Kernels on a CPU: a call, arithmetic and memory traffic that overlap more or less, and one extra pass.

The extra pass is what a CPU library does beside the ledger's bytes: GEMM copies the weights into its own order when there are
enough rows to pay for it; attention takes exponentials. Below that GEMM has a kernel for a few rows, which reads the weights once and
computes slowly. Constants are fitted per machine (calibration.machine).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from roofline.ledger import Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing.forms.base import pnorm

FORM = "host"
PREFIX = "host_"  # of the family of a block in this form, so that a GPU's form never takes it for one of its own
FEW_ROWS = 4  # rows from which a matrix product is no longer run as matrix-vector products
PACKED_ROWS = 16  # rows from which it copies the weights first (both: MKL 2024.2 with AVX-512, the kinks of its times over rows)
KEY_BLOCK = 512  # keys that PyTorch's CPU flash attention computes at once, masked or not (ATen FlashAttentionKernel.cpp)


def host_op_s(op: Op, hardware: Hardware, constants: Mapping[str, float]) -> Array:
    """Expected seconds of one run of a GEMM or attention op, cold operands.

    constants: t0_us (the call), ec and em (shares of peak and bandwidth), p (overlap), extra (passes over the weights at that
    bandwidth, from PACKED_ROWS rows on; for attention the nanoseconds of one score), few (of a GEMM: the share of ec that FEW_ROWS
    to PACKED_ROWS − 1 rows reach).
    """
    executed = op.flops_each * _executed_share(op)
    compute = executed / (constants["ec"] * hardware.peak(op.compute))
    memory = op.bytes_each / (constants["em"] * hardware.memory_bandwidth)
    if op.kind == "gemm":
        rows = np.asarray(op.m)
        passes = np.where(rows >= PACKED_ROWS, op.weight_bytes_each, 0.0) / (constants["em"] * hardware.memory_bandwidth)
        extra = constants["extra"] * passes
        compute = np.where((rows >= FEW_ROWS) & (rows < PACKED_ROWS), compute / constants["few"], compute)
    else:
        width = op.shape["head_dim"] + op.shape["v_head_dim"]
        extra = constants["extra"] * 1e-9 * np.asarray(executed) / (2 * width)  # FLOPs are 2 · pairs · heads · width
    return np.asarray(constants["t0_us"] * 1e-6 + pnorm(np.asarray(compute), np.asarray(memory), constants["p"]) + extra)


def calibrated_s(op: Op, hardware: Hardware) -> Array | None:
    """host_op_s with the constants of this device's profile, or None where it has none for such an op."""
    for block in hardware.calibration:
        if block.family == PREFIX + op.kind and block.dtype in (op.weight_dtype, op.compute) and not op.shape.get("mla"):
            return host_op_s(op, hardware, block.constants)
    return None


def _executed_share(op: Op) -> Array:
    """Query-key pairs that a causal kernel computes / pairs that it needs."""
    if op.kind != "prefill_attention" or op.batch is None:
        return 1.0
    batch = op.batch
    needed = batch.pairs()
    executed = np.sum(batch.count * executed_pairs(batch.new, batch.past), axis=-1)
    return np.asarray(np.where(needed > 0, executed / np.maximum(needed, 1.0), 1.0))


def executed_pairs(new: NDArray[np.float64], past: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pairs computed for `new` tokens on `past` ones: each row up to the end of its block of KEY_BLOCK keys, or the last key."""
    total = new + past
    last_block = KEY_BLOCK * np.floor(np.maximum(total - 1, 0) / KEY_BLOCK)
    beyond = (total - np.maximum(past, last_block)) * (last_block + KEY_BLOCK - total)
    return np.asarray(_to_block_ends(total) - _to_block_ends(past) - beyond)


def _to_block_ends(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sum over the first rows of the end of the block that each lies in."""
    whole, rest = np.divmod(rows, KEY_BLOCK)
    return np.asarray(KEY_BLOCK * (KEY_BLOCK * whole * (whole + 1) / 2 + rest * (whole + 1)))
