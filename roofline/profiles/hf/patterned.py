"""Families whose layers differ in geometry: Gemma 4, Llama 4, Nemotron-NAS (DeciLM); and Cohere, GraniteMoE."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from roofline.profiles.hf import blocks
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import MLP, Attention, FeedForward, Layer, MoE


def gemma4(c: Keys) -> Draft:
    """Gemma 4: sliding layers with many small KV heads, full ones with few wide ones whose V is K; experts beside an MLP."""
    layers = c.whole("num_hidden_layers")
    c.expect("hidden_size_per_layer_input", 0)
    c.expect("use_double_wide_mlp", False)
    c.expect("use_bidirectional_attention", "vision", False)
    c.raw("vocab_size_per_layer_input")  # of a table that hidden_size_per_layer_input = 0 leaves out
    types = c.choices("layer_types", layers, ("full_attention", "sliding_attention"))
    if types is None:
        types = ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(layers)]
        c.assume("layer_types is not given: every 6th layer is full, as in Gemma4TextConfig")
    ffn, norms, vectors = _gemma4_ffn(c)
    local, full = _gemma4_attention(c)
    sharing = c.whole("num_kv_shared_layers", 0, minimum=0)
    if sharing >= layers:
        raise c.fail("num_kv_shared_layers", f"is {sharing}; at least one of the {layers} layers must have its own KV")
    stack = []
    for i, kind in enumerate(types):
        slides, shares = kind == "sliding_attention", i >= layers - sharing
        mixer = (local if slides else full).model_copy(update={"shares_kv": shares})
        name = ("local" if slides else "global") + ("_shared" if shares else "")
        stack.append((name, Layer(mixer=mixer, ffn=ffn, norms=norms, vectors=vectors)))
    modules = blocks.ATTENTION | blocks.DENSE | {"router": "router.proj"}
    modules |= {f"experts.{name}": f"experts.*.{name}" for name in blocks.DENSE}
    if isinstance(ffn, MoE):
        modules |= {f"shared_experts.{name}": f"mlp.{name}" for name in blocks.DENSE}
    return Draft(stack, blocks.outer(c, tie=True), modules=modules)


def _gemma4_attention(c: Keys) -> tuple[Attention, Attention]:
    """The sliding and the full attention."""
    bias = c.flag("attention_bias")
    local = blocks.attention(c, head_dim=256, qkv_bias=bias, o_bias=bias, qk_norm="head", window=c.whole("sliding_window"))
    width = c.whole("global_head_dim", local.head_dim)
    same = c.flag("attention_k_eq_v")
    kv = c.whole("num_global_key_value_heads", optional=True) if same else None
    kv = kv or local.kv_heads
    if local.heads % kv:
        raise c.fail("num_global_key_value_heads", f"is {kv}, which does not divide num_attention_heads = {local.heads}")
    return local, local.model_copy(update={"kv_heads": kv, "head_dim": width, "window": None, "k_is_v": same})


def _gemma4_ffn(c: Keys) -> tuple[FeedForward, int, dict[str, int]]:
    """Feed-forward part, norms and small tensors of a layer."""
    hidden, width = c.whole("hidden_size"), c.whole("intermediate_size")
    if not c.flag("enable_moe_block"):
        for name in ("num_experts", "top_k_experts", "moe_intermediate_size", "expert_intermediate_size"):
            c.expect(name, None)
        return MLP(intermediate=width), 4, {"layer_scalar": 1}
    experts = c.whole("num_experts")
    ffn = MoE(
        experts=experts,
        top_k=blocks.top_k_of(c, experts, "top_k_experts"),
        intermediate=c.whole(c.first("moe_intermediate_size", "expert_intermediate_size")),
        shared_intermediate=width,
    )
    return ffn, 7, {"layer_scalar": 1, "router_scale": hidden, "per_expert_scale": experts}


def llama4(c: Keys) -> Draft:
    """Llama 4: chunked attention in layers with rotation, full attention in those without; experts in every or every 2nd layer."""
    layers = c.whole("num_hidden_layers")
    chunk = c.whole("attention_chunk_size", 8192)
    turning = c.choices("no_rope_layers", layers, (0, 1)) or [int((i + 1) % 4 != 0) for i in range(layers)]
    if "no_rope_layers" not in c.data and "layer_types" not in c.data:
        c.assume("no_rope_layers is not given: every 4th layer has full attention, as in Llama4TextConfig")
    rule = ["chunked_attention" if turns else "full_attention" for turns in turning]
    types = c.choices("layer_types", layers, ("full_attention", "chunked_attention")) or rule
    bias = c.flag("attention_bias")
    attention = blocks.attention(c, qkv_bias=bias, o_bias=bias)
    c.flag("use_qk_norm")  # without weights
    experts, width = c.whole("num_local_experts"), c.whole("intermediate_size")
    moe: FeedForward = MoE(
        experts=experts, top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"), intermediate=width, shared_intermediate=width
    )
    dense: FeedForward = blocks.mlp(c, "intermediate_size_mlp")
    step = c.whole("interleave_moe_layer_step", 1)
    listed = c.items("moe_layers")
    sparse = [i in listed if listed is not None else (i + 1) % step == 0 for i in range(layers)]
    stack = []
    for kind, is_moe in zip(types, sparse, strict=True):
        ffn, chunked = moe if is_moe else dense, kind == "chunked_attention"
        mixer = attention.model_copy(update={"chunk": chunk if chunked else None})
        stack.append((blocks.kind_of(ffn, "chunked" if chunked else "full"), Layer(mixer=mixer, ffn=ffn)))
    modules = blocks.ATTENTION | {name: f"feed_forward.{name}" for name in blocks.DENSE} | {"router": "feed_forward.router"}
    modules |= {f"experts.{name}": f"feed_forward.experts.*.{name}" for name in blocks.DENSE}
    modules |= {f"shared_experts.{name}": f"feed_forward.shared_expert.{name}" for name in blocks.DENSE}
    return Draft(stack, blocks.outer(c), modules=modules)


_NO_EFFECT = ("num_sink_tokens", "unshifted_sink", "use_prefill_window_in_sink_attention", "sparsify")


def nemotron_nas(c: Keys) -> Draft:
    """Nemotron-NAS (DeciLM): block_configs gives each layer its KV heads and feed-forward width, or leaves a part out."""
    layers, hidden, heads = c.whole("num_hidden_layers"), c.whole("hidden_size"), c.whole("num_attention_heads")
    if hidden % heads:
        raise c.fail("num_attention_heads", f"is {heads}, which does not divide hidden_size = {hidden}")
    entries = c.items("block_configs", layers)
    if entries is None:
        raise c.fail("block_configs", "is missing: the layers cannot be known")
    bias = c.flag("attention_bias")
    mlp_bias = c.flag("mlp_bias")
    c.expect("num_key_value_heads", None)
    c.expect("intermediate_size", None)
    stack = []
    for i, entry in enumerate(entries):
        attention, ffn = (_block_part(c, i, entry, part) for part in ("attention", "ffn"))
        mixer = width = None
        if attention is not None:
            group = attention.whole("n_heads_in_group")
            if heads % group:
                raise attention.fail("n_heads_in_group", f"is {group}, which does not divide num_attention_heads = {heads}")
            attention.expect("window_length", None)
            mixer = Attention(heads=heads, kv_heads=heads // group, head_dim=hidden // heads, qkv_bias=bias, o_bias=bias)
            attention.finish()
        if ffn is not None:
            factor = ffn.raw("ffn_mult")
            if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < 1000:
                raise ffn.fail("ffn_mult", f"must be a number above 0, found {factor!r}")
            width = -(-int(2 * factor * hidden / 3) // 256) * 256
            ffn.finish()
        part = MLP(intermediate=width, bias=mlp_bias) if width else None
        kind = "dense" if mixer and part else "attention" if mixer else "mlp"
        if mixer is None and part is None:
            raise c.fail("block_configs", f"layer {i} has neither attention nor feed-forward part")
        stack.append((kind, Layer(mixer=mixer, ffn=part, norms=(mixer is not None) + (part is not None))))
    return Draft(stack, blocks.outer(c), modules=blocks.ATTENTION | blocks.DENSE)


def _block_part(c: Keys, i: int, entry: Any, part: str) -> Keys | None:
    """The description of one part of one layer, None when it is left out."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get(part), Mapping):
        raise c.file.error(f"must be an object with {part!r}", (*c.loc, "block_configs", i))
    found = Keys(c.file, entry[part], (*c.loc, "block_configs", i, part), c.assumptions)
    found.expect("replace_with_linear", False)
    for name in _NO_EFFECT:
        found.expect(name, None, False)
    return None if found.flag("no_op") else found


