"""Families of Llama's shape: Llama, Mistral, Qwen2, Qwen3, Phi-3, MiMo, Gemma, and their mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf import blocks
from roofline.profiles.hf.draft import Draft, ExtraDraft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import Attention, FeedForward, Layer, MoE

_DENSE = {**blocks.ATTENTION, **blocks.DENSE}


def llama(c: Keys) -> Draft:
    """Llama 1 to 3 and whatever calls itself so."""
    bias = c.flag("attention_bias")
    layer = Layer(mixer=blocks.attention(c, qkv_bias=bias, o_bias=bias), ffn=blocks.mlp(c, bias=c.flag("mlp_bias")))
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), blocks.outer(c), modules=_DENSE)


def mistral(c: Keys) -> Draft:
    """Mistral: a window on all layers in v0.1, none later."""
    window = c.whole("sliding_window", optional=True)
    if "sliding_window" not in c.data and "layer_types" not in c.data:
        c.assume("sliding_window is not given: no window")
    attention = blocks.attention(c, window=window)
    return Draft([("dense", Layer(mixer=attention, ffn=blocks.mlp(c)))] * c.whole("num_hidden_layers"), blocks.outer(c), modules=_DENSE)


def mixtral(c: Keys) -> Draft:
    """Mixtral: 8 experts of which 2 run."""
    experts = c.whole("num_local_experts")
    ffn = MoE(experts=experts, top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"), intermediate=c.whole("intermediate_size"))
    layer = Layer(mixer=blocks.attention(c, window=c.whole("sliding_window", optional=True)), ffn=ffn)
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    modules = {f"experts.{ours}": f"block_sparse_moe.experts.*.{theirs}" for ours, theirs in names.items()}
    modules |= blocks.ATTENTION | {"router": "block_sparse_moe.gate"}
    return Draft([("moe", layer)] * c.whole("num_hidden_layers"), blocks.outer(c), modules=modules)


def _qwen_windows(c: Keys, layers: int) -> list[int | None]:
    """Qwen's window per layer: only with use_sliding_window, and from layer max_window_layers on."""
    window, first = c.whole("sliding_window", optional=True, minimum=0), c.whole("max_window_layers", optional=True, minimum=0)
    used = c.flag("use_sliding_window")
    if used and not window:
        raise c.fail("use_sliding_window", "is true, but sliding_window is not given")
    rule = ["sliding_attention" if used and i >= (first or 0) else "full_attention" for i in range(layers)]
    return [window if slides else None for slides in blocks.windows(c, layers, rule)]


def _qwen(c: Keys, attention: Attention, ffns: list[FeedForward]) -> list[tuple[str, Layer]]:
    spans = _qwen_windows(c, len(ffns))
    return [
        (blocks.kind_of(ffn, "local" if span else ""), Layer(mixer=attention.model_copy(update={"window": span}), ffn=ffn))
        for span, ffn in zip(spans, ffns, strict=True)
    ]


def qwen2(c: Keys) -> Draft:
    """Qwen 1.5, 2 and 2.5: biases on Q, K and V."""
    ffns: list[FeedForward] = [blocks.mlp(c)] * c.whole("num_hidden_layers")
    return Draft(_qwen(c, blocks.attention(c, qkv_bias=True), ffns), blocks.outer(c), modules=_DENSE)


def qwen3(c: Keys) -> Draft:
    """Qwen 3: a norm on each Q and K head, no biases."""
    bias = c.flag("attention_bias")
    attention = blocks.attention(c, head_dim=128, qkv_bias=bias, o_bias=bias, qk_norm="head")
    ffns: list[FeedForward] = [blocks.mlp(c)] * c.whole("num_hidden_layers")
    return Draft(_qwen(c, attention, ffns), blocks.outer(c), modules=_DENSE)


def _mixed(c: Keys) -> list[FeedForward]:
    moe = blocks.qwen_moe(c)
    sparse = blocks.sparse_layers(c, c.whole("num_hidden_layers"))
    dense = None if all(sparse) else blocks.mlp(c)
    c.raw("intermediate_size")  # of dense layers, of which there may be none
    return [moe if is_moe or dense is None else dense for is_moe in sparse]


