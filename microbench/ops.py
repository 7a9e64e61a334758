"""The ledger's operations for free-standing shapes, so that a case is counted exactly as a model's is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from roofline.batch import Batch
from roofline.dtypes import dtype as storage
from roofline.ledger import Op
from roofline.ledger.mixers import CoreContext, core_ops
from roofline.profiles.model import Attention

# Bytes per element that a kernel reads and writes of activations, where they are not those of the weights' type.
_IN_OUT = {"fp8": (1.0, 2.0), "int8": (1.0, 4.0), "w8a16": (2.0, 2.0), "int4": (2.0, 2.0)}


def gemm_op(m: int, n: int, k: int, dtype: str) -> Op:
    """y[m, n] = x[m, k] · w[n, k]: FLOPs and bytes as the ledger counts a linear layer.

    fp8 and int8 kernels take 8-bit activations and write bf16 and int32; scales per tensor or channel are not counted.
    """
    weights = storage(dtype)
    size_in, size_out = _IN_OUT.get(dtype, (weights.bytes_per_element, weights.bytes_per_element))
    return Op(
        name="gemm",
        kind="gemm",
        layer="",
        count=1,
        compute=weights.compute,
        formula=f"2·m·{n}·{k}",
        m=m,
        n=n,
        k=k,
        flops_each=2.0 * m * n * k,
        weight_bytes_each=weights.matrix_bytes(n, k),
        activation_bytes_each=m * k * size_in + m * n * size_out,
        weight_dtype=weights.name,
    )


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads and the width of one."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def shape(self) -> dict[str, int | str]:
        """As a record has them."""
        return {"heads": self.heads, "kv_heads": self.kv_heads, "head_dim": self.head_dim}


def attention_ops(batch: Batch, of: Heads, dtype: str, *, causal: bool = True, naive: bool = False) -> list[Op]:
    """Attention of one layer on `batch`: one flash op, or the three of naive attention."""
    spec = Attention(heads=of.heads, kv_heads=of.kv_heads, head_dim=of.head_dim)
    stored = storage(dtype)
    settings = CoreContext("", 1, of.heads * of.head_dim, 1, 1, stored, stored, causal, naive)
    return list(core_ops(spec, batch, settings))


def moving_op(name: str, *, read: float, written: float, flops: float = 0.0, compute: str = "") -> Op:
    """An operation that moves bytes: streams, element-wise work, transfers."""
    return Op(
        name=name,
        kind="elementwise",
        layer="",
        count=1,
        compute=compute,
        formula="bytes read + bytes written",
        flops_each=flops,
        activation_bytes_each=read + written,
    )


class Kept:
    """A call that keeps its result to be checked, for kernels that allocate it themselves."""

    def __init__(self, call: Callable[[], torch.Tensor]) -> None:
        self._call, self.result = call, torch.empty(0)

    def __call__(self) -> None:
        self.result = self._call()


def relative_error(result: torch.Tensor, truth: torch.Tensor) -> float:
    """Norm of the difference to a float64 result / norm of that; NaN when either has NaN or infinity."""
    difference = (result.double() - truth).norm() / truth.norm().clamp_min(1e-300)
    return float(difference) if torch.isfinite(difference) else float("nan")
