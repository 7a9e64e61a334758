"""Names of the ledger's matrices by the part of a layer that has them, and the role of each."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.profiles.model import MLP, Layer, MoE

_FFN = ("gate_proj", "up_proj", "down_proj")
_MIXERS: dict[str, tuple[str, ...]] = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mla": ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
}
_INDEXER = ("indexer.wq_b", "indexer.wk", "indexer.weights_proj")


def present(layer: Layer) -> Iterator[str]:
    """Names of the matrices that a layer may have (quantisable ones and the router)."""
    if layer.mixer is not None:
        yield from _MIXERS[layer.mixer.kind]
        if getattr(layer.mixer, "indexer", None) is not None:
            yield from _INDEXER
    if isinstance(layer.ffn, MLP):
        yield from _FFN
    if isinstance(layer.ffn, MoE):
        yield "router"
        yield from (f"experts.{name}" for name in _FFN)
        if layer.ffn.shared_intermediate:
            yield from (f"shared_experts.{name}" for name in _FFN)
        if layer.ffn.shared_gate:
            yield "shared_expert_gate"


def role_of(name: str) -> str:
    """The role under which the ledger looks up a matrix's format."""
    part = name.split(".")[0]
    if part in ("experts", "shared_experts", "indexer"):
        return part
    if name in _FFN:
        return "mlp"
    return "router" if name in ("router", "shared_expert_gate") else "attention"