def qwen2_moe(c: Keys) -> Draft:
    """Qwen 1.5 and 2 with experts and a gated shared expert."""
    layers = _qwen(c, blocks.attention(c, qkv_bias=c.flag("qkv_bias", True)), _mixed(c))
    shared = {name: path.replace("shared_experts", "shared_expert") for name, path in blocks.SHARED.items()}
    modules = _DENSE | blocks.EXPERTS | shared | {"shared_expert_gate": "mlp.shared_expert_gate"}
    return Draft(layers, blocks.outer(c), modules=modules)


def qwen3_moe(c: Keys) -> Draft:
    """Qwen 3 with experts."""
    bias = c.flag("attention_bias")
    attention = blocks.attention(c, head_dim=128, qkv_bias=bias, o_bias=bias, qk_norm="head")
    return Draft(_qwen(c, attention, _mixed(c)), blocks.outer(c), modules=_DENSE | blocks.EXPERTS)


def phi3(c: Keys) -> Draft:
    """Phi-3, Phi-3.5 and Phi-4: fused projections, no biases."""
    c.expect("attention_bias", False)
    layer = Layer(mixer=blocks.attention(c, window=c.whole("sliding_window", optional=True)), ffn=blocks.mlp(c))
    fused = {"q_proj": "self_attn.qkv_proj", "k_proj": "self_attn.qkv_proj", "v_proj": "self_attn.qkv_proj"}
    fused |= {"gate_proj": "mlp.gate_up_proj", "up_proj": "mlp.gate_up_proj"}
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), blocks.outer(c), modules=_DENSE | fused)


def mimo(c: Keys) -> Draft:
    """MiMo-7B: Qwen2's layers and a multi-token-prediction layer."""
    c.expect("use_mrope", False)
    ffns: list[FeedForward] = [blocks.mlp(c)] * c.whole("num_hidden_layers")
    layers = _qwen(c, blocks.attention(c, qkv_bias=c.flag("attention_bias", True)), ffns)
    outer = blocks.outer(c)
    draft = Draft(layers, outer, modules=_DENSE)
    if (count := c.whole("num_nextn_predict_layers", 0, minimum=0)) > 0:
        h = outer["hidden_size"]
        beside = count * (2 * h * h + 3 * h)
        draft.extras.append(ExtraDraft("mtp", layers[:1] * count, beside, beside * 2.0, False, "input projection and three norms each"))
    return draft


def gemma(c: Keys) -> Draft:
    """Gemma 1: head_dim apart from hidden_size / heads, tied embeddings."""
    bias = c.flag("attention_bias")
    layer = Layer(mixer=blocks.attention(c, head_dim=256, qkv_bias=bias, o_bias=bias), ffn=blocks.mlp(c))
    c.expect("use_bidirectional_attention", False)
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), blocks.outer(c, tie=True), modules=_DENSE)


def gemma2(c: Keys) -> Draft:
    """Gemma 2: every second layer slides, a norm before and after each part."""
    layers = c.whole("num_hidden_layers")
    rule = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    return _gemma_windows(c, blocks.windows(c, layers, rule), "none")


