"""Attention over compressed positions with a plain window beside them (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.batch import Array, Batch
from roofline.dtypes import DType
from roofline.ledger.mixers.base import CoreContext, core_ops, kv_bytes_per_token, matrices, state_bytes, vectors
from roofline.ledger.mixers.indexer import cached_bytes, indexer_op
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Compressed

_WINDOW_BYTES, _STATE_BYTES = 2, 4  # the window is kept in 16 bits, the pool that is being filled in fp32


def _widths(spec: Compressed) -> list[tuple[str, int]]:
    """(prefix, head width) of each compressor: the cache's and the indexer's."""
    found = [("compressor", spec.head_dim)] if spec.ratio else []
    return found + ([("indexer.compressor", spec.indexer.head_dim)] if spec.indexer else [])


@matrices.register
def _matrices(spec: Compressed, hidden: int, tp: int) -> Iterator[Matrix]:
    """Q and output per head are split, all else is held whole by every rank (one KV head)."""
    heads, groups = spec.heads // tp, max(1, spec.out_groups // tp)
    yield Matrix("q_a_proj", "attention", spec.q_lora_rank, hidden, input="compressed")
    yield Matrix("q_b_proj", "attention", heads * spec.head_dim, spec.q_lora_rank)
    yield Matrix("kv_proj", "attention", spec.head_dim, hidden, input="compressed")
    for prefix, width in _widths(spec):
        role = "indexer" if prefix.startswith("indexer") else "attention"
        for name in ("kv_proj", "gate_proj"):
            yield Matrix(f"{prefix}.{name}", role, width * (1 + spec.overlap), hidden, input="compressed")
    if spec.indexer:
        yield Matrix("indexer.wq_b", "indexer", spec.indexer.heads * spec.indexer.head_dim, spec.q_lora_rank)
        yield Matrix("indexer.weights_proj", "indexer", spec.indexer.heads, hidden, input="compressed")
    yield Matrix("o_a_proj", "attention", groups * spec.out_lora_rank, spec.heads // spec.out_groups * spec.head_dim)
    yield Matrix("o_b_proj", "attention", hidden, groups * spec.out_lora_rank)


@vectors.register
def _vectors(spec: Compressed, hidden: int, tp: int) -> Iterator[Vector]:
    yield Vector("sinks", "norm", spec.heads // tp)
    yield Vector("q_a_norm", "norm", spec.q_lora_rank)
    yield Vector("kv_norm", "norm", spec.head_dim)
    for prefix, width in _widths(spec):
        yield Vector(f"{prefix}.position_bias", "norm", (spec.ratio or 0) * width * (1 + spec.overlap))
        yield Vector(f"{prefix}.kv_norm", "norm", width)


@kv_bytes_per_token.register
def _kv_bytes_per_token(spec: Compressed, kv: DType, tp: int, dcp: int) -> float:
    """The slope: one entry per `ratio` positions. The window and the pool being filled are a fixed state."""
    if not spec.ratio:
        return 0.0
    return (spec.head_dim * kv.bytes_per_element + (cached_bytes(spec.indexer) if spec.indexer else 0.0)) / spec.ratio


@state_bytes.register
def _state_bytes(spec: Compressed, tp: int, drafts: int = 0) -> float:
    """The window's positions, and keys and gates of the pools that are not full yet."""
    pools = sum(2 * (spec.ratio or 0) * (1 + spec.overlap) ** 2 * width * _STATE_BYTES for _, width in _widths(spec))
    return float(spec.window * spec.head_dim * _WINDOW_BYTES + pools)


def entries_seen(batch: Batch, ratio: int, top_k: int | None = None) -> Array:
    """Query-entry pairs: the token at position q sees the ⌊(q+1)/ratio⌋ entries that are complete, at most top_k of them."""
    upto = _sum_of_quotients(batch.past + batch.new, ratio, top_k) - _sum_of_quotients(batch.past, ratio, top_k)
    return np.asarray((batch.count * upto).sum(axis=-1))


def _sum_of_quotients(m: Array, ratio: int, top_k: int | None) -> Array:
    """Σ for j = 1..m of min(⌊j/ratio⌋, top_k)."""
    plain = m if top_k is None else np.minimum(m, top_k * ratio - 1)
    whole, rest = np.divmod(plain, ratio)
    total = ratio * whole * (whole - 1) / 2 + whole * (rest + 1)
    return np.asarray(total if top_k is None else total + top_k * (m - plain))


@core_ops.register
def _core_ops(spec: Compressed, batch: Batch, context: CoreContext) -> Iterator[Op]:
    for kind, part in (("prefill_attention", batch.prefilling), ("decode_attention", batch.decoding)):
        if np.any(part.count > 0):
            if spec.indexer and spec.ratio:
                cached, new = _entries(part, spec.ratio)
                yield indexer_op(spec.indexer, kind, part, context, entries_seen(part, spec.ratio), cached, new)
            yield _attention(spec, kind, part, context)


def _entries(batch: Batch, ratio: int, top_k: int | None = None) -> tuple[Array, Array]:
    """Entries read from the cache and entries completed by the pass, over all sequences."""
    cached, after = np.floor(batch.past / ratio), np.floor((batch.past + batch.new) / ratio)
    read = cached if top_k is None else np.minimum(cached, batch.new * top_k)
    return np.asarray((batch.count * read).sum(axis=-1)), np.asarray((batch.count * (after - cached)).sum(axis=-1))


def _attention(spec: Compressed, kind: str, batch: Batch, context: CoreContext) -> Op:
    heads, tokens = spec.heads // context.tp, batch.tokens
    top_k = spec.indexer.top_k if spec.indexer else None
    pairs, read, written = batch.pairs(window=spec.window, causal=context.causal), batch.past_read(window=spec.window), tokens
    if spec.ratio:
        entries, new = _entries(batch, spec.ratio, top_k)
        pairs, read, written = pairs + entries_seen(batch, spec.ratio, top_k), read + entries, written + new
    stored = spec.head_dim * context.kv.bytes_per_element
    return Op(
        name="attention",
        kind=kind,
        layer=context.layer,
        count=context.count,
        compute=context.activation.compute,
        formula=f"2·pairs·{heads} heads·(2·{spec.head_dim}); window {spec.window}, 1 entry per {spec.ratio or '–'}",
        m=tokens,
        n=read,
        k=spec.head_dim,
        flops_each=4 * pairs * heads * spec.head_dim,
        kv_read_bytes_each=read * stored,
        kv_write_bytes_each=written * stored,
        activation_bytes_each=2 * tokens * heads * spec.head_dim * context.activation.bytes_per_element,
        shape={"compressed": True, "heads": heads, "kv_heads": 1, "head_dim": spec.head_dim},
        batch=batch,
    )
