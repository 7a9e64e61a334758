"""The indexer of sparse attention: scores all cached positions with small heads so that attention reads only the best."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.batch import Array, Batch
from roofline.ledger.mixers.base import CoreContext
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Indexer


def indexer_matrices(spec: Indexer, hidden: int, query_rank: int) -> Iterator[Matrix]:
    """Projections, whole on every rank: engines replicate the indexer. query_rank: width that its queries come from."""
    if not spec.shared:
        yield Matrix("indexer.wq_b", "indexer", spec.heads * spec.head_dim, query_rank)
        yield Matrix("indexer.wk", "indexer", spec.head_dim, hidden)
        yield Matrix("indexer.weights_proj", "indexer", spec.heads, hidden)


def indexer_vectors(spec: Indexer) -> Iterator[Vector]:
    """The LayerNorm of its keys."""
    if not spec.shared:
        yield Vector("indexer.k_norm", "norm", 2 * spec.head_dim)


def cached_bytes(spec: Indexer) -> float:
    """Bytes of one cached index key; 0 for a layer that shares another's indexer."""
    return 0.0 if spec.shared else spec.head_dim * spec.cache_bits / 8


def indexer_op(spec: Indexer, kind: str, batch: Batch, context: CoreContext, pairs: Array, read: Array, written: Array) -> Op:
    """Scores of `pairs` query-key pairs: a dot product per head and the weighted sum over heads; `read` keys come from memory."""
    return Op(
        name="indexer",
        kind=kind,
        layer=context.layer,
        count=context.count,
        compute="fp8" if spec.cache_bits < 16 else context.activation.compute,
        formula=f"2·pairs·{spec.heads} heads·({spec.head_dim}+1)",
        m=batch.tokens,
        n=read,
        k=spec.head_dim,
        flops_each=2 * pairs * spec.heads * (spec.head_dim + 1),
        kv_read_bytes_each=read * cached_bytes(spec) / context.dcp,
        kv_write_bytes_each=written * cached_bytes(spec) / context.dcp,
        activation_bytes_each=batch.tokens * spec.heads * (spec.head_dim + 1) * context.activation.bytes_per_element,
        shape={"indexer": True, "heads": spec.heads, "kv_heads": 1, "head_dim": spec.head_dim},
        batch=batch,
    )
