"""Expected times without any measurement of the device: one set of constants for all, physical forms, wide intervals.

A kernel takes a launch, and then the soft maximum of what it computes and what it moves. The constants are medians over ten
devices of public kernel measurements (NVIDIA aiconfigurator-core 0.12, Apache-2.0); each form is in docs/concepts/time.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from roofline.ledger import Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing.bound import link_bandwidth, op_bound_s
from roofline.timing.host import calibrated_s
from roofline.timing.peaks import effective_peak


@dataclass(frozen=True)
class Generic:
    """Efficiencies and overheads; times in seconds.

    ec: share of the dense peak a large GEMM reaches, by compute type. em: share of memory bandwidth. launch: start of a kernel
    inside a captured graph. per_k: serial main loop of one output tile, per element of K. exp_per_clock: exponentials per
    clock and SM of the softmax. per_routed_token: permutation of one token to one expert.
    """

    ec: Mapping[str, float] = field(default_factory=lambda: {"fp8": 0.64, "int8": 0.64, "fp4": 0.45})
    ec_default: float = 0.75
    ec_attention: float = 0.65
    em: float = 0.82
    em_decode_attention: float = 0.80
    em_elementwise: float = 0.80
    launch: float = 3e-6
    launch_attention: float = 6e-6
    launch_elementwise: float = 2e-6
    per_k: float = 0.5e-9
    exp_per_clock: float = 16.0
    per_routed_token: float = 1e-9
    link: float = 0.7
    collective_start: float = 3e-6
    collective_per_doubling: float = 3e-6


DEFAULTS = Generic()
SPREAD = (0.7, 1.5)  # 80 % interval of a kernel that these constants price, as factors


def expected_op_s(op: Op, hardware: Hardware, constants: Generic = DEFAULTS) -> Array:
    """Expected time of one run of `op` in seconds, cold operands; never below its hard bound.

    A profile measured on the machine itself (timing.host) is used before the constants of all devices.
    """
    own = calibrated_s(op, hardware)
    if own is not None:
        return np.maximum(own, op_bound_s(op, hardware))
    form = {
        "gemm": _gemm,
        "moe": _moe,
        "prefill_attention": _prefill_attention,
        "decode_attention": _decode_attention,
        "collective": _collective,
    }.get(op.kind, _elementwise)
    return np.maximum(form(op, hardware, constants), op_bound_s(op, hardware))


def _soft_max(*times: Array) -> Array:
    return np.asarray(np.sqrt(sum(np.square(t) for t in times)))


def _gemm(op: Op, hardware: Hardware, c: Generic) -> Array:
    compute = op.flops_each / (effective_peak(hardware, op.compute)[0] * c.ec.get(op.compute, c.ec_default))
    return c.launch + _soft_max(compute, op.bytes_each / (c.em * hardware.memory_bandwidth), c.per_k * op.k)


def _moe(op: Op, hardware: Hardware, c: Generic) -> Array:
    """Two grouped GEMMs plus routing, permutation and combination."""
    compute = op.flops_each / (effective_peak(hardware, op.compute)[0] * c.ec.get(op.compute, c.ec_default))
    memory = op.bytes_each / (c.em * hardware.memory_bandwidth)
    return 4 * c.launch + _soft_max(compute, memory, c.per_k * op.k) + c.per_routed_token * op.m


def _prefill_attention(op: Op, hardware: Hardware, c: Generic) -> Array:
    """Matrix units and exponentials share the time: their costs add."""
    matrix = op.flops_each / (effective_peak(hardware, op.compute)[0] * c.ec_attention)
    softmax: Array = 0.0
    if hardware.sm_count and hardware.boost_hz and op.k:
        softmax = op.flops_each / (4 * op.k) / (c.exp_per_clock * hardware.boost_hz * hardware.sm_count)
    return c.launch_attention + _soft_max(matrix + softmax, op.bytes_each / (c.em * hardware.memory_bandwidth))


def _decode_attention(op: Op, hardware: Hardware, c: Generic) -> Array:
    """Reading the cache; query heads of a group are padded to 16 rows of the matrix unit."""
    heads, kv_heads = op.shape.get("heads", 1), op.shape.get("kv_heads", 1)
    group = heads / kv_heads
    padded = 16 * math.ceil(group / 16) / group
    compute = padded * op.flops_each / (effective_peak(hardware, op.compute)[0] * c.ec_attention)
    return c.launch_attention + _soft_max(compute, op.bytes_each / (c.em_decode_attention * hardware.memory_bandwidth))


def _collective(op: Op, hardware: Hardware, c: Generic) -> Array:
    speed = link_bandwidth(hardware)
    wire = op.link_bytes_each / (c.link * speed) if speed else 0.0
    return np.asarray(c.collective_start + c.collective_per_doubling * math.log2(op.shape["ranks"]) + wire)


def _elementwise(op: Op, hardware: Hardware, c: Generic) -> Array:
    return c.launch_elementwise + op.bytes_each / (c.em_elementwise * hardware.memory_bandwidth)
