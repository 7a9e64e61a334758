"""What the tests that count by hand share: a batch, a model twelve wide of one kind of layer, and operations as plain rows."""

from __future__ import annotations

from typing import Any

from roofline.batch import Batch
from roofline.ledger import Conventions, Ledger, Op, Parallel, Precision, build_ledger
from roofline.profiles.model import Layer, Model

BATCH = Batch.of([5, 1, 1], [2, 7, 0])
ONE, TWO = Parallel(), Parallel(tp=2)
Row = tuple[str, str, int, str, float, float, float, float, float, float, float, float]


def model_of(layer: Layer, order: str = "3*a", **fields: Any) -> Model:
    return Model(name="m", model_type="t", source="here", hidden_size=12, vocab_size=30, layers={"a": layer}, order=order, **fields)


def numbers(op: Op) -> Row:
    """name, kind, count, compute; m, n, k; FLOP; bytes of weights, KV read, KV written, activations"""
    found = (op.m, op.n, op.k, op.flops_each, op.weight_bytes_each, op.kv_read_bytes_each, op.kv_write_bytes_each, op.activation_bytes_each)
    return (op.name, op.kind, op.count, op.compute, *map(float, found))


def gemm(name: str, n: int, k: int, rows: int = 7, count: int = 3) -> Row:
    flops = sum(2 for _row in range(rows) for _n in range(n) for _k in range(k))
    return (name, "gemm", count, "bf16", rows, n, k, flops, 2 * n * k, 0, 0, 2 * rows * (n + k))


def ledger_of(layer: Layer, parallel: Parallel = TWO, precision: Precision = Precision(), **options: Any) -> Ledger:  # noqa: B008 - frozen
    """The operations of one of three equal layers; no head, no messages."""
    conventions = Conventions(**{"logits": "none"} | options)
    found = build_ledger(model_of(layer), BATCH, parallel=parallel, precision=precision, conventions=conventions)
    return Ledger(tuple(op for op in found if op.kind != "collective"))


def core(mixer: Any, parallel: Parallel = TWO, **options: Any) -> list[Row]:
    return [numbers(op) for op in ledger_of(Layer(mixer=mixer), parallel, **options)]
