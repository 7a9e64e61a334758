"""The weights of one rank as a list of tensors: parameters, bytes and GEMM shapes all come from here."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from roofline.ledger import ffn, mixers
from roofline.ledger.parallel import SINGLE, Parallel
from roofline.ledger.streams import stream_tensors
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Extra, Layer, Model, MoE


def layer_tensors(layer: Layer, hidden: int, parallel: Parallel = SINGLE) -> Iterator[Matrix | Vector]:
    """Tensors of one layer on one rank, each with the number of copies the rank holds."""
    if layer.mixer is not None:
        yield from mixers.matrices(layer.mixer, hidden, parallel.tp)
        yield from mixers.vectors(layer.mixer, hidden, parallel.tp)
    if layer.ffn is not None:
        yield from ffn.matrices(layer.ffn, hidden, parallel)
        yield from ffn.vectors(layer.ffn, hidden, parallel)
    if layer.norms:
        yield Vector("norm", "norm", hidden * (2 if layer.norm_bias else 1), layer.norms)
    for name, size in layer.vectors.items():
        yield Vector(name, "norm", size)
    yield from stream_tensors(layer, hidden)


def outer_tensors(model: Model, parallel: Parallel = SINGLE, *, first: bool = True, last: bool = True) -> Iterator[Matrix | Vector]:
    """Embedding, head and final norm of one rank; first, last: it holds the first or last pipeline stage.

    The vocabulary is split over tp, rounded up. A tied head is the embedding itself (on a last stage of its own, a copy).
    """
    h = model.hidden_size
    rows = -(-model.vocab_size // parallel.tp)
    if first:
        yield Matrix("embed_tokens", "embedding", rows, h)
        if model.learned_positions:
            yield Vector("embed_positions", "embedding", model.learned_positions * h)
        if model.embedding_norm:
            yield Vector("embedding_norm", "norm", h * (2 if model.norm_bias else 1))
    if last:
        if not model.tie_word_embeddings or not first:
            yield Matrix("lm_head", "embedding" if model.tie_word_embeddings else "lm_head", rows, h)
        if model.lm_head_bias:
            yield Vector("lm_head.bias", "bias", rows)
        if model.final_norm:
            yield Vector("final_norm", "norm", h * (2 if model.norm_bias else 1))
        for name, size in model.vectors.items():
            yield Vector(name, "norm", size)


@dataclass(frozen=True)
class WeightSummary:
    """Parameters and bytes of a set of tensors, whole and by role."""

    parameters: int
    bytes: float
    bytes_by_role: dict[str, float]


def stage_weights(model: Model, parallel: Parallel = SINGLE, *, stage: int = 0, weights: str | None = None) -> WeightSummary:
    """Parameters and bytes that one GPU of a pipeline stage holds, scales of quantised formats included.

    weights: a format in place of the checkpoint's. Extras (vision towers, MTP) are not in it.
    """
    parallel.check(model)
    found = _by_formats(model, parallel, stage, weights)
    if weights is not None or not model.checkpoint_bytes:
        return found
    whole = found if parallel.gpus == 1 else _by_formats(model, SINGLE, 0, None)
    return _as_stored(found, whole, model.checkpoint_bytes)


def _as_stored(found: WeightSummary, whole: WeightSummary, stored: Mapping[str, float]) -> WeightSummary:
    """A rank's share of the exact bytes of the files: of each role the share that its formats give."""
    share = {role: found.bytes_by_role.get(role, 0.0) / total for role, total in whole.bytes_by_role.items() if total}
    by_role = {role: size * share.get(role, found.bytes / whole.bytes) for role, size in stored.items()}
    return WeightSummary(found.parameters, sum(by_role.values()), by_role)


def _by_formats(model: Model, parallel: Parallel, stage: int, weights: str | None) -> WeightSummary:
    layers = Counter(parallel.stages(model)[stage])
    parameters, by_role = 0, defaultdict[str, float](float)
    for tensor in outer_tensors(model, parallel, first=stage == 0, last=stage == parallel.pp - 1):
        parameters += tensor.parameters
        by_role[tensor.role] += tensor.bytes(model, None, weights)
    for name, count in layers.items():
        layer = model.layers[name]
        for tensor in layer_tensors(layer, model.hidden_size, parallel):
            parameters += count * tensor.parameters
            by_role[tensor.role] += count * tensor.bytes(model, layer, weights)
    return WeightSummary(parameters, sum(by_role.values()), dict(by_role))


def extra_weights(model: Model, extra: Extra, *, weights: str | None = None) -> WeightSummary:
    """Parameters and bytes of a part that decoding does not run: its layers and what it has beside them. One GPU, unsplit."""
    parameters, by_role = extra.parameters, defaultdict[str, float](float)
    by_role["extra"] = extra.bytes
    for name in extra.stack:
        layer = model.layers[name]
        for tensor in layer_tensors(layer, model.hidden_size):
            parameters += tensor.parameters
            by_role[tensor.role] += tensor.bytes(model, layer, weights)
    return WeightSummary(parameters, sum(by_role.values()), dict(by_role))


def parameters(model: Model) -> int:
    """All parameters of the text model: MTP and vision parts (extras) are counted apart."""
    return stage_weights(model).parameters


def active_parameters(model: Model) -> int:
    """Parameters that one token uses: of the routed experts only top_k; an embedding table that is not the head too counts as one row."""
    unused = 0 if model.tie_word_embeddings else (model.vocab_size - 1) * model.hidden_size
    total = parameters(model) - unused
    for name, count in Counter(model.stack).items():
        layer = model.layers[name]
        if isinstance(layer.ffn, MoE):
            expert = sum(t.parameters for t in ffn.matrices(layer.ffn, model.hidden_size, SINGLE) if t.role == "experts")
            total -= count * expert * (layer.ffn.experts - layer.ffn.top_k) // layer.ffn.experts
    return total
