"""Multi-head latent attention: expanded in prefill, absorbed in decode; the latent cache is replicated over tp.

With an indexer every token attends to positions of its own, so that prefill beyond top_k positions runs absorbed too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from roofline.batch import Batch
from roofline.dtypes import DType
from roofline.ledger.mixers.base import CoreContext, core_ops, kv_bytes_per_token, matrices, vectors
from roofline.ledger.mixers.indexer import cached_bytes, indexer_matrices, indexer_op, indexer_vectors
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import MLA


@matrices.register
def _matrices(spec: MLA, hidden: int, tp: int) -> Iterator[Matrix]:
    """The latent projections (q_a, kv_a) are held whole by every rank; the per-head ones are split."""
    heads = spec.heads // tp
    q = heads * (spec.qk_nope_head_dim + spec.qk_rope_head_dim)
    if spec.q_lora_rank is None:
        yield Matrix("q_proj", "attention", q, hidden, input="mla_in")
    else:
        yield Matrix("q_a_proj", "attention", spec.q_lora_rank, hidden, bias=spec.q_lora_rank if spec.bias else 0, input="mla_in")
        yield Matrix("q_b_proj", "attention", q, spec.q_lora_rank)
    yield Matrix("kv_a_proj_with_mqa", "attention", spec.latent_dim, hidden, bias=spec.latent_dim if spec.bias else 0, input="mla_in")
    if spec.indexer:
        yield from indexer_matrices(spec.indexer, hidden, spec.q_lora_rank or hidden)
    yield Matrix("kv_b_proj", "attention", heads * (spec.qk_nope_head_dim + spec.v_head_dim), spec.kv_lora_rank)
    yield Matrix("o_proj", "attention", hidden, heads * spec.v_head_dim, bias=hidden if spec.bias else 0)


@vectors.register
def _vectors(spec: MLA, hidden: int, tp: int) -> Iterator[Vector]:
    if spec.q_lora_rank is not None:
        yield Vector("q_a_layernorm", "norm", spec.q_lora_rank)
    yield Vector("kv_a_layernorm", "norm", spec.kv_lora_rank)
    if spec.indexer:
        yield from indexer_vectors(spec.indexer)


@kv_bytes_per_token.register
def _kv_bytes_per_token(spec: MLA, kv: DType, tp: int, dcp: int) -> float:
    indexed = cached_bytes(spec.indexer) if spec.indexer else 0.0
    return (spec.latent_dim * kv.bytes_per_element + indexed) / dcp


def expanded_and_absorbed(spec: MLA, batch: Batch) -> tuple[Batch, Batch]:
    """The sequences whose K and V are expanded from the latent, and those that attend in it (others get count 0)."""
    expands = batch.new > 1
    if spec.indexer is not None:
        expands = expands & (batch.past + batch.new <= spec.indexer.top_k)
    expanded = Batch(np.where(expands, batch.count, 0.0), batch.new, batch.past)
    return expanded, Batch(batch.count - expanded.count, batch.new, batch.past)


@core_ops.register
def _core_ops(spec: MLA, batch: Batch, context: CoreContext) -> Iterator[Op]:
    expanded, absorbed = expanded_and_absorbed(spec, batch)
    if spec.indexer and not spec.indexer.shared:
        for kind, part in (("prefill_attention", batch.prefilling), ("decode_attention", batch.decoding)):
            if np.any(part.count > 0):
                yield indexer_op(spec.indexer, kind, part, context, part.pairs(), part.past_read(), part.tokens)
    if np.any(expanded.count > 0):
        yield _attention(spec, "prefill_attention", expanded, context, absorbed=False)
    for kind, part in (("prefill_attention", absorbed.prefilling), ("decode_attention", absorbed.decoding)):
        if np.any(part.count > 0):
            yield _attention(spec, kind, part, context, absorbed=True)


def _attention(spec: MLA, kind: str, batch: Batch, context: CoreContext, *, absorbed: bool) -> Op:
    """Absorbed: one KV head of kv_lora_rank + rope in the latent space; expanded: heads of their own."""
    heads, tokens = spec.heads // context.tp, batch.tokens
    top_k = spec.indexer.top_k if spec.indexer else None
    query = spec.latent_dim if absorbed else spec.qk_nope_head_dim + spec.qk_rope_head_dim
    value = spec.kv_lora_rank if absorbed else spec.v_head_dim
    stored = spec.latent_dim * context.kv.bytes_per_element / context.dcp
    read = batch.past_read(top_k=top_k)
    return Op(
        name="attention",
        kind=kind,
        layer=context.layer,
        count=context.count,
        compute=context.activation.compute,
        formula=f"2·pairs·{heads} heads·({query}+{value})" + (" (absorbed)" if absorbed else "") + (f", top {top_k}" if top_k else ""),
        m=tokens,
        n=read,
        k=query,
        flops_each=2 * batch.pairs(causal=context.causal, top_k=top_k) * heads * (query + value),
        kv_read_bytes_each=read * stored,
        kv_write_bytes_each=tokens * stored,
        activation_bytes_each=tokens * heads * (query + value) * context.activation.bytes_per_element,
        shape={"mla": True, "heads": heads, "kv_dtype": context.kv.name, "top_k": top_k},
        batch=batch,
    )
