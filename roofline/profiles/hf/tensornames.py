"""Names of the ledger's matrices by the part of a layer that has them, and the role of each."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.profiles.model import MLP, Layer, MoE

_FFN = ("gate_proj", "up_proj", "down_proj")
_MIXERS: dict[str, tuple[str, ...]] = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "mla": ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    "compressed": ("q_a_proj", "q_b_proj", "kv_proj", "compressor.kv_proj", "compressor.gate_proj", "o_a_proj", "o_b_proj"),
    "gated_delta": ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"),
    "kda": ("q_proj", "k_proj", "v_proj", "b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "o_proj"),
    "mamba2": ("in_proj", "out_proj"),
    "mamba": ("in_proj", "x_proj", "dt_proj", "out_proj"),
}
_INDEXER = ("indexer.wq_b", "indexer.wk", "indexer.weights_proj", "indexer.compressor.kv_proj", "indexer.compressor.gate_proj")
_STATE_MIXERS = ("gated_delta", "kda", "mamba2", "mamba")


def present(layer: Layer) -> Iterator[str]:
    """Names of the matrices that a layer may have (quantisable ones and the router)."""
    if layer.mixer is not None:
        yield from _MIXERS[layer.mixer.kind]
        indexer = getattr(layer.mixer, "indexer", None)
        if indexer is not None and not indexer.shared:
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
        if layer.ffn.latent:
            yield from ("latent_down", "latent_up")


def role_of(name: str, layer: Layer | None = None) -> str:
    """The role under which the ledger looks up a matrix's format."""
    part = name.split(".")[0]
    if name in ("latent_down", "latent_up"):
        return "shared_experts"
    if part in ("experts", "shared_experts", "indexer"):
        return part
    if name in _FFN:
        return "mlp"
    if name in ("router", "shared_expert_gate"):
        return "router"
    return "mixer" if layer is not None and layer.mixer is not None and layer.mixer.kind in _STATE_MIXERS else "attention"
