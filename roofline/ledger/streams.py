"""Hyper-connections: several residual streams, mixed by a small projection around each part of a layer."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.batch import Array
from roofline.dtypes import DType
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Layer, Model


def stream_tensors(layer: Layer, hidden: int) -> Iterator[Matrix | Vector]:
    """The projection of all streams to their mixing weights (2·s + s² of them), one per part, whole on every rank."""
    s = layer.streams
    if s > 1:
        parts = (layer.mixer is not None) + (layer.ffn is not None)
        yield Matrix("streams", "streams", 2 * s + s * s, s * hidden, parts)
        yield Vector("streams.base", "streams", 2 * s + s * s + 3, parts)


def stream_ops(name: str, layer: Layer, count: int, model: Model, tokens: Array, activation: DType) -> Iterator[Op]:
    """Per part: the projection, and all streams read and written once. FLOPs: the projection and the mixing of s² pairs."""
    s, hidden = layer.streams, model.hidden_size
    for tensor in stream_tensors(layer, hidden):
        if isinstance(tensor, Matrix):
            yield Op(
                name="hyper_connection",
                kind="elementwise",
                layer=name,
                count=count * tensor.copies,
                compute="fp32",
                formula=f"2·m·{tensor.n}·{tensor.k} + 2·m·{s * s + 2 * s}·{hidden}",
                m=tokens,
                n=tensor.n,
                k=tensor.k,
                flops_each=2 * tokens * (tensor.n * tensor.k + (s * s + 2 * s) * hidden),
                weight_bytes_each=tensor.n * tensor.k * tensor.dtype(model, layer, None).bytes_per_element,
                activation_bytes_each=tokens * 2 * s * hidden * activation.bytes_per_element,
            )
