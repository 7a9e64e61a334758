"""Matrix products: y[m, n] = x[m, k] · w[n, k], weights as a Linear lays them, in each type that the device multiplies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from microbench.device import DTYPES, Device
from microbench.measure import Case, Trial
from microbench.ops import gemm_op, output, relative_error
from roofline.errors import InputError
from roofline.ledger import Op

GROUP = 128  # of int4 weights, as in the ledger's "int4"
TOLERANCE = {"fp32": 1e-5, "tf32": 2e-3, "bf16": 1e-2, "fp16": 2e-3, "fp8": 1e-2, "int8": 1e-6, "w8a16": 1e-2, "int4": 2e-2}


def gemm(m: int, n: int, k: int, dtype: str, *, cold: bool, op: Op | None = None) -> Case:
    """A linear layer of m rows. op: the ledger's, when the shape is a model's. Raises InputError for an unknown type."""
    if dtype not in TOLERANCE:
        raise InputError(f"no GEMM case for {dtype!r}; there are {', '.join(TOLERANCE)}")
    special: dict[str, Callable[..., Trial]] = {
        "fp8": _fp8,
        "int8": _int8,
        "w8a16": _int8_weights,
        "int4": partial(_int4_weights, made={}),
    }
    build = special.get(dtype, partial(_plain, dtype=dtype))
    shape = {"m": m, "n": n, "k": k}
    return Case("gemm", shape, dtype, cold, op or gemm_op(m, n, k, dtype), lambda d: build(d, m, n, k), TOLERANCE[dtype])


def _sampled_error(y: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> float:
    """Error on up to about 16 rows and 64 columns (a float64 product of all would take longer than the case); all must be finite."""
    rows, columns = slice(None, None, max(1, len(x) // 16)), slice(None, None, max(1, len(w) // 64))
    if not bool(torch.isfinite(y).all()):
        return float("nan")
    return relative_error(y[rows, columns], x[rows].double() @ w[columns].double().t())


def _plain(d: Device, m: int, n: int, k: int, dtype: str) -> Trial:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    kind = DTYPES[dtype]
    x, w = d.take(kind, m, k), d.take(kind, n, k)
    y = output(d.kind, kind, m, n)
    return Trial(lambda: torch.mm(x, w.t(), out=y), (x, w), (y,), lambda: _sampled_error(y, x, w))


def _fp8(d: Device, m: int, n: int, k: int) -> Trial:
    x, w = d.take(DTYPES["fp8"], m, k), d.take(DTYPES["fp8"], n, k)
    one = torch.ones((), device=d.kind)
    y = output(d.kind, torch.bfloat16, m, n)
    call = partial(torch._scaled_mm, x, w.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=y)
    return Trial(call, (x, w), (y,), lambda: _sampled_error(y, x, w))


def _int8(d: Device, m: int, n: int, k: int) -> Trial:
    x, w = d.take(torch.int8, m, k), d.take(torch.int8, n, k)
    y = output(d.kind, torch.int32, m, n)
    return Trial(lambda: torch._int_mm(x, w.t(), out=y), (x, w), (y,), lambda: _sampled_error(y, x, w))


def _int8_weights(d: Device, m: int, n: int, k: int) -> Trial:
    x, w = d.take(torch.bfloat16, m, k), d.take(torch.int8, n, k)
    scales = torch.rand(n, device=d.kind).add_(0.5).to(torch.bfloat16)
    result: list[torch.Tensor] = [torch.empty(0)]

    def call() -> None:
        result[0] = torch._weight_int8pack_mm(x, w, scales)

    return Trial(call, (x, w), (), lambda: _sampled_error(result[0], x, w.double() * scales.double()[:, None]))


def _int4_weights(d: Device, m: int, n: int, k: int, made: dict[str, torch.Tensor]) -> Trial:
    """made: the first set, of which the others are copies at other addresses (packing takes longer than timing)."""
    if not made:
        made["q"] = torch.randint(0, 16, (n, k), dtype=torch.int32, device=d.kind)
        made["scales"] = torch.rand(k // GROUP, n, 2, device=d.kind).sub_(0.5).to(torch.bfloat16)  # (scale, zero) by group and row
        made["packed"] = _packed(made["q"])
    x, q, packed, scales = d.take(torch.bfloat16, m, k), made["q"], made["packed"].clone(), made["scales"].clone()
    product = torch._weight_int4pack_mm if d.kind == "cuda" else torch._weight_int4pack_mm_for_cpu
    result: list[torch.Tensor] = [torch.empty(0)]

    def call() -> None:
        result[0] = product(x, packed, GROUP, scales)

    def error() -> float:
        scale, zero = (scales[..., i].double().t().repeat_interleave(GROUP, dim=1) for i in (0, 1))
        return _sampled_error(result[0], x, (q.double() - 8) * scale + zero)

    return Trial(call, (x, packed, scales), (), error)


def _packed(q: torch.Tensor) -> torch.Tensor:
    """Weights 0 … 15 as the kernel of that device reads them (the packing of the CUDA kernel does not exist on a CPU build)."""
    if q.device.type == "cuda":
        return torch._convert_weight_to_int4pack((q[:, ::2] << 4 | q[:, 1::2]).to(torch.uint8), 8)
    return torch._convert_weight_to_int4pack_for_cpu(q, 1)
