"""The same model under another attention layout: what its KV cache would be as MHA, GQA, MQA or MLA."""

from __future__ import annotations

import re

from roofline.errors import InputError
from roofline.profiles.model import MLA, Attention, Model


def with_layout(model: Model, layout: str) -> Model:
    """`model` with every attention layer as `layout`: "mha", "gqa:8" (that many KV heads), "mqa" or "mla".

    Windows stay. An MLA layer becomes heads of qk_nope + qk_rope (K) and v_head_dim (V). "mla" caches a latent of 4·head_dim and
    a rotary key of head_dim/2, the ratio of DeepSeek-V2 (arXiv 2405.04434, section 2.1.4), and has no window. Raises InputError.
    """
    match = re.fullmatch(r"(mha|mqa|mla)|gqa:(\d{1,6})", layout.strip().lower())
    if not match:
        raise InputError(f"unknown attention layout {layout!r}; write mha, gqa:N (N KV heads), mqa or mla")
    layers = {}
    for name, layer in model.layers.items():
        mixer = layer.mixer
        if isinstance(mixer, Attention | MLA):
            mixer = _as_mla(mixer) if match[1] == "mla" else _as_heads(mixer, _kv_heads(match, mixer, layout, name))
        layers[name] = layer.model_copy(update={"mixer": mixer})
    return model.model_copy(update={"layers": layers})


def _kv_heads(match: re.Match[str], mixer: Attention | MLA, layout: str, layer: str) -> int:
    kv_heads = {"mha": mixer.heads, "mqa": 1}.get(match[1]) or int(match[2] or 0)
    if not kv_heads or mixer.heads % kv_heads:
        raise InputError(f"{layout}: {kv_heads} KV heads must divide the {mixer.heads} heads of layers.{layer}")
    return kv_heads


def _as_heads(mixer: Attention | MLA, kv_heads: int) -> Attention:
    if isinstance(mixer, Attention):
        return mixer.model_copy(update={"kv_heads": kv_heads})
    head_dim = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    return Attention(heads=mixer.heads, kv_heads=kv_heads, head_dim=head_dim, v_head_dim=mixer.v_head_dim)


def _as_mla(mixer: Attention | MLA) -> MLA:
    if isinstance(mixer, MLA):
        return mixer
    d = mixer.head_dim
    return MLA(heads=mixer.heads, kv_lora_rank=4 * d, qk_nope_head_dim=d, qk_rope_head_dim=max(d // 2, 1), v_head_dim=mixer.value_dim)
