"""Element-wise work of a layer: norms, activation, residual adds. Engines fuse most of it; the bound leaves it out."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.batch import Array
from roofline.dtypes import DType
from roofline.ledger.ops import Op
from roofline.ledger.parallel import Parallel
from roofline.profiles.model import MLP, Layer, MoE


def layer_elementwise(
    name: str, layer: Layer, count: int, hidden: int, tokens: Array, parallel: Parallel, activation: DType
) -> Iterator[Op]:
    """Norms (7 FLOP per element), residual adds (1) and the activation function (1 per element, and 1 for the product with
    the up projection when gated), each reading its inputs and writing its output."""
    ab = activation.bytes_per_element

    def op(what: str, times: int, flops: float, reads: float, writes: float) -> Op:
        return Op(
            name=what,
            kind="elementwise",
            layer=name,
            count=count * times,
            compute="fp32",
            formula=f"{flops:g} FLOP per token",
            m=tokens,
            n=writes,
            flops_each=tokens * flops,
            activation_bytes_each=tokens * (reads + writes) * ab,
        )

    if layer.norms:
        yield op("norm", layer.norms, 7 * hidden, hidden, hidden)
    adds = sum(part is not None for part in (layer.mixer, layer.ffn))
    yield op("residual_add", adds, hidden, 2 * hidden, hidden)
    if isinstance(layer.ffn, MLP):
        width = layer.ffn.intermediate // parallel.tp
        yield op("mlp_act", 1, (2 if layer.ffn.gated else 1) * width, (2 if layer.ffn.gated else 1) * width, width)
    if isinstance(layer.ffn, MoE):
        routed = layer.ffn.intermediate // parallel.moe_tp * layer.ffn.top_k * parallel.dp / parallel.ep
        yield op("experts_act", 1, (2 if layer.ffn.gated else 1) * routed, (2 if layer.ffn.gated else 1) * routed, routed)
