"""Layers of the decoder: norms, rotary positions, attention, latent attention, feed-forward parts and experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from roofline.engine.attention import Pass, Scores, attend, causal, paged_attention
from roofline.engine.kvcache import LayerKv
from roofline.engine.linear import Product
from roofline.engine.numerics import Rope, Routing
from roofline.engine.parallel import Ranks


class Norm:
    """RMS norm. offset: added to the weight (Gemma keeps weight − 1)."""

    def __init__(self, weight: Tensor, eps: float, offset: float = 0.0) -> None:
        self.weight, self.eps = weight + offset if offset else weight, eps

    def __call__(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rotary:
    """cos and sin of all positions up to `positions`, (positions, dim)."""

    def __init__(self, rope: Rope, dim: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        angles = torch.outer(torch.arange(positions, dtype=torch.float64), rope.frequencies(dim)).repeat(1, 2)
        self.cos = (angles.cos() * rope.attention_factor).to(device, dtype)
        self.sin = (angles.sin() * rope.attention_factor).to(device, dtype)
        self._interleaved = rope.interleaved

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotates (tokens, heads, dim). Interleaved pairs come out as halves: products of two rotated vectors are the same."""
        if self._interleaved:
            x = x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2)
        cos, sin = self.cos[positions].unsqueeze(1), self.sin[positions].unsqueeze(1)
        half = x.shape[-1] // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


class SelfAttention:
    """Grouped-query attention over the paged cache. qkv gives Q, K and V of this rank's heads side by side."""

    def __init__(
        self,
        qkv: Product,
        out: Product,
        heads: tuple[int, int],
        widths: tuple[int, int],
        rotary: Rotary,
        scores: Scores,
        ranks: Ranks,
        norms: tuple[Norm, Norm] | None = None,
    ) -> None:
        """heads: of Q and of K; widths: of a Q or K head and of a V head; norms: of Q and K heads."""
        self.qkv, self.out, self.norms, self.rotary, self.scores, self.ranks = qkv, out, norms, rotary, scores, ranks
        self.heads, self.kv_heads = heads
        self.width, self.value_width = widths
        self._split = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.value_width]

    def __call__(self, x: Tensor, cache: LayerKv, step: Pass) -> Tensor:
        q, k, v = self.qkv(x).split(self._split, -1)
        q, k = q.unflatten(-1, (self.heads, self.width)), k.unflatten(-1, (self.kv_heads, self.width))
        if self.norms is not None:
            q, k = self.norms[0](q), self.norms[1](k)
        q, k = self.rotary(q, step.positions), self.rotary(k, step.positions)
        out = paged_attention(q, k, v.unflatten(-1, (self.kv_heads, self.value_width)), cache, step, self.scores)
        return self.ranks.sum(self.out(out.flatten(1)))


