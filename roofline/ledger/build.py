"""A batch → the operations of one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from roofline.batch import Array, Batch
from roofline.dtypes import DType, dtype
from roofline.ledger import ffn, mixers
from roofline.ledger.collectives import layer_collectives, outer_collectives
from roofline.ledger.elementwise import layer_elementwise
from roofline.ledger.ops import Ledger, Op
from roofline.ledger.parallel import SINGLE, Parallel
from roofline.ledger.streams import stream_ops
from roofline.ledger.tensors import outer_tensors
from roofline.ledger.weights import Matrix
from roofline.profiles.model import MLA, Layer, Model, MoE


@dataclass(frozen=True)
class Conventions:
    """How to count. The defaults are what engines run.

    causal: count the pairs that a causal kernel needs (False: the full rectangle). naive_attention: scores stored in memory.
    elementwise: norms, activations, residual adds and the embedding lookup as ops of their own (engines fuse most of them, so
    the bound leaves them out). logits: the head runs on the last position of each sequence, on all positions, or not.
    """

    causal: bool = True
    naive_attention: bool = False
    elementwise: bool = False
    logits: str = "last"


@dataclass(frozen=True)
class Precision:
    """Storage types of one run. weights None: as the checkpoint has them."""

    weights: str | None = None
    activations: str | None = None
    kv: str | None = None

    def activation_dtype(self, model: Model) -> DType:
        """Type of activations between layers."""
        return dtype(self.activations or model.dtype)

    def kv_cache_dtype(self, model: Model) -> DType:
        """Type of the KV cache: as asked, as the checkpoint says, or that of the activations."""
        return dtype(self.kv or model.kv_dtype or self.activations or model.dtype)


DEFAULT = Conventions()
AS_SHIPPED = Precision()


def build_ledger(
    model: Model,
    batch: Batch,
    *,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    conventions: Conventions = DEFAULT,
    stage: int = 0,
) -> Ledger:
    """The operations of one forward pass of `batch` on one rank of pipeline stage `stage`.

    batch: the sequences of one attention-data-parallel rank; experts see the tokens of all dp ranks, spread evenly.
    Counts weights once per pass, KV of cached positions read once, KV of new positions written once, and each GEMM's input
    and output once. Not counted unless asked: norms and other element-wise work. Raises ShardError.
    """
    parallel.check(model)
    builder = _Builder(model, batch, parallel, precision, conventions)
    ops: list[Op] = []
    for name, count in Counter(parallel.stages(model)[stage]).items():
        ops += builder.layer_ops(name, model.layers[name], count)
    if stage == parallel.pp - 1 and conventions.logits != "none":
        ops += builder.head_ops()
    ops += outer_collectives(model, batch, parallel, builder.activation, stage, conventions.logits)
    return Ledger(tuple(ops))


class _Builder:
    """The settings of one pass, so that each step below reads as what it counts."""

    def __init__(self, model: Model, batch: Batch, parallel: Parallel, precision: Precision, conventions: Conventions) -> None:
        self.model, self.batch, self.parallel, self.precision, self.conventions = model, batch, parallel, precision, conventions
        self.activation = precision.activation_dtype(model)
        self.kv = precision.kv_cache_dtype(model)
        self.tokens = batch.tokens

    def layer_ops(self, name: str, layer: Layer, count: int) -> Iterator[Op]:
        """All ops of `count` layers of one kind."""
        if layer.mixer is not None:
            yield from self._mixer_ops(name, layer, count)
        if isinstance(layer.ffn, MoE):
            yield from self._moe_ops(name, layer, layer.ffn, count)
        elif layer.ffn is not None:
            for matrix in ffn.matrices(layer.ffn, self.model.hidden_size, self.parallel):
                yield self._gemm(name, layer, matrix, count, self.tokens)
        yield from stream_ops(name, layer, count, self.model, self.tokens, self.activation)
        if self.conventions.elementwise:
            yield from layer_elementwise(name, layer, count, self.model.hidden_size, self.tokens, self.parallel, self.activation)
        yield from layer_collectives(name, layer, count, self.model, self.tokens, self.parallel, self.activation)

    def _mixer_ops(self, name: str, layer: Layer, count: int) -> Iterator[Op]:
        mixer = layer.mixer
        assert mixer is not None  # noqa: S101  the caller checked
        settings = mixers.CoreContext(
            layer=name,
            count=count,
            hidden=self.model.hidden_size,
            tp=self.parallel.tp,
            dcp=self.parallel.dcp,
            activation=self.activation,
            kv=self.kv,
            causal=self.conventions.causal,
            naive=self.conventions.naive_attention,
        )
        *inward, outward = mixers.matrices(mixer, self.model.hidden_size, self.parallel.tp)
        for matrix in inward:
            if isinstance(mixer, MLA) and matrix.name == "kv_b_proj":
                yield from self._latent_expansion(name, layer, mixer, matrix, count)
            else:
                yield self._gemm(name, layer, matrix, count, self.tokens)
        yield from mixers.core_ops(mixer, self.batch, settings)
        yield self._gemm(name, layer, outward, count, self.tokens)

    def _latent_expansion(self, name: str, layer: Layer, mixer: MLA, matrix: Matrix, count: int) -> Iterator[Op]:
        """kv_b_proj: expanded for prefill tokens (and, in a chunk, the cached ones before it); absorbed halves for decode."""
        prefill, decode = mixers.mla.expanded_and_absorbed(mixer, self.batch)
        if np.any(prefill.count > 0):
            yield self._gemm(name, layer, matrix, count, prefill.contexts)
        if np.any(decode.count > 0):
            heads = mixer.heads // self.parallel.tp
            for half, dim in (("W_UK_absorb", mixer.qk_nope_head_dim), ("W_UV_absorb", mixer.v_head_dim)):
                part = Matrix(half, matrix.role, heads * dim, mixer.kv_lora_rank)
                op = self._gemm(name, layer, part, count, decode.tokens)
                width = decode.tokens * heads * (dim + mixer.kv_lora_rank) * self.activation.bytes_per_element
                yield replace(op, activation_bytes_each=width, shape={"batched": heads})

    def _gemm(self, name: str, layer: Layer | None, matrix: Matrix, count: int, rows: Array) -> Op:
        stored = matrix.dtype(self.model, layer, self.precision.weights)
        return Op(
            name=matrix.name,
            kind="gemm",
            layer=name,
            count=count,
            compute=self._compute(stored),
            formula=f"2·m·{matrix.n}·{matrix.k}",
            m=rows,
            n=matrix.n,
            k=matrix.k,
            flops_each=2 * rows * matrix.n * matrix.k,
            weight_bytes_each=matrix.bytes(self.model, layer, self.precision.weights),
            activation_bytes_each=rows * (matrix.n + matrix.k) * self.activation.bytes_per_element,
            input=matrix.input,
            weight_dtype=stored.name,
        )

    def _compute(self, stored: DType) -> str:
        """The peak that multiplies weights of this type: their own, or the activations' for weight-only and 16-bit formats."""
        return self.activation.compute if stored.weight_only or stored.bits >= 16 else stored.compute

    def _moe_ops(self, name: str, layer: Layer, spec: MoE, count: int) -> Iterator[Op]:
        parts = list(ffn.matrices(spec, self.model.hidden_size, self.parallel))
        routed = [m for m in parts if m.role == "experts"]
        shared = [m for m in parts if m.name.startswith("shared_experts.")]
        for matrix in parts:
            if matrix not in routed and matrix not in shared:
                yield self._gemm(name, layer, matrix, count, self.tokens)
        yield self._experts(name, layer, spec, routed, count)
        if shared:
            yield self._shared_experts(name, layer, spec, shared, count)

    def _shared_experts(self, name: str, layer: Layer, spec: MoE, matrices: list[Matrix], count: int) -> Op:
        """The experts that run for every token, as one op like the routed ones: its input and output move once."""
        width, hidden, inner = matrices[0].n, self.model.hidden_size, len(matrices) * matrices[0].n
        op = self._gemm(name, layer, Matrix("shared_experts", "shared_experts", inner, hidden), count, self.tokens)
        return replace(
            op,
            weight_bytes_each=sum(m.bytes(self.model, layer, self.precision.weights) for m in matrices),
            activation_bytes_each=self.tokens * (2 * hidden + inner) * self.activation.bytes_per_element,
            shape={"intermediate": width, "gated": spec.gated},
        )

    def _experts(self, name: str, layer: Layer, spec: MoE, matrices: list[Matrix], count: int) -> Op:
        """The routed experts of one rank as one grouped GEMM: expected distinct experts under uniform routing, and the fewest."""
        model, parallel = self.model, self.parallel
        everyone = self.tokens * parallel.dp
        routed = everyone * spec.top_k / parallel.ep
        expert_parameters = sum(m.n * m.k for m in matrices)
        expert_bytes = sum(m.bytes(model, layer, self.precision.weights) for m in matrices) / (spec.experts // parallel.ep)
        distinct = ffn.distinct_experts(spec.experts, spec.top_k, everyone) / parallel.ep
        stored = matrices[0].dtype(model, layer, self.precision.weights)
        width, hidden = spec.intermediate // parallel.moe_tp, spec.latent or model.hidden_size
        inner = (3 if spec.gated else 2) * width
        return Op(
            name="experts",
            kind="moe",
            layer=name,
            count=count,
            compute=self._compute(stored),
            formula=f"2·T·{spec.top_k}/{parallel.ep}·{expert_parameters}; reads {_distinct_text(spec, parallel.ep)} experts",
            m=routed,
            n=width,
            k=hidden,
            flops_each=2 * routed * expert_parameters,
            weight_bytes_each=distinct * expert_bytes,
            fewest_weight_bytes_each=np.minimum(ffn.fewest_experts(spec.top_k, parallel.ep, everyone), distinct) * expert_bytes,
            activation_bytes_each=routed * (2 * hidden + inner) * self.activation.bytes_per_element,
            weight_dtype=stored.name,
            shape={
                "tokens": everyone,
                "experts": spec.experts,
                "top_k": spec.top_k,
                "intermediate": spec.intermediate,
                "hidden": hidden,
                "ep": parallel.ep,
                "moe_tp": parallel.moe_tp,
                "matrices": len(matrices),
            },
        )

    def head_ops(self) -> Iterator[Op]:
        """The language-model head on the rows that are sampled (or on all)."""
        rows = self.tokens if self.conventions.logits == "all" else self.batch.sequences
        for tensor in outer_tensors(self.model, self.parallel, first=False):
            if isinstance(tensor, Matrix):
                yield self._gemm("", None, tensor, 1, rows)


def _distinct_text(spec: MoE, ep: int) -> str:
    return f"{spec.experts}·(1−(1−{spec.top_k}/{spec.experts})^T)" + (f"/{ep}" if ep > 1 else "")
