"""Families that mix attention with linear mixers: Qwen3-Next, Qwen3.5, Kimi-Linear, Nemotron-H, Bamba, Jamba."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import blocks, latent
from roofline.profiles.hf.draft import Draft, ExtraDraft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import KDA, MLP, Attention, FeedForward, GatedDelta, Layer, Mamba, Mamba2, Mixer, MoE

_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
_DELTA = {name: f"linear_attn.{name}" for name in ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")}
_SHARED = {name: path.replace("shared_experts", "shared_expert") for name, path in blocks.SHARED.items()}
_QWEN = blocks.ATTENTION | blocks.DENSE | blocks.EXPERTS | _SHARED | _DELTA | {"shared_expert_gate": "mlp.shared_expert_gate"}


def _state_bits(c: Keys, name: str) -> int:
    return _BITS[c.text(name, "float32", tuple(_BITS))]


def _delta(c: Keys) -> GatedDelta:
    heads, keys = c.whole("linear_num_value_heads"), c.whole("linear_num_key_heads")
    if heads % keys:
        raise c.fail("linear_num_key_heads", f"is {keys}, which does not divide linear_num_value_heads = {heads}")
    return GatedDelta(
        heads=heads,
        key_heads=keys,
        key_dim=c.whole("linear_key_head_dim"),
        value_dim=c.whole("linear_value_head_dim"),
        conv=c.whole("linear_conv_kernel_dim", 4),
        state_bits=_state_bits(c, "mamba_ssm_dtype"),
    )


def qwen3_next(c: Keys) -> Draft:
    """Qwen3-Next and the text part of Qwen3.5 and 3.6: three gated delta nets, then a full attention with an output gate."""
    layers, every = c.whole("num_hidden_layers"), c.whole("full_attention_interval", optional=True)
    rule = ["full_attention" if (i + 1) % (every or 4) == 0 else "linear_attention" for i in range(layers)]
    types = c.choices("layer_types", layers, ("full_attention", "linear_attention"))
    if types is None and every is None:
        c.assume("neither layer_types nor full_attention_interval is given: every 4th layer is full, as in Qwen3NextConfig")
    bias = c.flag("attention_bias")
    c.expect("attn_output_gate", True)
    attention = blocks.attention(c, head_dim=256, qkv_bias=bias, o_bias=bias, qk_norm="head", output_gate=True)
    delta = _delta(c)
    moe: FeedForward | None = blocks.qwen_moe(c) if c.model_type != "qwen3_5_text" else None
    sparse = blocks.sparse_layers(c, layers) if moe else [False] * layers
    c.expect("mlp_only_layers", [])
    dense: FeedForward | None = None if all(sparse) else blocks.mlp(c)
    c.raw("intermediate_size")
    stack = []
    for kind, is_moe in zip(types or rule, sparse, strict=True):
        mixer: Mixer = attention if kind == "full_attention" else delta
        stack.append(("full" if kind == "full_attention" else "linear", Layer(mixer=mixer, ffn=moe if is_moe else dense)))
    outer = blocks.outer(c)
    draft = Draft(stack, outer, modules=_QWEN)
    if (count := c.whole("mtp_num_hidden_layers", optional=True, minimum=0) or 0) > 0:
        h = outer["hidden_size"]
        c.expect("mtp_use_dedicated_embeddings", False)
        layer = ("full", Layer(mixer=attention, ffn=stack[-1][1].ffn))
        note = "full-attention layer, a projection of 2·hidden to hidden, three norms"
        draft.extras.append(ExtraDraft("mtp", [layer] * count, 2 * h * h + 3 * h, 2.0 * (2 * h * h + 3 * h), False, note, "mtp.layers."))
    return draft


def kimi_linear(c: Keys) -> Draft:
    """Kimi-Linear: Kimi delta attention with a latent attention every fourth layer; experts as in DeepSeek-V3."""
    layers = c.whole("num_hidden_layers")
    types = c.choices("layer_types", layers, ("full_attention", "linear_attention"))
    linear = c.object("linear_attn_config")
    if linear is not None:
        heads, width, conv = linear.whole("num_heads"), linear.whole("head_dim"), linear.whole("short_conv_kernel_size", 4)
        full, kda_layers = linear.items("full_attn_layers") or [], linear.items("kda_layers") or []
        if sorted([*full, *kda_layers]) != list(range(1, layers + 1)):
            raise linear.fail("full_attn_layers", f"with kda_layers must name each of the layers 1 to {layers} once")
        types = types or ["full_attention" if i + 1 in full else "linear_attention" for i in range(layers)]
        linear.finish()
    else:
        heads, width, conv = c.whole("linear_num_heads"), c.whole("linear_head_dim"), c.whole("linear_conv_kernel_dim", 4)
    if types is None:
        raise c.fail("layer_types", "is missing: which layers are latent attention cannot be known")
    c.expect("mla_use_nope", True)
    kda, mla = KDA(heads=heads, head_dim=width, conv=conv), latent.mla(c)
    experts, inner = c.whole("num_experts"), c.whole("moe_intermediate_size")
    moe: FeedForward = MoE(
        experts=experts,
        top_k=blocks.top_k_of(c, experts, "num_experts_per_token", "num_experts_per_tok"),
        intermediate=inner,
        shared_intermediate=inner * c.whole("num_shared_experts", 0, minimum=0),
        router_bias=True,
    )
    sparse = blocks.dense_first(c, layers)
    dense: FeedForward = blocks.mlp(c)
    stack = [
        (
            "full" if kind == "full_attention" else "linear",
            Layer(mixer=mla if kind == "full_attention" else kda, ffn=moe if is_moe else dense),
        )
        for kind, is_moe in zip(types, sparse, strict=True)
    ]
    c.data = {**c.data, "max_position_embeddings": c.raw(c.first("max_position_embeddings", "model_max_length"))}
    kda_modules = {name: f"self_attn.{name}" for name in ("b_proj", "f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "k_proj", "v_proj")}
    return Draft(stack, blocks.outer(c), modules=latent.MODULES | kda_modules)


_NEMOTRON = {
    name: f"mixer.{path}"
    for name, path in {
        "in_proj": "in_proj", "out_proj": "out_proj", "q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "o_proj": "o_proj",
        "up_proj": "up_proj", "down_proj": "down_proj", "router": "gate",
        "experts.up_proj": "experts.*.up_proj", "experts.down_proj": "experts.*.down_proj",
        "shared_experts.up_proj": "shared_experts.up_proj", "shared_experts.down_proj": "shared_experts.down_proj",
        "latent_down": "fc1_latent_proj", "latent_up": "fc2_latent_proj",
    }.items()
}  # fmt: skip
_LETTERS = {"M": "mamba", "*": "attention", "E": "moe", "-": "mlp"}


def _pattern(c: Keys, letters: str, names: str, length: int | None) -> list[str] | None:
    """Kinds of layers from a pattern of letters ("M*E-") or from a list of names; both must agree."""
    listed = c.choices(names, length, tuple(_LETTERS.values())) if length is not None else c.items(names)
    text = c.raw(letters)
    if text is None:
        return listed
    if not isinstance(text, str) or (unknown := set(text) - set(_LETTERS)):
        raise c.fail(
            letters,
            f"has {''.join(sorted(unknown)) if isinstance(text, str) else text!r}; known: M (Mamba-2), * (attention), E (experts), - (MLP)",
        )
    if length is not None and len(text) != length:
        raise c.fail(letters, f"has {len(text)} letters and the model {length} layers; give one per layer")
    found = [_LETTERS[letter] for letter in text]
    if listed is not None and listed != found:
        raise c.fail(names, f"contradicts {letters}")
    return found


def nemotron_h(c: Keys) -> Draft:
    """Nemotron-H, Nano 2 and Nemotron 3: each layer is one of Mamba-2, attention, MLP or experts, with one norm."""
    count = c.whole("num_hidden_layers")
    kinds = _pattern(c, "hybrid_override_pattern", "layers_block_type", count)
    if kinds is None:
        raise c.fail("hybrid_override_pattern", "is missing: the kinds of the layers cannot be known")
    c.expect("sliding_window", None)
    c.whole("expand", optional=True)
    parts = {kind: _nemotron_part(c, kind) for kind in dict.fromkeys(kinds)}
    for name in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "attention_head_dim", "mlp_bias"):
        c.raw(name)  # of kinds that this pattern may not have
    outer = blocks.outer(c)
    draft = Draft([(kind, parts[kind]) for kind in kinds], outer, prefix="backbone.layers.", modules=_NEMOTRON)
    mtp = _pattern(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type", None)
    if mtp and (repeats := c.whole("num_nextn_predict_layers", 0, minimum=0)) > 0:
        h = outer["hidden_size"]
        layers = [(kind, parts.get(kind) or _nemotron_part(c, kind)) for kind in mtp] * repeats
        beside = repeats * (2 * h * h + 3 * h)
        note = "its layers, a projection of 2·hidden to hidden and three norms each"
        draft.extras.append(ExtraDraft("mtp", layers, beside, beside * 2.0, False, note, "mtp.layers."))
    return draft


def _nemotron_part(c: Keys, kind: str) -> Layer:
    if kind == "mamba":
        mixer = Mamba2(
            heads=c.whole("mamba_num_heads"),
            head_dim=c.whole("mamba_head_dim"),
            state_size=c.whole("ssm_state_size"),
            groups=c.whole("n_groups"),
            conv=c.whole("conv_kernel", 4),
            conv_bias=c.flag("use_conv_bias", True),
            bias=c.flag("use_bias") or c.flag("mamba_proj_bias"),
            state_bits=_state_bits(c, "mamba_ssm_cache_dtype"),
        )
        return Layer(mixer=mixer, norms=1)
    if kind == "attention":
        bias = c.flag("attention_bias")
        heads = c.whole("num_attention_heads")
        width = c.whole(c.first("head_dim", "attention_head_dim"))
        kv = c.whole("num_key_value_heads", heads)
        if heads % kv:
            raise c.fail("num_key_value_heads", f"is {kv}, which does not divide num_attention_heads = {heads}")
        return Layer(mixer=Attention(heads=heads, kv_heads=kv, head_dim=width, qkv_bias=bias, o_bias=bias), norms=1)
    if kind == "mlp":
        return Layer(ffn=MLP(intermediate=c.whole("intermediate_size"), gated=False, bias=c.flag("mlp_bias")), norms=1)
    experts = c.whole("n_routed_experts")
    shared = c.whole("moe_shared_expert_intermediate_size", 0, minimum=0) * c.whole("n_shared_experts", 1, minimum=0)
    ffn = MoE(
        experts=experts,
        top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"),
        intermediate=c.whole("moe_intermediate_size"),
        gated=False,
        shared_intermediate=shared,
        router_bias=True,
        latent=c.whole("moe_latent_size", optional=True),
    )
    return Layer(ffn=ffn, norms=1)


def bamba(c: Keys) -> Draft:
    """Bamba: Mamba-2 layers, attention at attn_layer_indices, an MLP in each layer."""
    layers, indices = c.whole("num_hidden_layers"), c.items("attn_layer_indices") or []
    types = c.choices("layer_types", layers, ("full_attention", "attention", "mamba", "linear_attention"))
    heads, width = c.whole("mamba_n_heads"), c.raw("mamba_d_head")
    inner = c.whole("mamba_expand", 2) * c.whole("hidden_size")
    mamba = Mamba2(
        heads=heads,
        head_dim=inner // heads if width in (None, "auto") else c.whole("mamba_d_head"),
        state_size=c.whole("mamba_d_state"),
        groups=c.whole("mamba_n_groups"),
        conv=c.whole("mamba_d_conv", 4),
        conv_bias=c.flag("mamba_conv_bias", True),
        bias=c.flag("mamba_proj_bias"),
    )
    bias = c.flag("attention_bias")
    attention, ffn = blocks.attention(c, qkv_bias=bias, o_bias=bias), blocks.mlp(c, bias=c.flag("mlp_bias"))
    full = [kind in ("full_attention", "attention") for kind in types] if types else [i in indices for i in range(layers)]
    c.raw("z_loss_coefficient")
    stack = [("full", Layer(mixer=attention, ffn=ffn)) if is_full else ("mamba", Layer(mixer=mamba, ffn=ffn)) for is_full in full]
    modules = blocks.ATTENTION | {"in_proj": "mamba.in_proj", "out_proj": "mamba.out_proj"}
    modules |= {name: f"feed_forward.{name}" for name in blocks.DENSE}
    return Draft(stack, blocks.outer(c), modules=modules)


def jamba(c: Keys) -> Draft:
    """Jamba: Mamba-1 layers with an attention layer per period, experts in every second layer."""
    layers, hidden = c.whole("num_hidden_layers"), c.whole("hidden_size")
    period, offset = c.whole("attn_layer_period", 8), c.whole("attn_layer_offset", 4, minimum=0)
    moe_period, moe_offset = c.whole("expert_layer_period", 2), c.whole("expert_layer_offset", 1, minimum=0)
    rank = c.raw("mamba_dt_rank")
    mamba = Mamba(
        heads=c.whole("mamba_expand", 2) * hidden,
        state_size=c.whole("mamba_d_state", 16),
        dt_rank=-(-hidden // 16) if rank in (None, "auto") else c.whole("mamba_dt_rank"),
        conv=c.whole("mamba_d_conv", 4),
        conv_bias=c.flag("mamba_conv_bias", True),
        bias=c.flag("mamba_proj_bias"),
        inner_norms=True,
    )
    experts = c.whole("num_experts")
    width = c.whole("intermediate_size")
    moe: FeedForward = MoE(experts=experts, top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"), intermediate=width)
    dense: FeedForward = MLP(intermediate=width)
    attention = blocks.attention(c)
    c.raw("use_mambapy"), c.raw("use_associative_scan")
    stack = []
    for i in range(layers):
        ffn = moe if experts > 1 and i % moe_period == moe_offset else dense
        mixer: Mixer = attention if i % period == offset else mamba
        stack.append((blocks.kind_of(ffn, "full" if i % period == offset else "mamba"), Layer(mixer=mixer, ffn=ffn)))
    names = ("in_proj", "x_proj", "dt_proj", "out_proj")
    modules = blocks.ATTENTION | {name: f"mamba.{name}" for name in names} | {"router": "feed_forward.router"}
    modules |= {name: f"feed_forward.{name}" for name in blocks.DENSE}
    modules |= {f"experts.{name}": f"feed_forward.experts.*.{name}" for name in blocks.DENSE}
    return Draft(stack, blocks.outer(c), modules=modules)


FAMILIES: dict[str, Callable[[Keys], Draft]] = {
    "qwen3_next": qwen3_next,
    "qwen3_5_text": qwen3_next,
    "qwen3_5_moe_text": qwen3_next,
    "kimi_linear": kimi_linear,
    "nemotron_h": nemotron_h,
    "bamba": bamba,
    "jamba": jamba,
}
