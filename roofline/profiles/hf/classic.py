"""Families from before gated feed-forward parts: GPT-2, OPT, GPT-NeoX, Falcon, Phi-2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.profiles.hf import blocks
from roofline.profiles.hf.draft import Draft
from roofline.profiles.hf.keys import Keys
from roofline.profiles.model import MLP, Attention, Layer


def _head_dim(c: Keys, heads_key: str, heads: int, hidden: int) -> int:
    if hidden % heads:
        raise c.fail(heads_key, f"is {heads}, which does not divide the hidden size {hidden}")
    return hidden // heads


def _outer(c: Keys, hidden: int, vocab: int, tie: bool, dtype: str = "fp16", **more: Any) -> dict[str, Any]:
    data = {"hidden_size": hidden, "vocab_size": vocab, "max_position_embeddings": None, "norm_bias": True}
    c.data = {**c.data, "hidden_size": hidden, "vocab_size": vocab}
    return {**blocks.outer(c, tie=tie, dtype=dtype), **{k: v for k, v in data.items() if v is not None}, **more}


def gpt2(c: Keys) -> Draft:
    """GPT-2: learned positions, biases everywhere, tied head."""
    hidden, heads, positions = c.whole("n_embd"), c.whole("n_head"), c.whole(c.first("n_positions", "n_ctx"))
    c.expect("add_cross_attention", False)
    width = _head_dim(c, "n_head", heads, hidden)
    inner = c.whole("n_inner", optional=True) or 4 * hidden
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=width, qkv_bias=True, o_bias=True)
    layer = Layer(mixer=mixer, ffn=MLP(intermediate=inner, gated=False, bias=True), norm_bias=True)
    outer = _outer(c, hidden, c.whole("vocab_size"), True, "fp32", learned_positions=positions, max_position_embeddings=positions)
    modules = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attn.c_attn")
    modules |= {"o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"}
    return Draft([("dense", layer)] * c.whole("n_layer"), outer, prefix="transformer.h.", modules=modules)


def opt(c: Keys) -> Draft:
    """OPT: learned positions (two more than the longest text), tied head."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    c.expect("word_embed_proj_dim", hidden)
    c.expect("do_layer_norm_before", True)
    c.expect("_remove_final_layer_norm", False)
    c.expect("layer_norm_elementwise_affine", True)
    bias = c.flag("enable_bias", True)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=_head_dim(c, "num_attention_heads", heads, hidden), qkv_bias=bias, o_bias=bias)
    layer = Layer(mixer=mixer, ffn=MLP(intermediate=c.whole("ffn_dim"), gated=False, bias=bias), norm_bias=True)
    positions = c.whole("max_position_embeddings") + 2
    outer = _outer(c, hidden, c.whole("vocab_size"), True, learned_positions=positions)
    modules = {f"{name}_proj": f"self_attn.{name}_proj" for name in "qkv"}
    modules |= {"o_proj": "self_attn.out_proj", "up_proj": "fc1", "down_proj": "fc2"}
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), outer, prefix="model.decoder.layers.", modules=modules)


def gpt_neox(c: Keys) -> Draft:
    """GPT-NeoX and Pythia: attention and feed-forward in parallel, each with its own norm."""
    hidden, heads = c.whole("hidden_size"), c.whole("num_attention_heads")
    bias = c.flag("attention_bias", True)
    mixer = Attention(heads=heads, kv_heads=heads, head_dim=_head_dim(c, "num_attention_heads", heads, hidden), qkv_bias=bias, o_bias=bias)
    ffn = MLP(intermediate=c.whole("intermediate_size"), gated=False, bias=True)
    layer = Layer(mixer=mixer, ffn=ffn, norm_bias=True, parallel=c.flag("use_parallel_residual", True))
    outer = _outer(c, hidden, c.whole("vocab_size"), False)
    modules = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attention.query_key_value")
    modules |= {"o_proj": "attention.dense", "up_proj": "mlp.dense_h_to_4h", "down_proj": "mlp.dense_4h_to_h"}
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), outer, prefix="gpt_neox.layers.", modules=modules)


def falcon(c: Keys) -> Draft:
    """Falcon: one KV head (7B) or a few (40B, 180B), attention and feed-forward in parallel, tied head."""
    hidden = c.whole("hidden_size")
    heads = c.whole(c.first("num_attention_heads", "n_head"))
    new, multi_query = c.flag("new_decoder_architecture"), c.flag("multi_query", True)
    given = c.whole(c.first("num_kv_heads", "n_head_kv"), optional=True)
    kv_heads = (given or heads) if new or not multi_query else 1
    if heads % kv_heads:
        raise c.fail("num_kv_heads", f"is {kv_heads}, which does not divide num_attention_heads = {heads}")
    bias, parallel = c.flag("bias"), c.flag("parallel_attn", True)
    c.flag("alibi")  # positions by bias on the scores: no weights
    norms_given = c.whole("num_ln_in_parallel_attn", optional=True)
    norms = (norms_given or 2) if new else 1 if parallel else 2
    mixer = Attention(
        heads=heads, kv_heads=kv_heads, head_dim=_head_dim(c, "num_attention_heads", heads, hidden), qkv_bias=bias, o_bias=bias
    )
    width = c.whole("ffn_hidden_size", optional=True) or 4 * hidden
    layer = Layer(mixer=mixer, ffn=MLP(intermediate=width, gated=False, bias=bias), norms=norms, norm_bias=True, parallel=parallel)
    outer = _outer(c, hidden, c.whole("vocab_size"), True, "bf16")
    modules = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attention.query_key_value")
    modules |= {"o_proj": "self_attention.dense", "up_proj": "mlp.dense_h_to_4h", "down_proj": "mlp.dense_4h_to_h"}
    layers = c.whole(c.first("num_hidden_layers", "n_layer"))
    return Draft([("dense", layer)] * layers, outer, prefix="transformer.h.", modules=modules)


def phi(c: Keys) -> Draft:
    """Phi-1.5 and Phi-2: attention and feed-forward in parallel on one norm, biases everywhere, the head's too."""
    hidden = c.whole("hidden_size")
    c.expect("qk_layernorm", False)
    mixer = blocks.attention(c, qkv_bias=True, o_bias=True)
    ffn = MLP(intermediate=c.whole("intermediate_size"), gated=False, bias=True)
    layer = Layer(mixer=mixer, ffn=ffn, norms=1, norm_bias=True, parallel=True)
    outer = _outer(c, hidden, c.whole("vocab_size"), False, lm_head_bias=True)
    modules = {f"{name}_proj": f"self_attn.{name}_proj" for name in "qkv"}
    modules |= {"o_proj": "self_attn.dense", "up_proj": "mlp.fc1", "down_proj": "mlp.fc2"}
    return Draft([("dense", layer)] * c.whole("num_hidden_layers"), outer, modules=modules)


FAMILIES: dict[str, Callable[[Keys], Draft]] = {"gpt2": gpt2, "opt": opt, "gpt_neox": gpt_neox, "falcon": falcon, "phi": phi}
