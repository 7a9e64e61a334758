"""Families with latent attention: DeepSeek-V2 to V3.2, R1, Kimi-K2, GLM-5; and GLM-4.5, which shares their experts."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import blocks
from roofline.profiles.hf.dense import mtp
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import MLA, FeedForward, Indexer, Layer

LATENT = {name: f"self_attn.{name}" for name in ("q_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")}
_INDEXER = {f"indexer.{name}": f"self_attn.indexer.{name}" for name in ("wq_b", "wk", "weights_proj")}
MODULES = LATENT | _INDEXER | blocks.DENSE | blocks.EXPERTS | blocks.SHARED


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


def _deepseek(c: Keys, *, router_bias: bool, indexers: list[Indexer | None] | None = None) -> Draft:
    layers = c.whole("num_hidden_layers")
    c.expect("mlp_bias", False)
    sparse = blocks.dense_first(c, layers)
    moe: FeedForward = blocks.deepseek_moe(c, router_bias=router_bias)
    dense: FeedForward = blocks.mlp(c)
    mixer = mla(c)
    stack = []
    for is_moe, indexer in zip(sparse, indexers or [None] * layers, strict=True):
        layer = Layer(mixer=mixer.model_copy(update={"indexer": indexer}), ffn=moe if is_moe else dense)
        stack.append((blocks.kind_of(layer.ffn, "reuse" if indexer and indexer.shared else ""), layer))
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


def sparse_mla(c: Keys) -> Draft:
    """DeepSeek-V3.2 and GLM-5: V3 with an indexer in each layer, or in some layers whose choice the next ones reuse."""
    c.expect("topk_method", "noaux_tc")
    layers = c.whole("num_hidden_layers")
    own = Indexer(heads=c.whole("index_n_heads"), head_dim=c.whole("index_head_dim"), top_k=c.whole("index_topk"))
    reused = own.model_copy(update={"shared": True})
    c.choices("layer_types", layers, ("deepseek_sparse_attention",))
    c.expect("index_topk_pattern", None)
    types = c.choices("indexer_types", layers, ("full", "shared"))
    every, first = c.whole("index_topk_freq", optional=True), c.whole("index_skip_topk_offset", optional=True, minimum=0)
    if types is None and every:
        types = ["full" if max(i - (first or 1) + 1, 0) % every == 0 else "shared" for i in range(layers)]
    if types and types[0] != "full":
        raise c.fail("indexer_types", "the first layer reuses an indexer, but there is none before it")
    c.expect("num_experts", c.whole("n_routed_experts"))
    c.expect("mlp_bias", False)
    indexers = [own if kind == "full" else reused for kind in types or ["full"] * layers]
    draft = _deepseek(c, router_bias=True, indexers=list(indexers))
    indexed = mla(c).model_copy(update={"indexer": own})
    for extra in draft.extras:  # the block for the next tokens has an indexer of its own
        extra.layers = [("moe", layer.model_copy(update={"mixer": indexed})) for _, layer in extra.layers]
    return draft


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
    "deepseek_v32": sparse_mla,
    "glm_moe_dsa": sparse_mla,
    "glm4_moe": glm4_moe,
}
