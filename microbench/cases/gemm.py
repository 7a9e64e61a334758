"""Matrix products: y[m, n] = x[m, k] · w[n, k], weights as a Linear lays them, in each type that the device multiplies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from microbench.device import DTYPES, Device
from microbench.measure import Case, Trial
from microbench.ops import Kept, gemm_op, relative_error
from roofline.errors import InputError
from roofline.ledger import Op

GROUP = 128  # of int4 weights, as in the ledger's "int4"
TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2, "fp16": 2e-3, "fp8": 1e-2, "int8": 1e-6, "w8a16": 1e-2, "int4": 2e-2}


def gemm(m: int, n: int, k: int, dtype: str, *, cold: bool, op: Op | None = None) -> Case:
    """A linear layer of m rows. op: the ledger's, when the shape is a model's. Raises InputError for an unknown type."""
    if dtype not in TOLERANCE:
        raise InputError(f"no GEMM case for {dtype!r}; there are {', '.join(TOLERANCE)}")
    weight_only: dict[str, Callable[..., Trial]] = {"w8a16": _int8_weights, "int4": partial(_int4_weights, made={})}
    build = weight_only.get(dtype, partial(_dense, dtype=dtype))
    shape = {"m": m, "n": n, "k": k}
    return Case("gemm", shape, dtype, cold, op or gemm_op(m, n, k, dtype), lambda d: build(d, m, n, k), TOLERANCE[dtype])


def _sampled_error(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> float:
    """Error on up to about 16 rows and 64 columns (a float64 product of all would take longer than the case); all must be finite."""
    rows, columns = slice(None, None, max(1, len(x) // 16)), slice(None, None, max(1, len(w) // 64))
    if not bool(torch.isfinite(y).all()):
        return float("nan")
    return relative_error(y[rows, columns], x[rows].double() @ w[columns].double().t())


def _dense(d: Device, m: int, n: int, k: int, dtype: str) -> Trial:
    kind = DTYPES[dtype]
    x, w = d.take(kind, m, k), d.take(kind, n, k)
    if dtype == "int8":
        y = d.output(torch.int32, m, n)
        call = partial(torch._int_mm, x, w.t(), out=y)
    elif dtype == "fp8":
        one, y = torch.ones((), device=d.kind), d.output(torch.bfloat16, m, n)
        call = partial(torch._scaled_mm, x, w.t(), scale_a=one, scale_b=one, out_dtype=y.dtype, out=y)
    else:
        torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
        y = d.output(kind, m, n)
        call = partial(torch.mm, x, w.t(), out=y)
    return Trial(call, (x, w), (y,), lambda: _sampled_error(y, x, w))


def _int8_weights(d: Device, m: int, n: int, k: int) -> Trial:
    x, w = d.take(torch.bfloat16, m, k), d.take(torch.int8, n, k)
    scales = torch.rand(n, device=d.kind).add_(0.5).to(torch.bfloat16)
    call = Kept(partial(torch._weight_int8pack_mm, x, w, scales))
    return Trial(call, (x, w), (), lambda: _sampled_error(call.result, x, w.double() * scales.double()[:, None]))


def _int4_weights(d: Device, m: int, n: int, k: int, made: dict[str, torch.Tensor]) -> Trial:
    """made: the weights, of which every set has a copy at another address (packing takes longer than timing)."""
    if not made:
        made["q"] = torch.randint(0, 16, (n, k), dtype=torch.int32, device=d.kind)
        made["packed"] = _packed(made["q"])
    q, packed = made["q"], d.output(made["packed"].dtype, *made["packed"].shape).copy_(made["packed"])
    x, scales = d.take(torch.bfloat16, m, k), d.take(torch.bfloat16, k // GROUP, n, 2)  # (scale, zero) by group and row
    product = torch._weight_int4pack_mm if d.kind == "cuda" else torch._weight_int4pack_mm_for_cpu
    call = Kept(partial(product, x, packed, GROUP, scales))

    def error() -> float:
        scale, zero = (scales[..., i].double().t().repeat_interleave(GROUP, dim=1) for i in (0, 1))
        return _sampled_error(call.result, x, (q.double() - 8) * scale + zero)

    return Trial(call, (x, packed, scales), (), error)


def _packed(q: torch.Tensor) -> torch.Tensor:
    """Weights 0 … 15 as the kernel of that device reads them (the packing of the CUDA kernel does not exist on a CPU build)."""
    if q.device.type == "cuda":
        return torch._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8), 8)
    return torch._convert_weight_to_int4pack_for_cpu(q, 1)
