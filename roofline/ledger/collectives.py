"""Communication of one rank: what tensor, expert and pipeline parallelism send."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.batch import Array, Batch
from roofline.dtypes import DType, dtype
from roofline.ledger.ops import Op
from roofline.ledger.parallel import Parallel
from roofline.profiles.model import Attention, Layer, Model, MoE

_PASSES = {"all_reduce": 2, "norm_all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}


def wire_share(name: str, ranks: int) -> float:
    """Bytes that one rank sends for a message of one byte: passes·(n−1)/n of a ring; all of it for send_recv."""
    return 1.0 if name == "send_recv" else _PASSES[name] * (ranks - 1) / ranks


def collective(name: str, layer: str, count: int, ranks: int, message_bytes: Array) -> Op:
    """One collective of `ranks` ranks over a message of message_bytes (the whole tensor; for all_to_all a rank's own rows)."""
    return Op(
        name=name,
        kind="collective",
        layer=layer,
        count=count,
        compute="",
        formula=f"{name} of {ranks} ranks",
        link_bytes_each=message_bytes * wire_share(name, ranks),
        shape={"ranks": ranks, "bytes": message_bytes},
    )


def layer_collectives(
    name: str, layer: Layer, count: int, model: Model, tokens: Array, parallel: Parallel, activation: DType
) -> Iterator[Op]:
    """After the mixer and after the feed-forward part: an all-reduce over tp; with attention data parallelism the experts'
    tokens travel instead (dispatch and combine, each token to its top_k experts, those on the same rank free). A norm over the
    heads of all ranks adds an all-reduce of its sums of squares before the attention."""
    message = tokens * model.hidden_size * activation.bytes_per_element
    experts_travel = isinstance(layer.ffn, MoE) and parallel.dp > 1
    reduces = 0 if parallel.tp == 1 else sum(part is not None for part in (layer.mixer, layer.ffn))
    if layer.parallel:
        reduces = min(reduces, 1)
    if experts_travel:
        reduces -= 1
    if parallel.tp > 1 and isinstance(layer.mixer, Attention) and layer.mixer.qk_norm == "full":
        yield collective("norm_all_reduce", name, count, parallel.tp, tokens * _norm_sums(layer.mixer) * dtype("fp32").bytes_per_element)
    if reduces > 0:
        yield collective("all_reduce", name, count * reduces, parallel.tp, message)
    if experts_travel and isinstance(layer.ffn, MoE):
        ranks = parallel.tp * parallel.dp
        if parallel.ep > 1:
            own = message * min(layer.ffn.top_k, parallel.ep) / parallel.tp
            yield collective("all_to_all", name, 2 * count, ranks, own)
        else:
            yield collective("all_gather", name, count, ranks, message * parallel.dp)
            yield collective("reduce_scatter", name, count, ranks, message * parallel.dp)


def _norm_sums(mixer: Attention) -> int:
    """FP32 numbers per token that ranks add up for a norm over all heads: one for Q, one for K, in one message (vLLM #31493)."""
    return 1 if mixer.shares_kv else 2


def outer_collectives(model: Model, batch: Batch, parallel: Parallel, activation: DType, stage: int, logits: str) -> Iterator[Op]:
    """The vocabulary-split embedding (all-reduce) and head (all-gather of the logits), and the hand-over between stages."""
    message = batch.tokens * model.hidden_size * activation.bytes_per_element
    if parallel.tp > 1 and stage == 0:
        yield collective("all_reduce", "", 1, parallel.tp, message)
    if parallel.tp > 1 and stage == parallel.pp - 1 and logits != "none":
        rows = batch.tokens if logits == "all" else batch.sequences
        yield collective("all_gather", "", 1, parallel.tp, rows * model.vocab_size * activation.bytes_per_element)
    if stage < parallel.pp - 1:
        yield collective("send_recv", "", 1, 2, message / parallel.tp)
