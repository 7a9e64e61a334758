"""Cases that move bytes and compute little: streams, element-wise work, host-device transfers, and the launch itself."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from torch.nn.functional import rms_norm, silu

from microbench.device import DTYPES, Device
from microbench.measure import Case, Trial
from microbench.ops import Kept, moving_op, relative_error

# Arrays that each kernel reads and writes, and its FLOPs per element.
_STREAMS = {"copy": (1, 1, 0), "read": (1, 0, 1), "triad": (2, 1, 2)}
TRIAD_SCALE = 3.0
CHECKED = 2**16  # elements of a stream that are compared with float64


def stream(kernel: str, level: str, total_bytes: int, *, cold: bool) -> Case:
    """copy b = a, read Σa, triad a = b + 3·c on fp32 arrays of `total_bytes` together. Out of a CPU's memory, NumPy's copy takes
    turns with ours.

    Counts each array once: what a cache reads to complete a written line is not counted.
    """
    reads, writes, flops = _STREAMS[kernel]
    elements = total_bytes // (4 * (reads + writes))
    op = moving_op(kernel, read=4.0 * elements * reads, written=4.0 * elements * writes, flops=float(flops * elements))
    some = slice(None, None, max(1, elements // CHECKED))

    def build(d: Device) -> Trial:
        a = d.take(torch.float32, elements)
        if kernel == "read":
            total = torch.empty((), device=d.kind)
            return Trial(
                lambda: torch.sum(a, dim=0, out=total),
                (a,),
                (),
                lambda: abs(float(total) - sum(float(part.sum()) for part in a.split(CHECKED))) / elements,
            )
        out = d.output(torch.float32, elements)
        if kernel == "triad":
            c = d.take(torch.float32, elements)
            call = partial(torch.add, a, c, alpha=TRIAD_SCALE, out=out)
            return Trial(call, (a, c), (out,), lambda: relative_error(out[some], a[some].double() + TRIAD_SCALE * c[some].double()))
        rival = None
        if d.kind == "cpu" and level == "memory":
            rival = ("numpy.copyto", partial(np.copyto, out.numpy(), a.numpy()))
        return Trial(lambda: out.copy_(a), (a,), (out,), lambda: relative_error(out[some], a[some].double()), rival)

    return Case("stream", {"kernel": kernel, "level": level, "bytes": int(op.bytes_each)}, "fp32", cold, op, build, 1e-5)


def elementwise(kernel: str, tokens: int, width: int, dtype: str, *, cold: bool = True) -> Case:
    """residual_add, norm (RMS) or mlp_act (silu(gate)·up) of (tokens, width): bytes of the inputs and the output, once.

    mlp_act runs as two kernels here, so it moves more than is counted: what fusing it would gain shows.
    """
    inputs, flops = {"residual_add": (2, 1), "norm": (1, 7), "mlp_act": (2, 2)}[kernel]
    size = DTYPES[dtype].itemsize * tokens * width
    op = moving_op(kernel, read=inputs * size, written=size, flops=float(flops * tokens * width), compute="fp32")

    def build(d: Device) -> Trial:
        a, b = (d.take(DTYPES[dtype], tokens, width) for _ in range(2))
        out = d.output(a.dtype, tokens, width)
        if kernel == "residual_add":
            return Trial(lambda: torch.add(a, b, out=out), (a, b), (out,), lambda: relative_error(out, a.double() + b.double()))
        if kernel == "mlp_act":
            return Trial(lambda: torch.mul(silu(a), b, out=out), (a, b), (out,), lambda: relative_error(out, silu(a.double()) * b.double()))
        call = Kept(partial(rms_norm, a, (width,), torch.ones(width, dtype=a.dtype, device=d.kind), 1e-6))

        def error() -> float:
            exact = a.double()
            return relative_error(call.result, exact / (exact.square().mean(-1, keepdim=True) + 1e-6).sqrt())

        return Trial(call, (a,), (), error)

    shape: dict[str, int | str] = {"kernel": kernel, "tokens": tokens, "width": width}
    return Case("elementwise", shape, dtype, cold, op, build, 2e-2 if dtype != "fp32" else 1e-5)


def transfer(direction: str, size: int, *, pinned: bool) -> Case:
    """`size` bytes from host to device (h2d) or back (d2h)."""

    def build(d: Device) -> Trial:
        host = torch.randn(size // 4, pin_memory=pinned)
        there = (d.output if direction == "h2d" else d.take)(torch.float32, size // 4)
        source, target = (host, there) if direction == "h2d" else (there, host)
        return Trial(lambda: target.copy_(source, non_blocking=True), (source,), (target,))

    op = moving_op(direction, read=0.0, written=float(size))
    return Case("transfer", {"direction": direction, "bytes": size, "pinned": int(pinned)}, "fp32", False, op, build, eager=True)


def launch(*, graph: bool) -> Case:
    """The smallest kernel (one element plus one): what starting any costs, from the host or out of a captured graph."""

    def build(d: Device) -> Trial:
        x, y = torch.ones(1, device=d.kind), torch.empty(1, device=d.kind)
        return Trial(lambda: torch.add(x, 1.0, out=y), (x,), (y,), lambda: abs(float(y) - 2.0) if math.isfinite(float(y)) else math.nan)

    op = moving_op("launch", read=4.0, written=4.0)
    return Case("launch", {"graph": int(graph)}, "fp32", False, op, build, eager=not graph)
