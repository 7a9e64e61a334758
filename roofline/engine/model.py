"""The decoder of one rank: built from a profile and a source of weights, tensor by tensor, sharded and quantised as it comes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from roofline.engine.attention import Pass, Scores
from roofline.engine.kvcache import LayerKv
from roofline.engine.layers import GatedMlp, LatentAttention, Mlp, Moe, Norm, Rotary, SelfAttention
from roofline.engine.linear import Product, linear
from roofline.engine.numerics import Numerics, Rope
from roofline.engine.parallel import Ranks
from roofline.engine.weights import EMBEDDING, FINAL_NORM, HEAD, Weights, expert_names, norm_names, shared_name
from roofline.profiles.model import MLA, Attention, FeedForward, Layer, Model, MoE


@dataclass
class Block:
    """One decoder layer. norms: before attention and feed-forward, or with two more after them."""

    mixer: SelfAttention | LatentAttention
    ffn: Mlp | Moe
    norms: list[Norm]

    def __call__(self, x: Tensor, cache: LayerKv, step: Pass) -> Tensor:
        if len(self.norms) == 2:
            x = x + self.mixer(self.norms[0](x), cache, step)
            return x + self.ffn(self.norms[1](x))
        x = x + self.norms[1](self.mixer(self.norms[0](x), cache, step))
        return x + self.norms[3](self.ffn(self.norms[2](x)))


@dataclass
class Decoder:
    """Tokens to logits. head: this rank's rows of the vocabulary."""

    embedding: Tensor
    blocks: list[Block]
    norm: Norm
    head: Tensor
    numerics: Numerics
    ranks: Ranks

    def __call__(self, step: Pass, cache: list[LayerKv]) -> Tensor:
        """Logits (outputs of the pass, vocabulary), the same on all ranks."""
        x = F.embedding(step.tokens, self.embedding)
        if self.numerics.embedding_scale != 1:
            x = x * torch.tensor(self.numerics.embedding_scale, dtype=x.dtype)
        for block, layer in zip(self.blocks, cache, strict=True):
            x = block(x, layer, step)
        logits = self.ranks.join(F.linear(self.norm(x[step.outputs]), self.head), len(self.embedding))
        cap = self.numerics.final_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)


def build_decoder(
    model: Model,
    numerics: Numerics,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    positions: int,
    fmt: str = "",
    ranks: Ranks | None = None,
    flash: bool = False,
) -> Decoder:
    """The decoder of one rank. positions: longest sequence; fmt: storage of the layers' matrices (see linear; the router, MLA's
    expansion, embeddings and head keep `dtype`); flash: see Scores."""
    build = _Builder(model, numerics, weights, dtype, device, positions, fmt, ranks or Ranks(), flash)
    return build.decoder()


