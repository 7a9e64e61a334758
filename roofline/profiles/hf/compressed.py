"""DeepSeek-V4: attention over compressed positions, hyper-connections, the first layers routed by a table."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import blocks
from roofline.profiles.hf.draft import Draft, ExtraDraft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import Compressed, Indexer, Layer

_OVERLAPPING = 4  # pools of 4 also see the pool before them and have an indexer; pools of 128 have neither

_MODULES = {
    "q_a_proj": "attn.wq_a", "q_b_proj": "attn.wq_b", "kv_proj": "attn.wkv", "o_a_proj": "attn.wo_a", "o_b_proj": "attn.wo_b",
    "compressor.kv_proj": "attn.compressor.wkv", "compressor.gate_proj": "attn.compressor.wgate",
    "indexer.wq_b": "attn.indexer.wq_b", "indexer.weights_proj": "attn.indexer.weights_proj",
    "indexer.compressor.kv_proj": "attn.indexer.compressor.wkv", "indexer.compressor.gate_proj": "attn.indexer.compressor.wgate",
    "router": "ffn.gate",
    "experts.gate_proj": "ffn.experts.*.w1", "experts.down_proj": "ffn.experts.*.w2", "experts.up_proj": "ffn.experts.*.w3",
    "shared_experts.gate_proj": "ffn.shared_experts.w1", "shared_experts.down_proj": "ffn.shared_experts.w2",
    "shared_experts.up_proj": "ffn.shared_experts.w3",
}  # fmt: skip


def deepseek_v4(c: Keys) -> Draft:
    """DeepSeek-V4: compress_ratios gives each layer its kind; entries beyond the decoder are those of MTP blocks."""
    layers, mtp = c.whole("num_hidden_layers"), c.whole("num_nextn_predict_layers", 0, minimum=0)
    c.expect("num_key_value_heads", 1)
    c.expect("attention_bias", False)
    c.expect("topk_method", "noaux_tc")
    c.expect("qk_rope_head_dim", 64)
    ratios = c.choices("compress_ratios", layers + mtp, (0, _OVERLAPPING, 128))
    if ratios is None:
        raise c.fail("compress_ratios", "is missing: the kinds of the layers cannot be known")
    moe = blocks.deepseek_moe(c, router_bias=True)
    by_table = moe.model_copy(update={"router_bias": False})
    hashed, streams = c.whole("num_hash_layers", 0, minimum=0), c.whole("hc_mult", 1)
    stack = []
    for i, ratio in enumerate(ratios):
        kind = {0: "window", _OVERLAPPING: "indexed"}.get(ratio, "pooled")
        layer = Layer(mixer=_mixer(c, ratio), ffn=by_table if i < hashed else moe, streams=streams)
        stack.append((kind, layer))
    outer = blocks.outer(c)
    h = outer["hidden_size"]
    if streams > 1:
        outer["vectors"] = {"hc_head": streams * streams * h + streams + 1}
    draft = Draft(stack[:layers], outer, prefix="layers.", modules=_MODULES)
    draft.outer_modules = {"embed_tokens": "embed", "lm_head": "head"}
    if mtp:
        beside = mtp * (2 * h * h + 3 * h)
        note = "one layer, two projections of hidden to hidden and three norms each"
        draft.extras.append(ExtraDraft("mtp", stack[layers:], beside, beside * 2.0, False, note, "mtp."))
    _assume_formats(c, draft)
    return draft


def _mixer(c: Keys, ratio: int) -> Compressed:
    indexer = Indexer(heads=c.whole("index_n_heads"), head_dim=c.whole("index_head_dim"), top_k=c.whole("index_topk"))
    heads, groups = c.whole("num_attention_heads"), c.whole("o_groups")
    if heads % groups:
        raise c.fail("o_groups", f"is {groups}, which does not divide num_attention_heads = {heads}")
    return Compressed(
        heads=heads,
        head_dim=c.whole("head_dim"),
        window=c.whole("sliding_window"),
        q_lora_rank=c.whole("q_lora_rank"),
        out_groups=groups,
        out_lora_rank=c.whole("o_lora_rank"),
        ratio=ratio or None,
        overlap=ratio == _OVERLAPPING,
        indexer=indexer if ratio == _OVERLAPPING else None,
    )


def _assume_formats(c: Keys, draft: Draft) -> None:
    """What the recipe does not say: experts in fp4 where expert_dtype says so, compressors and index weights never quantised."""
    experts = c.text("expert_dtype", "fp8", ("fp4", "fp8", "bf16"))
    draft.fixed = {name: None for name in _MODULES if "compressor." in name or name == "indexer.weights_proj"}
    if experts == "fp4":
        draft.fixed |= {name: "mxfp4" for name in _MODULES if name.startswith("experts.")}
    if c.data.get("quantization_config"):
        c.assume("compressors and the indexer's weights_proj are not quantised, as in DeepSeek-V3.2")


FAMILIES: dict[str, Callable[[Keys], Draft]] = {"deepseek_v4": deepseek_v4, "deepseek_ref": deepseek_v4}
