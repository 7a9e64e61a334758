"""One forward pass of one rank as a list of operations, each with its FLOPs and its bytes by kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch

Array = NDArray[np.float64] | float


@dataclass(frozen=True, eq=False)
class Op:
    """One operation, as often as it runs in the pass.

    name: the layer's field-standard name (q_proj, attention, experts). kind: gemm, prefill_attention, decode_attention, moe,
    elementwise, embedding or collective. layer: the kind of layer ("" outside the stack). compute: the peak that multiplies
    it ("bf16", "fp8"). m, n, k: GEMM shape, or (tokens, cached positions read, head width) of attention.
    Numbers are per run ("each"), floats or arrays over a grid; `count` runs make the totals. kv_read: cached positions only;
    kv_write: those of the new tokens. fewest_weight_bytes: the least weight bytes any expert routing reads (None: the same).
    link_bytes: bytes that this rank sends. shape: what a kernel model needs beyond m, n, k.
    """

    name: str
    kind: str
    layer: str
    count: int
    compute: str
    formula: str
    m: Array = 0.0
    n: Array = 0.0
    k: Array = 0.0
    flops_each: Array = 0.0
    weight_bytes_each: Array = 0.0
    kv_read_bytes_each: Array = 0.0
    kv_write_bytes_each: Array = 0.0
    activation_bytes_each: Array = 0.0
    link_bytes_each: Array = 0.0
    fewest_weight_bytes_each: Array | None = None
    input: str = ""
    weight_dtype: str = ""
    shape: Mapping[str, Any] = field(default_factory=dict)
    batch: Batch | None = None

    @property
    def kv_bytes_each(self) -> Array:
        """KV bytes read and written in one run."""
        return self.kv_read_bytes_each + self.kv_write_bytes_each

    @property
    def bytes_each(self) -> Array:
        """Memory traffic of one run: weights, KV and activations."""
        return self.weight_bytes_each + self.kv_bytes_each + self.activation_bytes_each

    @property
    def fewest_bytes_each(self) -> Array:
        """As bytes_each under the routing that reads the fewest experts: what the hard bound charges."""
        saved = 0.0 if self.fewest_weight_bytes_each is None else self.weight_bytes_each - self.fewest_weight_bytes_each
        return self.bytes_each - saved


@dataclass(frozen=True, eq=False)
class Ledger:
    """The operations of one forward pass of one rank (one pipeline stage)."""

    ops: tuple[Op, ...]

    def __iter__(self) -> Iterator[Op]:
        return iter(self.ops)

    def __add__(self, other: Ledger) -> Ledger:
        return Ledger(self.ops + other.ops)

    def total(self, what: str) -> Array:
        """Sum over ops of count × `what`_each: flops, bytes, weight_bytes, kv_bytes, kv_read_bytes, activation_bytes …"""
        total: Array = 0.0
        for op in self.ops:
            total = total + op.count * getattr(op, f"{what}_each")
        return total

    @property
    def intensity(self) -> Array:
        """FLOP per byte of memory traffic of the whole pass."""
        return self.total("flops") / np.maximum(self.total("bytes"), 1.0)

    def without_elementwise(self) -> Ledger:
        """The same pass without norms, activations and adds, which engines fuse."""
        return Ledger(tuple(op for op in self.ops if op.kind != "elementwise"))

    def fused(self) -> Ledger:
        """The same pass as engines run it: GEMMs that read the same input become one (qkv, gate and up), which reads it once."""
        merged: dict[tuple[str, str, str, str], Op] = {}
        for op in self.ops:
            key = (op.layer, op.input, op.compute, op.weight_dtype)
            if op.kind != "gemm" or not op.input:
                merged[(op.layer, "", op.name, str(len(merged)))] = op
            elif key in merged:
                merged[key] = _joined(merged[key], op)
            else:
                merged[key] = op
        return Ledger(tuple(merged.values()))


def _joined(a: Op, b: Op) -> Op:
    width = a.m * a.k
    element = a.activation_bytes_each / np.maximum(a.m * (a.n + a.k), 1.0)
    return replace(
        a,
        name=f"{a.name}+{b.name}",
        n=a.n + b.n,
        flops_each=a.flops_each + b.flops_each,
        weight_bytes_each=a.weight_bytes_each + b.weight_bytes_each,
        activation_bytes_each=a.activation_bytes_each + b.activation_bytes_each - width * element,
        formula=f"{a.formula} + {b.formula}",
    )