class LatentAttention:
    """DeepSeek's latent attention. The cache holds one latent and one rotary key per token.

    Decodes run absorbed: queries move into the latent space, where all heads share one K. Prompts run expanded: K and V of each
    head are made from the latents. Source: arXiv 2405.04434, section 2.1 and appendix C.
    """

    def __init__(
        self,
        queries: list[Product],
        latent: Product,
        expand: Tensor,
        out: Product,
        latent_norm: Norm,
        rotary: Rotary,
        scores: Scores,
        ranks: Ranks,
        nope: int,
    ) -> None:
        """queries: products (and the norm between them) from hidden to Q; expand: (heads, nope + value width, latent rank)."""
        self.queries, self.latent, self.out, self.latent_norm = queries, latent, out, latent_norm
        self.rotary, self.scores, self.ranks, self.nope = rotary, scores, ranks, nope
        self.to_key, self.to_value = expand[:, :nope].contiguous(), expand[:, nope:].contiguous()
        self.heads, self.rank = expand.shape[0], expand.shape[2]

    def __call__(self, x: Tensor, cache: LayerKv, step: Pass) -> Tensor:
        q = x
        for product in self.queries:
            q = product(q)
        q = q.unflatten(-1, (self.heads, -1))
        q = torch.cat((q[..., : self.nope], self.rotary(q[..., self.nope :], step.positions)), -1)
        latent, key = self.latent(x).split([self.rank, q.shape[-1] - self.nope], -1)
        vector = torch.cat((self.latent_norm(latent).unsqueeze(1), self.rotary(key.unsqueeze(1), step.positions)), -1)
        cache.keys.write(step.slots, vector)
        outs = []
        for group in step.groups:
            queries = q[group.span].unflatten(0, (group.rows, group.new))
            if group.new == 1:
                out = self._absorbed(queries, cache.keys.read(group.tables), group.mask(None))
            elif group.cold and cache.keys.scales is None:
                k, v = self._expanded(vector[group.span].unflatten(0, (group.rows, group.new)))
                out = causal(queries, k, v, self.scores.scale)
            else:
                k, v = self._expanded(cache.keys.read(group.tables))
                out = attend(queries, k, v, group.mask(None), self.scores)
            outs.append(out.flatten(0, 1))
        return self.ranks.sum(self.out(torch.cat(outs).flatten(1)))

    def _absorbed(self, q: Tensor, vectors: Tensor, mask: Tensor) -> Tensor:
        inner = torch.einsum("rnhd,hdl->rnhl", q[..., : self.nope], self.to_key)
        out = attend(torch.cat((inner, q[..., self.nope :]), -1), vectors, vectors[..., : self.rank], mask, self.scores)
        return torch.einsum("rnhl,hvl->rnhv", out, self.to_value)

    def _expanded(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        latent, key = vectors[:, :, 0, : self.rank], vectors[..., self.rank :]
        k = torch.einsum("rtl,hdl->rthd", latent, self.to_key)
        v = torch.einsum("rtl,hvl->rthv", latent, self.to_value)
        return torch.cat((k, key.expand(-1, -1, self.heads, -1)), -1), v


class GatedMlp:
    """down(act(gate(x)) · up(x)); gate and up side by side in one product. The sum over ranks is the caller's."""

    def __init__(self, gate_up: Product, down: Product, activation: str) -> None:
        self.gate_up, self.down, self.silu = gate_up, down, activation == "silu"

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down((F.silu(gate) if self.silu else F.gelu(gate, approximate="tanh")) * up)


class Mlp:
    """A dense feed-forward part."""

    def __init__(self, inner: GatedMlp, ranks: Ranks) -> None:
        self.inner, self.ranks = inner, ranks

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.sum(self.inner(x))


class Moe:
    """Routed experts, each split over the ranks, and a shared expert that runs for every token, gated or not."""

    def __init__(
        self,
        router: Tensor,
        correction: Tensor | None,
        experts: list[GatedMlp],
        top_k: int,
        routing: Routing,
        ranks: Ranks,
        shared: GatedMlp | None = None,
        shared_gate: Tensor | None = None,
    ) -> None:
        self.router, self.correction, self.experts, self.top_k, self.routing = router, correction, experts, top_k, routing
        self.ranks, self.shared, self.shared_gate = ranks, shared, shared_gate

    def __call__(self, x: Tensor) -> Tensor:
        chosen, weights = self.route(x)
        out = torch.zeros_like(x)
        flat, order = chosen.flatten().sort(stable=True)
        first = 0
        for expert, count in enumerate(torch.bincount(flat, minlength=len(self.experts)).tolist()):
            if count:
                pairs = order[first : first + count]
                rows = pairs // self.top_k
                out.index_add_(0, rows, self.experts[expert](x[rows]) * weights.flatten()[pairs].unsqueeze(1))
                first += count
        if self.shared is not None:
            extra = self.shared(x)
            out += extra if self.shared_gate is None else extra * F.linear(x, self.shared_gate).sigmoid()
        return self.ranks.sum(out)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(expert ids, weights) of each token, both (tokens, top_k). Scores are computed in fp32 at least."""
        how = self.routing
        wide = torch.promote_types(torch.float32, x.dtype)
        logits = F.linear(x.to(wide), self.router.to(wide))
        scores = logits.sigmoid() if how.scoring == "sigmoid" else logits.softmax(-1)
        choice = scores if self.correction is None else scores + self.correction
        if how.groups > 1:
            grouped = choice.unflatten(-1, (how.groups, -1))
            worth = grouped.topk(2, -1).values.sum(-1) if how.group_score == "top2" else grouped.amax(-1)
            kept = torch.zeros_like(worth).scatter_(-1, worth.topk(how.top_groups, -1).indices, 1.0)
            choice = (grouped * kept.unsqueeze(-1)).flatten(-2)
        chosen = choice.topk(self.top_k, -1).indices
        weights = scores.gather(-1, chosen)
        if how.renormalise:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return chosen, (weights * how.scale).to(x.dtype)
