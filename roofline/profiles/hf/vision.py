"""Vision towers: their parameters are counted and said, their work is not (text decoding does not run them)."""

from __future__ import annotations

from collections.abc import Callable

from roofline.profiles.hf.draft import ExtraDraft
from roofline.profiles.hf.keys import Keys


def tower(c: Keys, hidden: int) -> ExtraDraft | None:
    """The vision part of a multimodal configuration `c`, None (and an assumption) when it says nothing about it."""
    vision = c.object("vision_config")
    if vision is None:
        c.assume("the configuration has no vision_config: a vision tower, if there is one, is not counted")
        return None
    count = _TOWERS[c.model_type](vision, hidden)
    for name in ("model_type", *_SAID_BY_OTHERS):
        vision.raw(name)
    vision.finish()
    return ExtraDraft("vision", [], count, count * 2.0, True, "vision tower and projector in 16 bits; text decoding does not run it")


_SAID_BY_OTHERS = ("num_heads", "num_attention_heads", "vt_num_attention_heads", "num_key_value_heads", "dtype", "torch_dtype")


def _block(h: int, inner: int) -> int:
    """A transformer block with biases: two LayerNorms, fused or separate QKV, output, two-layer MLP."""
    return 4 * h + 4 * h * h + 4 * h + 2 * h * inner + inner + h


def _qwen(v: Keys, hidden: int) -> int:
    """Qwen3-VL and Qwen3.5: patch convolution over time, learned positions, mergers (deepstack ones normalise after merging)."""
    h, inner, out = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("out_hidden_size")
    merged = h * v.whole("spatial_merge_size") ** 2
    patch = v.whole("in_channels", 3) * v.whole("temporal_patch_size") * v.whole("patch_size") ** 2
    merger = merged * merged + merged + merged * out + out
    deep = len(v.items("deepstack_visual_indexes") or [])
    v.expect("out_hidden_size", hidden)
    total = patch * h + h + v.whole("num_position_embeddings") * h + v.whole("depth") * _block(h, inner)
    return total + 2 * h + merger + deep * (2 * merged + merger)


def _kimi(v: Keys, hidden: int) -> int:
    """Kimi-K2.5: MoonViT with learned positions, then a patch merger."""
    h, inner = v.whole("vt_hidden_size"), v.whole("vt_intermediate_size")
    v.expect("merge_kernel_size", [2, 2])
    merged = h * 2 * 2
    positions = v.whole("init_pos_emb_height") * v.whole("init_pos_emb_width") * h
    v.expect("mm_projector_type", "patchmerger")
    v.expect("mm_hidden_size", h)
    v.expect("text_hidden_size", hidden)
    for name in ("init_pos_emb_time", "merge_type", "pos_emb_type", "projector_hidden_act", "projector_ln_eps", "video_attn_type"):
        v.raw(name)  # fixed positions in time and how they are pooled: no weights
    tower_ = 3 * v.whole("patch_size") ** 2 * h + h + positions + v.whole("vt_num_hidden_layers") * _block(h, inner) + 2 * h
    return tower_ + 2 * h + merged * merged + merged + merged * hidden + hidden


def _gemma4(v: Keys, hidden: int) -> int:
    """Gemma 4: gated MLPs, QK-norm, four norms per block, positions along both axes."""
    h, inner, width = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("head_dim")
    v.expect("attention_bias", False)
    v.expect("use_clipped_linears", False)
    heads, kv = v.whole("num_attention_heads"), v.whole("num_key_value_heads")
    block = (2 * heads + 2 * kv) * width * h + 2 * width + 3 * h * inner + 4 * h
    patches = 3 * v.whole("patch_size") ** 2 * h + 2 * v.whole("position_embedding_size") * h
    for name in ("default_output_length", "global_head_dim", "image_seq_length", "video_seq_length", "pooling_kernel_size", "standardize"):
        v.raw(name)  # how many tokens an image becomes
    v.raw("max_position_embeddings")
    return patches + v.whole("num_hidden_layers") * block + h * hidden


def _siglip(v: Keys, hidden: int) -> int:
    """Gemma 3: SigLIP and a projection."""
    h, inner, patch = v.whole("hidden_size", 1152), v.whole("intermediate_size", 4304), v.whole("patch_size", 14)
    side = v.whole("image_size", 896) // patch
    v.expect("vision_use_head", False)
    v.raw("num_channels")
    total = 3 * patch * patch * h + h + side * side * h + v.whole("num_hidden_layers", 27) * _block(h, inner) + 2 * h
    return total + h * hidden + h


def _pixtral(v: Keys, hidden: int) -> int:
    """Mistral 3: Pixtral without biases, gated MLPs; a norm, a merger of 2 × 2 patches and a two-layer projection."""
    h, inner, patch = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("patch_size")
    v.expect("num_channels", 3)
    for name in ("image_size", "head_dim"):
        v.raw(name)  # positions are rotary
    block = 4 * h * h + 3 * h * inner + 2 * h
    return 3 * patch * patch * h + h + v.whole("num_hidden_layers") * block + h + 4 * h * h + h * hidden + hidden * hidden


def _llama4(v: Keys, hidden: int) -> int:
    """Llama 4: a ViT with class token, a pixel-shuffle adapter and a projection."""
    h, inner, patch = v.whole("hidden_size"), v.whole("intermediate_size"), v.whole("patch_size")
    side, out = v.whole("image_size") // patch, v.whole("vision_output_dim")
    projected_in, projected_out = v.whole("projector_input_dim"), v.whole("projector_output_dim")
    for name in ("pixel_shuffle_ratio", "num_channels", "multi_modal_projector_bias", "projector_dropout", "vision_feature_layer"):
        v.raw(name)
    v.raw("vision_feature_select_strategy")
    total = 3 * patch * patch * h + h + (side * side + 1) * h + v.whole("num_hidden_layers") * _block(h, inner) + 4 * h
    return total + inner * projected_in + projected_in * projected_out + out * hidden


_TOWERS: dict[str, Callable[[Keys, int], int]] = {
    "qwen3_vl": _qwen,
    "qwen3_vl_moe": _qwen,
    "qwen3_5": _qwen,
    "qwen3_5_moe": _qwen,
    "kimi_k25": _kimi,
    "gemma4": _gemma4,
    "gemma3": _siglip,
    "llama4": _llama4,
    "mistral3": _pixtral,
}
