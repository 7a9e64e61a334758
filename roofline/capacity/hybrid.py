"""vLLM's hybrid KV allocator: layers of several kinds share one pool of equal pages, to the block.

Layers are put into groups of equal size; a page serves one token block of all layers of one group. Where layers keep a
recurrent state, the token block of the attention layers grows until its page holds one state.
"""

from __future__ import annotations

import math

from roofline.capacity.blocks import LayerKind, Pool, Share, exact_shares


def delta_net_state_bytes(
    value_heads: int,
    *,
    key_heads: int = 16,
    head_dim: int = 128,
    conv: int = 4,
    state_element_bytes: float = 4,
    conv_element_bytes: float = 2,
    spec_tokens: int = 0,
    tp: int = 1,
) -> float:
    """Bytes of state of one sequence in one gated-delta-net layer on one rank: the matrix state and the convolution's tail.

    The convolution keeps conv − 1 inputs of Q, K and V, and one more for each speculative token. head_dim: of keys and values.
    """
    matrix = value_heads * head_dim * head_dim * state_element_bytes
    tail = (conv - 1 + spec_tokens) * (2 * key_heads * head_dim + value_heads * head_dim) * conv_element_bytes
    return (matrix + tail) / tp


def group_size(counts: list[int]) -> int:
    """Layers of one group: the smallest count, or the largest where that is less than 1.5 times the smallest.

    Source: vLLM kv_cache_utils (its early versions had 1.25 in place of 1.5).
    """
    return max(counts) if max(counts) < 1.5 * min(counts) else min(counts)


def grouped_shares(
    kinds: tuple[LayerKind, ...], block_tokens: int, *, prefix_caching: bool = True, spec_tokens: int = 0
) -> tuple[Share, ...]:
    """What one sequence takes under vLLM's allocator: all pages of one size, padding layers of incomplete groups included.

    prefix_caching: a state takes two pages (the running one and the cached one), else one; a speculative token one more.
    One kind of layer, and states without any attention, need no groups.
    """
    growing = [kind for kind in kinds if kind.kv_bytes]
    if len(kinds) < 2 or not growing:
        return exact_shares(kinds, block_tokens)
    layers = group_size([kind.layers for kind in kinds])
    widest = max(kind.kv_bytes for kind in growing)
    state = max(kind.state_bytes for kind in kinds)
    tokens = max(block_tokens, math.ceil(state / widest / block_tokens) * block_tokens)
    page = tokens * widest * layers
    shares = []
    for kind in sorted(kinds, key=lambda kind: (kind.kv_bytes == 0, kind.window is not None)):
        copies = math.ceil(kind.layers / layers)
        if kind.kv_bytes:
            shares.append(Share(page, math.floor(tokens * widest / kind.kv_bytes), copies, window=kind.window))
        else:
            shares.append(Share(page, 1, copies, fixed=(2 if prefix_caching else 1) + spec_tokens))
    return tuple(shares)


def hybrid_pool(
    available_bytes: float,
    *,
    attention_layers: int,
    kv_bytes_per_layer: float,
    state_layers: int,
    state_bytes: float,
    block_tokens: int = 16,
    prefix_caching: bool = True,
    spec_tokens: int = 0,
) -> Pool:
    """The pool of a model with attention and state layers, from its geometry on one rank.

    kv_bytes_per_layer: per token and layer; state_bytes: per sequence and layer (delta_net_state_bytes). `Pool.blocks`,
    `Pool.concurrency(max_len)`, `Pool.tokens()` (older logs) and `Pool.tokens_at(max_len)` (newer logs) are what vLLM prints.
    """
    kinds = (LayerKind(attention_layers, kv_bytes_per_layer), LayerKind(state_layers, 0.0, None, state_bytes))
    return Pool(available_bytes, grouped_shares(kinds, block_tokens, prefix_caching=prefix_caching, spec_tokens=spec_tokens), 1)
