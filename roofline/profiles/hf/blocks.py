"""What most families have in common: reading attention, windows, feed-forward parts and the outer fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import MLP, Attention, FeedForward, MoE

ATTENTION = {name: f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
DENSE = {name: f"mlp.{name}" for name in ("gate_proj", "up_proj", "down_proj")}
EXPERTS = {"router": "mlp.gate"} | {f"experts.{name}": f"mlp.experts.*.{name}" for name in DENSE}
SHARED = {f"shared_experts.{name}": f"mlp.shared_experts.{name}" for name in DENSE}


def outer(c: Keys, *, tie: bool = False, dtype: str = "bf16") -> dict[str, Any]:
    """Fields of Model outside the layers; tie: the family's default of tie_word_embeddings."""
    given = c.raw(c.first("dtype", "torch_dtype"))
    if given in (None, "auto"):
        c.assume(f"no dtype is given: {dtype}")
        given = dtype
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}
    if not isinstance(given, str) or given not in names:
        raise c.fail(c.first("dtype", "torch_dtype"), f"{given!r} is not supported; supported: bfloat16, float16, float32")
    return {
        "hidden_size": c.whole("hidden_size"),
        "vocab_size": c.whole("vocab_size"),
        "max_position_embeddings": c.whole("max_position_embeddings", optional=True),
        "tie_word_embeddings": c.flag("tie_word_embeddings", tie),
        "dtype": names[given],
    }


def attention(c: Keys, *, head_dim: int | None = None, qkv_bias: bool = False, o_bias: bool = False, **more: Any) -> Attention:
    """Attention from num_attention_heads, num_key_value_heads and head_dim (default: given, else hidden_size / heads)."""
    heads = c.whole("num_attention_heads")
    kv_heads = c.whole("num_key_value_heads", heads)
    if heads % kv_heads:
        raise c.fail("num_key_value_heads", f"is {kv_heads}, which does not divide num_attention_heads = {heads}")
    width = c.whole("head_dim", head_dim, optional=True)
    if width is None:
        hidden = c.whole("hidden_size")
        if hidden % heads:
            raise c.fail("num_attention_heads", f"is {heads}, which does not divide hidden_size = {hidden}, and no head_dim is given")
        width = hidden // heads
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=width, qkv_bias=qkv_bias, o_bias=o_bias, **more)


def mlp(c: Keys, key: str = "intermediate_size", *, bias: bool = False, gated: bool = True) -> MLP:
    """Dense feed-forward of the width in `key`."""
    return MLP(intermediate=c.whole(key), bias=bias, gated=gated)


def top_k_of(c: Keys, experts: int, *names: str) -> int:
    """Experts per token, checked against their number."""
    name = c.first(*names)
    top_k = c.whole(name)
    if top_k > experts:
        raise c.fail(name, f"is {top_k}, more than the {experts} experts")
    return top_k


def windows(c: Keys, layers: int, default: Sequence[str] | None = None) -> list[bool]:
    """Per layer, whether it slides, from layer_types or `default` ("sliding_attention" or "full_attention" per layer)."""
    types = c.choices("layer_types", layers, ("full_attention", "sliding_attention")) or list(default or ["full_attention"] * layers)
    return [kind == "sliding_attention" for kind in types]


def sparse_layers(c: Keys, layers: int) -> list[bool]:
    """Per layer, whether it has experts: decoder_sparse_step and mlp_only_layers as in Qwen's MoE models."""
    step = c.whole("decoder_sparse_step", 1)
    only = c.items("mlp_only_layers") or []
    for i in only:
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < layers:
            raise c.fail("mlp_only_layers", f"names layer {i!r}; the model has layers 0 to {layers - 1}")
    return [i not in only and (i + 1) % step == 0 for i in range(layers)]


def qwen_moe(c: Keys) -> MoE:
    """Qwen's mixture of experts, with or without a gated shared expert."""
    experts = c.whole(c.first("num_experts", "num_local_experts"))
    shared = c.whole("shared_expert_intermediate_size", optional=True, minimum=0) or 0
    return MoE(
        experts=experts,
        top_k=top_k_of(c, experts, "num_experts_per_tok"),
        intermediate=c.whole("moe_intermediate_size"),
        shared_intermediate=shared,
        shared_gate=shared > 0,
    )


def deepseek_moe(c: Keys, *, router_bias: bool) -> MoE:
    """DeepSeek's: n_routed_experts, of which n_shared_experts more run for every token."""
    experts, width = c.whole("n_routed_experts"), c.whole("moe_intermediate_size")
    return MoE(
        experts=experts,
        top_k=top_k_of(c, experts, "num_experts_per_tok"),
        intermediate=width,
        shared_intermediate=width * c.whole("n_shared_experts", 0, minimum=0),
        router_bias=router_bias,
    )


def dense_first(c: Keys, layers: int) -> list[bool]:
    """Per layer, whether it has experts: all but the first first_k_dense_replace, every moe_layer_freq-th; mlp_layer_types wins."""
    first = c.whole("first_k_dense_replace", 0, minimum=0)
    if first > layers:
        raise c.fail("first_k_dense_replace", f"is {first}, more than the {layers} layers")
    every = c.whole("moe_layer_freq", 1)
    rule = [i >= first and i % every == 0 for i in range(layers)]
    types = c.choices("mlp_layer_types", layers, ("dense", "sparse"))
    if types is None:
        return rule
    listed = [kind == "sparse" for kind in types]
    if "first_k_dense_replace" in c.data and listed != rule:
        raise c.fail("mlp_layer_types", "contradicts first_k_dense_replace and moe_layer_freq")
    return listed


def kind_of(ffn: FeedForward | None, mixer: str = "") -> str:
    """A name for a layer: what its mixer is called, and moe or dense."""
    part = "" if ffn is None else "moe" if isinstance(ffn, MoE) else "dense"
    return "_".join(text for text in (mixer, part) if text)
