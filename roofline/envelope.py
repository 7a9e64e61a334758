"""Back-of-the-envelope formulas: the whole idea on numbers you can type in, with no model or device profile.

Each returns SI units. They are what the field's introductions compute; the ledger replaces every one of them with an exact
count. Source: FLOP counts of matrix products, 1 multiply-add = 2 FLOP.
"""

from __future__ import annotations

import math


def ridge_intensity(peak_flops: float, bandwidth: float) -> float:
    """FLOP per byte above which a device computes rather than waits for memory: peak / bandwidth."""
    return peak_flops / bandwidth


def weights_only_intensity(tokens: float, bytes_per_parameter: float) -> float:
    """FLOP per byte of a pass over `tokens` rows when only weights move: 2·tokens / bytes per parameter."""
    return 2 * tokens / bytes_per_parameter


def linear_flops(parameters: float, tokens: float) -> float:
    """FLOP of the matrices of a forward pass: 2·parameters·tokens. Attention scores are not in it."""
    return 2 * parameters * tokens


def attention_flops(layers: int, width: float, tokens: float, *, causal: bool) -> float:
    """FLOP of Q·Kᵀ and S·V over all layers: 4·T²·width·layers for the full square, width = heads · head_dim.

    causal: the pairs that a causal kernel needs, T(T+1)/2 of T².
    """
    pairs = tokens * (tokens + 1) / 2 if causal else tokens * tokens
    return 4 * pairs * width * layers


def attention_share(parameters: float, layers: int, width: float, tokens: float, *, causal: bool) -> float:
    """Share of attention in the FLOPs of a prefill of `tokens` tokens, 0 to 1."""
    attention = attention_flops(layers, width, tokens, causal=causal)
    return attention / (attention + linear_flops(parameters, tokens))


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, bytes_per_element: float) -> float:
    """K and V of one token over all layers: 2·layers·kv_heads·head_dim·bytes."""
    return 2 * layers * kv_heads * head_dim * bytes_per_element


def decode_bytes(weight_bytes: float, kv_per_token: float, batch: float, context: float) -> float:
    """Bytes of one decode step: the weights once, the KV of each sequence."""
    return weight_bytes + batch * context * kv_per_token


def decode_seconds(weight_bytes: float, kv_per_token: float, batch: float, context: float, bandwidth: float) -> float:
    """Memory time of one decode step at full bandwidth: the floor of TPOT."""
    return decode_bytes(weight_bytes, kv_per_token, batch, context) / bandwidth


def decode_tokens_per_s(weight_bytes: float, kv_per_token: float, batch: float, context: float, bandwidth: float) -> float:
    """Ceiling of the output rate of a batch: batch / decode_seconds."""
    return batch / decode_seconds(weight_bytes, kv_per_token, batch, context, bandwidth)


def token_budget(kv_memory: float, kv_per_token: float) -> int:
    """Whole tokens whose KV fits in kv_memory bytes."""
    return math.floor(kv_memory / kv_per_token)


def naive_score_bytes(tokens: float, bytes_per_element: float) -> float:
    """Bytes of one head's T × T score matrix in one layer, which a flash kernel never stores."""
    return tokens * tokens * bytes_per_element


def reserved_waste(reserved: int, used: int) -> int:
    """Token slots that a contiguous reservation leaves empty."""
    return reserved - used
