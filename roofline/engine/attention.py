"""What one forward pass computes, as tensors, and attention over the paged cache.

Rows with equally many new tokens form a group: all plain decodes are one, rows with k drafts to verify another, each piece of a
prompt one of its own. A group is a rectangle, so the same few lines serve them all, padded or not, captured in a graph or not.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from roofline.engine.kvcache import LayerKv


@dataclass
class Group:
    """rows × new tokens, which lie at tokens first … first + rows · new − 1 of the pass.

    tables: (rows, width) block ids, int64, padded with the null block. positions: (rows, new). cold: no row has past tokens.
    """

    first: int
    new: int
    tables: Tensor
    positions: Tensor
    block_size: int
    cold: bool = False
    _masks: dict[int | None, Tensor] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Sequences."""
        return self.tables.shape[0]

    @property
    def starts(self) -> Tensor:
        """(rows + 1), int32: where each row's queries begin among those of the group."""
        return torch.arange(self.rows + 1, device=self.tables.device, dtype=torch.int32) * self.new

    @property
    def lengths(self) -> Tensor:
        """(rows), int32: tokens of each sequence after this pass."""
        return (self.positions[:, -1] + 1).int()

    @property
    def span(self) -> slice:
        """Its tokens in the pass."""
        return slice(self.first, self.first + self.rows * self.new)

    def mask(self, window: int | None) -> Tensor:
        """(rows, 1, new, width · block_size): whether a query sees a position. Computed once per pass and window."""
        if window not in self._masks:
            at = torch.arange(self.tables.shape[1] * self.block_size, device=self.tables.device)
            position = self.positions.unsqueeze(-1)
            seen = at <= position
            if window is not None:
                seen &= at > position - window
            self._masks[window] = seen.unsqueeze(1)
        return self._masks[window]


@dataclass
class Pass:
    """tokens, positions, slots: (tokens); outputs: the tokens whose logits are wanted."""

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    outputs: Tensor
    groups: list[Group]


@dataclass(frozen=True)
class Scores:
    """How scores become weights. scale: on q · k; window: positions seen, the own one included; softcap: cap · tanh(score / cap).

    flash: read the pages with PyTorch's FlashAttention instead of gathering them (CUDA, 16-bit types).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    flash: bool = False


def paged_attention(q: Tensor, k: Tensor, v: Tensor, cache: LayerKv, step: Pass, scores: Scores) -> Tensor:
    """Writes K and V of the new tokens, then attends to all that each token sees. All (tokens, heads, width); returns the same."""
    assert cache.values is not None  # noqa: S101 - not a latent cache
    cache.keys.write(step.slots, k)
    cache.values.write(step.slots, v)
    outs = []
    for group in step.groups:
        rows, new = group.rows, group.new
        queries = q[group.span].unflatten(0, (rows, new))
        if group.cold and scores.window is None and scores.softcap is None and cache.keys.scales is None:
            keys, values = k[group.span].unflatten(0, (rows, new)), v[group.span].unflatten(0, (rows, new))
            out = causal(queries, keys, values, scores.scale)
        elif scores.flash and scores.softcap is None and cache.keys.scales is None:
            out = flash(queries, cache, group, scores)
        else:
            out = attend(queries, cache.keys.read(group.tables), cache.values.read(group.tables), group.mask(scores.window), scores)
        outs.append(out.flatten(0, 1))
    return torch.cat(outs) if len(outs) > 1 else outs[0]


def flash(q: Tensor, cache: LayerKv, group: Group, scores: Scores) -> Tensor:
    """Attention straight from the pages of an unquantised cache. q, and what is returned: (rows, new, heads, width)."""
    from torch.nn.attention.varlen import varlen_attn

    assert cache.values is not None  # noqa: S101 - not a latent cache
    keys, values = cache.keys.pages, cache.values.pages
    out = varlen_attn(
        q.flatten(0, 1),
        keys,
        values,
        group.starts,
        None,
        group.new,
        group.tables.shape[1] * group.block_size,
        scale=scores.scale,
        window_size=(-1 if scores.window is None else scores.window - 1, 0),
        enable_gqa=q.shape[2] != keys.shape[2],
        seqused_k=group.lengths,
        block_table=group.tables.int(),
    )
    assert isinstance(out, Tensor)  # noqa: S101 - a pair only where the sums are asked for
    split: Tensor = out.unflatten(0, (group.rows, group.new))
    return split


def causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention among new tokens only. (rows, new, heads, width)."""
    out: Tensor = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, scale=scale, enable_gqa=q.shape[2] != k.shape[2]
    )
    return out.transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """q: (rows, new, heads, width); k, v: (rows, length, kv_heads, width); mask: (rows, 1, new, length). Returns as q, as wide as v."""
    rows, new, heads, _ = q.shape
    kv_heads = k.shape[2]
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    if scores.softcap is not None:
        return _capped(q, keys, values, mask, scores)
    if new == 1:  # the queries of one KV head see the same positions: one row each, and K and V need no copies
        grouped = q.view(rows, kv_heads, heads // kv_heads, -1)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, scale=scores.scale)
        return out.reshape(rows, 1, heads, -1)
    out = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=mask, scale=scores.scale, enable_gqa=heads != kv_heads)
    return out.transpose(1, 2)


def _capped(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scores: Scores) -> Tensor:
    """As `attend`, written out, for scores that SDPA does not compute."""
    assert scores.softcap is not None  # noqa: S101
    repeat = q.shape[2] // keys.shape[1]
    keys, values = keys.repeat_interleave(repeat, 1), values.repeat_interleave(repeat, 1)
    product = q.transpose(1, 2) @ keys.transpose(2, 3) * scores.scale
    capped = scores.softcap * torch.tanh(product / scores.softcap)
    weights = capped.masked_fill(~mask, float("-inf")).softmax(-1, dtype=torch.promote_types(torch.float32, q.dtype))
    return (weights.to(q.dtype) @ values).transpose(1, 2)