class _Builder:
    def __init__(
        self,
        model: Model,
        numerics: Numerics,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        positions: int,
        fmt: str,
        ranks: Ranks,
        flash: bool,
    ) -> None:
        self.model, self.numerics, self.weights, self.ranks = model, numerics, weights, ranks
        self.dtype, self.device, self.positions, self.fmt = dtype, device, positions, fmt
        self.flash = flash
        self._rotaries: dict[tuple[Rope, int], Rotary] = {}

    def decoder(self) -> Decoder:
        embedding = self.get(EMBEDDING)
        first, stop = self.ranks.span(len(embedding))
        head = embedding if self.model.tie_word_embeddings else self.get(HEAD)
        blocks = [self.block(f"model.layers.{index}.", self.model.layers[kind]) for index, kind in enumerate(self.model.stack)]
        return Decoder(embedding, blocks, self.norm(FINAL_NORM), head[first:stop], self.numerics, self.ranks)

    def get(self, name: str) -> Tensor:
        return self.weights.tensor(name).to(self.device, self.dtype)

    def norm(self, name: str) -> Norm:
        return Norm(self.get(name), self.numerics.eps, self.numerics.norm_offset)

    def columns(self, names: list[str], parts: list[int], *, bias: bool) -> Product:
        """Matrices that read the same input, side by side, each split by its outputs."""
        weight = torch.cat([self.ranks.shard(self.get(f"{name}.weight"), 0, part) for name, part in zip(names, parts, strict=True)])
        biases = [self.ranks.shard(self.get(f"{name}.bias"), 0, part) for name, part in zip(names, parts, strict=True)] if bias else []
        return linear(weight, torch.cat(biases) if biases else None, self.fmt)

    def rows(self, name: str, parts: int, *, bias: bool) -> Product:
        """A matrix split by its inputs: the ranks' outputs are to be summed, so only the first has the bias."""
        extra = self.get(f"{name}.bias") if bias and self.ranks.rank == 0 else None
        return linear(self.ranks.shard(self.get(f"{name}.weight"), 1, parts), extra, self.fmt)

    def whole(self, name: str, *, bias: bool = False) -> Product:
        return linear(self.get(f"{name}.weight"), self.get(f"{name}.bias") if bias else None, self.fmt)

    def rotary(self, rope: Rope, dim: int) -> Rotary:
        if (rope, dim) not in self._rotaries:
            self._rotaries[rope, dim] = Rotary(rope, dim, self.positions, self.dtype, self.device)
        return self._rotaries[rope, dim]

    def block(self, prefix: str, layer: Layer) -> Block:
        norms = [self.norm(f"{prefix}{name}.weight") for name in norm_names(layer)]
        assert layer.ffn is not None  # noqa: S101 - check_supported
        if isinstance(layer.mixer, MLA):
            return Block(self.latent(f"{prefix}self_attn.", layer.mixer), self.ffn(prefix, layer.ffn), norms)
        assert isinstance(layer.mixer, Attention)  # noqa: S101 - check_supported
        return Block(self.attention(f"{prefix}self_attn.", layer.mixer), self.ffn(prefix, layer.ffn), norms)

    def attention(self, prefix: str, mixer: Attention) -> SelfAttention:
        how, size = self.numerics, self.ranks.size
        rope = how.local_rope if how.local_rope and mixer.window else how.rope
        names = [f"{prefix}{name}_proj" for name in "qkv"]
        return SelfAttention(
            self.columns(names, [mixer.heads, mixer.kv_heads, mixer.kv_heads], bias=mixer.qkv_bias),
            self.rows(f"{prefix}o_proj", mixer.heads, bias=mixer.o_bias),
            (mixer.heads // size, max(mixer.kv_heads // size, 1)),
            (mixer.head_dim, mixer.value_dim),
            self.rotary(rope, mixer.head_dim),
            Scores(how.query_scale or mixer.head_dim**-0.5, mixer.window, how.attention_softcap, self.flash),
            self.ranks,
            (self.norm(f"{prefix}q_norm.weight"), self.norm(f"{prefix}k_norm.weight")) if mixer.qk_norm == "head" else None,
        )

    def latent(self, prefix: str, mixer: MLA) -> LatentAttention:
        width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        if mixer.q_lora_rank is None:
            queries: list[Product] = [self.columns([f"{prefix}q_proj"], [mixer.heads], bias=False)]
        else:
            queries = [
                self.whole(f"{prefix}q_a_proj", bias=mixer.bias),
                self.norm(f"{prefix}q_a_layernorm.weight"),
                self.columns([f"{prefix}q_b_proj"], [mixer.heads], bias=False),
            ]
        expand = self.ranks.shard(self.get(f"{prefix}kv_b_proj.weight"), 0, mixer.heads)
        return LatentAttention(
            queries,
            self.whole(f"{prefix}kv_a_proj_with_mqa", bias=mixer.bias),
            expand.unflatten(0, (mixer.heads // self.ranks.size, -1)),
            self.rows(f"{prefix}o_proj", mixer.heads, bias=mixer.bias),
            self.norm(f"{prefix}kv_a_layernorm.weight"),
            self.rotary(self.numerics.rope, mixer.qk_rope_head_dim),
            Scores(width**-0.5 * self.numerics.query_factor),
            self.ranks,
            mixer.qk_nope_head_dim,
        )

    def gated(self, prefix: str, names: tuple[str, str, str], *, bias: bool = False) -> GatedMlp:
        gate, up, down = (prefix + name for name in names)
        size = self.ranks.size
        return GatedMlp(self.columns([gate, up], [size, size], bias=bias), self.rows(down, size, bias=bias), self.numerics.activation)

    def ffn(self, prefix: str, spec: FeedForward) -> Mlp | Moe:
        plain = ("gate_proj", "up_proj", "down_proj")
        if not isinstance(spec, MoE):
            return Mlp(self.gated(f"{prefix}mlp.", plain, bias=spec.bias), self.ranks)
        module, names = expert_names(self.model)
        prefix = f"{prefix}{module}."
        correction = self.weights.tensor(f"{prefix}gate.e_score_correction_bias").to(self.device) if spec.router_bias else None
        return Moe(
            self.get(f"{prefix}gate.weight"),
            correction,
            [self.gated(f"{prefix}experts.{expert}.", names) for expert in range(spec.experts)],
            spec.top_k,
            self.numerics.routing,
            self.ranks,
            self.gated(f"{prefix}{shared_name(self.model)}.", plain) if spec.shared_intermediate else None,
            self.get(f"{prefix}shared_expert_gate.weight") if spec.shared_gate else None,
        )
