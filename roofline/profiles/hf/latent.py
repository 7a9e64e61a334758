"""Families with latent attention: DeepSeek-V2, V3, R1, Kimi-K2; and GLM-4.5, which shares their mixture of experts."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import blocks
from roofline.profiles.hf.dense import mtp
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import MLA, FeedForward, Layer

LATENT = {name: f"self_attn.{name}" for name in ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")}
MODULES = LATENT | blocks.DENSE | blocks.EXPERTS | blocks.SHARED


def mla(c: Keys) -> MLA:
    """The latent attention of a configuration."""
    heads = c.whole("num_attention_heads")
    if (kv := c.whole("num_key_value_heads", heads)) != heads:
        raise c.fail("num_key_value_heads", f"is {kv}; latent attention has as many as num_attention_heads = {heads}")
    nope, rope = c.whole("qk_nope_head_dim"), c.whole("qk_rope_head_dim")
    c.expect("qk_head_dim", nope + rope)
    c.expect("head_dim", rope, nope, nope + rope)
    return MLA(
        heads=heads,
        q_lora_rank=c.whole("q_lora_rank", optional=True),
        kv_lora_rank=c.whole("kv_lora_rank"),
        qk_nope_head_dim=nope,
        qk_rope_head_dim=rope,
        v_head_dim=c.whole("v_head_dim"),
        bias=c.flag("attention_bias"),
    )


def _deepseek(c: Keys, *, router_bias: bool) -> Draft:
    layers = c.whole("num_hidden_layers")
    sparse = blocks.dense_first(c, layers)
    moe: FeedForward = blocks.deepseek_moe(c, router_bias=router_bias)
    dense: FeedForward = blocks.mlp(c)
    mixer = mla(c)
    stack = [("moe" if is_moe else "dense", Layer(mixer=mixer, ffn=moe if is_moe else dense)) for is_moe in sparse]
    outer = blocks.outer(c)
    draft = Draft(stack, outer, modules=MODULES)
    if (count := c.whole("num_nextn_predict_layers", 0, minimum=0)) > 0:
        draft.extras.append(mtp(stack[-1], count, outer, tables=True))
    return draft


def deepseek_v2(c: Keys) -> Draft:
    """DeepSeek-V2: softmax routing, no correction vector."""
    return _deepseek(c, router_bias=False)


def deepseek_v3(c: Keys) -> Draft:
    """DeepSeek-V3, R1, V3.1 and Kimi-K2: sigmoid routing with a correction vector."""
    c.expect("topk_method", "noaux_tc")
    return _deepseek(c, router_bias=True)


def glm4_moe(c: Keys) -> Draft:
    """GLM-4.5 to 4.7: grouped attention with biases on Q, K, V; experts as in DeepSeek-V3."""
    layers = c.whole("num_hidden_layers")
    norm = "head" if c.flag("use_qk_norm") else "none"
    attention = blocks.attention(c, head_dim=128, qkv_bias=c.flag("attention_bias"), qk_norm=norm)
    sparse = blocks.dense_first(c, layers)
    moe: FeedForward = blocks.deepseek_moe(c, router_bias=True)
    dense: FeedForward = blocks.mlp(c)
    stack = [("moe" if is_moe else "dense", Layer(mixer=attention, ffn=moe if is_moe else dense)) for is_moe in sparse]
    outer = blocks.outer(c)
    draft = Draft(stack, outer, modules=blocks.ATTENTION | blocks.DENSE | blocks.EXPERTS | blocks.SHARED)
    if (count := c.whole("num_nextn_predict_layers", 0, minimum=0)) > 0:
        draft.extras.append(mtp(stack[-1], count, outer, tables=True))
    return draft


FAMILIES: dict[str, Callable[[Keys], Draft]] = {
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "glm4_moe": glm4_moe,
}
