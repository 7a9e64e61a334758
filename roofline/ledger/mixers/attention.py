"""Softmax attention with K and V heads (MHA, GQA, MQA; windows and chunks)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.dtypes import DType
from roofline.ledger.mixers.base import CoreContext, core_ops, kv_bytes_per_token, kv_tokens_stored, matrices, vectors
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Attention


def kv_heads_per_rank(spec: Attention, tp: int) -> int:
    """KV heads on one rank: kv_heads/tp, and at least one (heads replicate when tp > kv_heads)."""
    return max(1, spec.kv_heads // tp)


@matrices.register
def _matrices(spec: Attention, hidden: int, tp: int) -> Iterator[Matrix]:
    q = spec.heads // tp * spec.head_dim * (2 if spec.output_gate else 1)
    kv = kv_heads_per_rank(spec, tp)

    def projection(name: str, n: int) -> Matrix:
        return Matrix(name, "attention", n, hidden, bias=n if spec.qkv_bias else 0, input="qkv")

    yield projection("q_proj", q)
    if not spec.shares_kv:
        yield projection("k_proj", kv * spec.head_dim)
        if not spec.k_is_v:
            yield projection("v_proj", kv * spec.value_dim)
    yield Matrix("o_proj", "attention", hidden, spec.heads // tp * spec.value_dim, bias=hidden if spec.o_bias else 0)


@vectors.register
def _vectors(spec: Attention, hidden: int, tp: int) -> Iterator[Vector]:
    if spec.qk_norm != "none":
        whole = spec.qk_norm == "full"
        q = spec.heads // tp * spec.head_dim if whole else spec.head_dim
        k = kv_heads_per_rank(spec, tp) * spec.head_dim if whole else spec.head_dim
        yield Vector("q_norm", "norm", q * (2 if spec.qk_norm_bias else 1))
        if not spec.shares_kv:
            yield Vector("k_norm", "norm", k * (2 if spec.qk_norm_bias else 1))
    if spec.sinks:
        yield Vector("sinks", "norm", spec.heads // tp)


@kv_bytes_per_token.register
def _kv_bytes_per_token(spec: Attention, kv: DType, tp: int, dcp: int) -> float:
    if spec.shares_kv:
        return 0.0
    return kv_heads_per_rank(spec, tp) * (spec.head_dim + spec.value_dim) * kv.bytes_per_element


@kv_tokens_stored.register
def _kv_tokens_stored(spec: Attention, context: NDArray[np.float64]) -> NDArray[np.float64]:
    limit = spec.window or spec.chunk
    return context if limit is None else np.minimum(context, limit)


@core_ops.register
def _core_ops(spec: Attention, batch: Batch, context: CoreContext) -> Iterator[Op]:
    for kind, part in (("prefill_attention", batch.prefilling), ("decode_attention", batch.decoding)):
        if np.any(part.count > 0):
            yield from _naive(spec, kind, part, context) if context.naive else [_flash(spec, kind, part, context)]


def _flash(spec: Attention, kind: str, batch: Batch, context: CoreContext) -> Op:
    """One fused kernel: scores never touch memory, each cached K and V is read once, those of new tokens are written once."""
    heads, kv_heads = spec.heads // context.tp, kv_heads_per_rank(spec, context.tp)
    width = spec.head_dim + spec.value_dim
    per_position = kv_heads * width * context.kv.bytes_per_element
    tokens = batch.tokens
    read = batch.past_read(window=spec.window, chunk=spec.chunk)
    return Op(
        name="attention",
        kind=kind,
        layer=context.layer,
        count=context.count,
        compute=context.activation.compute,
        formula=f"2·pairs·{heads} heads·({spec.head_dim}+{spec.value_dim})",
        m=tokens,
        n=read,
        k=spec.head_dim,
        flops_each=2 * batch.pairs(window=spec.window, chunk=spec.chunk, causal=context.causal) * heads * width,
        kv_read_bytes_each=read * per_position,
        kv_write_bytes_each=0.0 if spec.shares_kv else tokens * per_position,
        activation_bytes_each=tokens * heads * width * context.activation.bytes_per_element,
        shape={
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": spec.head_dim,
            "v_head_dim": spec.value_dim,
            "window": spec.window or 0,
            "kv_dtype": context.kv.name,
        },
        batch=batch,
    )


def _naive(spec: Attention, kind: str, batch: Batch, context: CoreContext) -> Iterator[Op]:
    """Three kernels with the scores stored between them: Q·Kᵀ, softmax, S·V (for contrast; engines do not do this)."""
    heads, kv_heads = spec.heads // context.tp, kv_heads_per_rank(spec, context.tp)
    ab, kvb = context.activation.bytes_per_element, context.kv.bytes_per_element
    tokens, pairs = batch.tokens, batch.pairs(window=spec.window, chunk=spec.chunk, causal=context.causal)
    scores = batch.pairs(window=spec.window, chunk=spec.chunk, causal=False) * heads
    read = batch.past_read(window=spec.window, chunk=spec.chunk)
    for name, dim in (("qk_matmul", spec.head_dim), ("softmax", 0), ("sv_matmul", spec.value_dim)):
        softmax = name == "softmax"
        yield Op(
            name=name,
            kind="softmax" if softmax else kind,
            layer=context.layer,
            count=context.count,
            compute=context.activation.compute,
            formula="5·scores" if softmax else f"2·pairs·{heads} heads·{dim}",
            m=tokens,
            n=read,
            k=dim,
            flops_each=5 * scores if softmax else 2 * pairs * heads * dim,
            kv_read_bytes_each=read * kv_heads * dim * kvb,
            kv_write_bytes_each=0.0 if spec.shares_kv else tokens * kv_heads * dim * kvb,
            activation_bytes_each=scores * ab * (2 if softmax else 1) + tokens * heads * dim * ab,
            batch=batch,
        )