def cohere(c: Keys) -> Draft:
    """Command R: attention and feed-forward in parallel on one LayerNorm without bias, tied head."""
    c.expect("use_qk_norm", False)
    bias = c.flag("attention_bias")
    layer = Layer(mixer=blocks.attention(c, qkv_bias=bias, o_bias=bias), ffn=blocks.mlp(c), norms=1, parallel=True)
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), blocks.outer(c, tie=True), modules=blocks.ATTENTION | blocks.DENSE)


def granitemoe(c: Keys) -> Draft:
    """Granite 3 with experts."""
    bias, experts = c.flag("attention_bias"), c.whole("num_local_experts")
    ffn = MoE(experts=experts, top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"), intermediate=c.whole("intermediate_size"))
    layer = Layer(mixer=blocks.attention(c, qkv_bias=bias, o_bias=bias), ffn=ffn)
    modules = blocks.ATTENTION | {"router": "block_sparse_moe.router.layer"}
    modules |= {f"experts.{name}": "block_sparse_moe.experts" for name in blocks.DENSE}
    return Draft([("moe", layer)] * c.whole("num_hidden_layers"), blocks.outer(c), modules=modules)


def mimo_v2_flash(c: Keys) -> Draft:
    """MiMo-V2-Flash: sliding layers with twice the KV heads and with sinks, V narrower than K; the first layer is dense."""
    layers = c.whole("num_hidden_layers")
    hybrid = c.choices("hybrid_layer_pattern", layers, (0, 1))
    types = c.choices("layer_types", layers, ("full_attention", "sliding_attention"))
    if types is None and hybrid is None:
        raise c.fail("hybrid_layer_pattern", "is missing: which layers slide cannot be known")
    slides = [kind == "sliding_attention" for kind in types] if types else [kind == 1 for kind in hybrid or ()]
    full = blocks.attention(c, v_head_dim=c.whole("v_head_dim"), sinks=c.flag("add_full_attention_sink_bias"))
    c.expect("attention_bias", False)
    c.expect("swa_num_attention_heads", full.heads)
    c.expect("swa_head_dim", full.head_dim)
    c.expect("swa_v_head_dim", full.v_head_dim)
    kv = c.whole("swa_num_key_value_heads", 2 * full.kv_heads)
    if full.heads % kv:
        raise c.fail("swa_num_key_value_heads", f"is {kv}, which does not divide num_attention_heads = {full.heads}")
    window = c.whole(c.first("sliding_window", "sliding_window_size"))
    sinks = c.flag("add_swa_attention_sink_bias", True)
    local = full.model_copy(update={"kv_heads": kv, "window": window, "sinks": sinks})
    listed = c.choices("mlp_layer_types", layers, ("dense", "sparse"))
    by_layer = c.choices("moe_layer_freq", layers, (0, 1))
    if listed is None and by_layer is None:
        raise c.fail("moe_layer_freq", "is missing: which layers have experts cannot be known")
    sparse = [kind == "sparse" for kind in listed] if listed else [kind == 1 for kind in by_layer or ()]
    for name in ("attention_chunk_size", "hybrid_block_size"):
        c.raw(name)  # how a kernel blocks the window
    moe: FeedForward = blocks.deepseek_moe(c, router_bias=True)
    dense: FeedForward = blocks.mlp(c)
    stack = []
    for is_local, is_moe in zip(slides, sparse, strict=True):
        ffn = moe if is_moe else dense
        stack.append((blocks.kind_of(ffn, "local" if is_local else "global"), Layer(mixer=local if is_local else full, ffn=ffn)))
    return Draft(stack, blocks.outer(c), modules=blocks.ATTENTION | blocks.DENSE | blocks.EXPERTS)


def granite(c: Keys) -> Draft:
    """Granite 3 without experts, and SmolLM3: Llama's layers (their multipliers and rotation patterns have no weights)."""
    bias = c.flag("attention_bias")
    c.expect("use_sliding_window", False)
    c.expect("sliding_window", None)
    layers = c.whole("num_hidden_layers")
    c.choices("layer_types", layers, ("full_attention",))
    c.choices("no_rope_layers", layers, (0, 1))
    layer = Layer(mixer=blocks.attention(c, qkv_bias=bias, o_bias=bias), ffn=blocks.mlp(c, bias=c.flag("mlp_bias")))
    tie = c.model_type == "smollm3"
    return Draft([("dense", layer)] * layers, blocks.outer(c, tie=tie), modules=blocks.ATTENTION | blocks.DENSE)


def seed_oss(c: Keys) -> Draft:
    """Seed-OSS: biases on Q, K and V, none or one on the output."""
    mixer = blocks.attention(c, head_dim=128, qkv_bias=c.flag("attention_bias", True), o_bias=c.flag("attention_out_bias"))
    layer = Layer(mixer=mixer, ffn=blocks.mlp(c, bias=c.flag("mlp_bias")))
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), blocks.outer(c), modules=blocks.ATTENTION | blocks.DENSE)