def gemma3(c: Keys) -> Draft:
    """Gemma 3: five sliding layers, then a full one; QK-norm."""
    layers = c.whole("num_hidden_layers")
    every = c.whole(c.first("sliding_window_pattern", "_sliding_window_pattern"), optional=True)
    if every is None and "layer_types" not in c.data:
        every = 6
        c.assume("no pattern of windows is given: every 6th layer is full, as in Gemma3TextConfig")
    rule = ["full_attention" if every and (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    return _gemma_windows(c, blocks.windows(c, layers, rule), "head")


def _gemma_windows(c: Keys, sliding: list[bool], qk_norm: str) -> Draft:
    bias = c.flag("attention_bias")
    c.expect("use_bidirectional_attention", False)
    attention = blocks.attention(c, head_dim=256, qkv_bias=bias, o_bias=bias, qk_norm=qk_norm)
    window = c.whole("sliding_window", 4096)
    local = Layer(mixer=attention.model_copy(update={"window": window}), ffn=blocks.mlp(c), norms=4)
    full = Layer(mixer=attention, ffn=blocks.mlp(c), norms=4)
    layers = [("local", local) if slides else ("global", full) for slides in sliding]
    return Draft(layers, blocks.outer(c, tie=True), modules=_DENSE)


def gpt_oss(c: Keys) -> Draft:
    """gpt-oss: experts with biases, sinks, every second layer slides over 128 tokens."""
    layers, experts = c.whole("num_hidden_layers"), c.whole("num_local_experts")
    bias = c.flag("attention_bias", True)
    attention = blocks.attention(c, head_dim=64, qkv_bias=bias, o_bias=bias, sinks=True)
    ffn = MoE(
        experts=experts,
        top_k=blocks.top_k_of(c, experts, "num_experts_per_tok", "experts_per_token"),
        intermediate=c.whole("intermediate_size"),
        expert_bias=True,
        router_linear_bias=True,
    )
    window = c.whole("sliding_window", 128)
    rule = ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    spans = [window if slides else None for slides in blocks.windows(c, layers, rule)]
    stack = [("local" if span else "global", Layer(mixer=attention.model_copy(update={"window": span}), ffn=ffn)) for span in spans]
    modules = blocks.ATTENTION | {"router": "mlp.router"} | {f"experts.{name}": "mlp.experts" for name in blocks.DENSE}
    return Draft(stack, blocks.outer(c), modules=modules)


def minimax_m2(c: Keys) -> Draft:
    """MiniMax-M2: QK-norm over all heads together, sigmoid routing with a correction vector, three MTP modules."""
    layers, experts = c.whole("num_hidden_layers"), c.whole("num_local_experts")
    c.expect("use_qk_norm", True)
    c.expect("qk_norm_type", "per_layer")
    c.expect("shared_intermediate_size", 0)
    c.choices("attn_type_list", layers, (1,))
    c.choices("layer_types", layers, ("full_attention",))
    ffn = MoE(
        experts=experts,
        top_k=blocks.top_k_of(c, experts, "num_experts_per_tok"),
        intermediate=c.whole("intermediate_size"),
        router_bias=c.flag("use_routing_bias", True),
    )
    layer = Layer(mixer=blocks.attention(c, head_dim=128, qk_norm="full"), ffn=ffn)
    names = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}
    modules = {f"experts.{ours}": f"block_sparse_moe.experts.*.{theirs}" for ours, theirs in names.items()}
    modules |= blocks.ATTENTION | {"router": "block_sparse_moe.gate"}
    outer = blocks.outer(c)
    draft = Draft([("moe", layer)] * layers, outer, modules=modules)
    count = c.whole("num_mtp_modules", 0, minimum=0) * c.whole("mtp_transformer_layers", 1, minimum=0)
    if c.flag("use_mtp") and count:
        draft.extras.append(mtp(("moe", layer), count, outer, shipped=False))
    return draft


def mtp(layer: tuple[str, Layer], count: int, outer: dict[str, object], *, tables: bool = False, shipped: bool = True) -> ExtraDraft:
    """Multi-token-prediction blocks of DeepSeek's form: a layer, a projection of 2·hidden to hidden and three norms.

    tables: the checkpoint repeats the embedding and the head in each block. shipped False: named in the configuration, not in
    the published weights.
    """
    h, vocab = outer["hidden_size"], outer["vocab_size"]
    assert isinstance(h, int) and isinstance(vocab, int)  # noqa: S101, PT018
    beside = count * (2 * h * h + 3 * h + (2 * vocab * h if tables else 0))
    note = "one layer, a projection of 2·hidden to hidden and three norms each" + (", with its own embedding and head" if tables else "")
    if not shipped:
        note += "; the published weights do not have them"
        return ExtraDraft("mtp", [layer] * count, beside, beside * 2.0, False, note)
    return ExtraDraft("mtp", [layer] * count, beside, beside * 2.0, False, note)


FAMILIES: dict[str, Callable[[Keys], Draft]] = {
    "llama": llama,
    "mistral": mistral,
    "ministral3": mistral,
    "mixtral": mixtral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "qwen3_vl_text": qwen3,
    "qwen3_vl_moe_text": qwen3_moe,
    "phi3": phi3,
    "mimo": mimo,
    "gemma": gemma,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "gpt_oss": gpt_oss,
    "minimax_m2": minimax_m2,
}