def olmo2(c: Keys) -> Draft:
    """OLMo 2 (norms after the parts) and OLMoE (experts): QK-norm over all heads together."""
    bias = c.flag("attention_bias")
    c.expect("clip_qkv", None)
    attention = blocks.attention(c, qkv_bias=bias, o_bias=bias, qk_norm="full")
    if c.model_type == "olmoe":
        experts = c.whole("num_experts")
        width = c.whole("intermediate_size")
        moe = MoE(experts=experts, top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"), intermediate=width)
        layers = [("moe", Layer(mixer=attention, ffn=moe))]
    else:
        layers = [("dense", Layer(mixer=attention, ffn=blocks.mlp(c)))]
    modules = blocks.ATTENTION | blocks.DENSE | blocks.EXPERTS
    return Draft(layers * c.whole("num_hidden_layers"), blocks.outer(c), modules=modules)


FAMILIES: dict[str, Callable[[Keys], Draft]] = {
    "mimo_v2_flash": mimo_v2_flash,
    "granite": granite,
    "smollm3": granite,
    "seed_oss": seed_oss,
    "olmo2": olmo2,
    "olmoe": olmo2,
    "gemma4_text": gemma4,
    "llama4_text": llama4,
    "nemotron-nas": nemotron_nas,
    "cohere": cohere,
    "granitemoe": granitemoe,
}
