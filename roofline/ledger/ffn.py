"""Feed-forward parts: dense and mixture of experts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import singledispatch

import numpy as np

from roofline.batch import Array
from roofline.ledger.parallel import Parallel
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import MLP, FeedForward, MoE


@singledispatch
def matrices(spec: FeedForward, hidden: int, parallel: Parallel) -> Iterator[Matrix]:
    """The matrices of one rank; routed experts as copies."""
    raise NotImplementedError(type(spec))


@singledispatch
def vectors(spec: FeedForward, hidden: int, parallel: Parallel) -> Iterator[Vector]:
    """The small tensors of one rank."""
    return iter(())


def _gated(role: str, prefix: str, hidden: int, width: int, gated: bool, bias: bool, copies: int = 1) -> Iterator[Matrix]:
    inner, outer = (width, hidden) if bias else (0, 0)
    if gated:
        yield Matrix(f"{prefix}gate_proj", role, width, hidden, copies, inner, input=f"{prefix}ffn")
    yield Matrix(f"{prefix}up_proj", role, width, hidden, copies, inner, input=f"{prefix}ffn")
    yield Matrix(f"{prefix}down_proj", role, hidden, width, copies, outer)


@matrices.register
def _mlp_matrices(spec: MLP, hidden: int, parallel: Parallel) -> Iterator[Matrix]:
    yield from _gated("mlp", "", hidden, spec.intermediate // parallel.tp, spec.gated, spec.bias)


@matrices.register
def _moe_matrices(spec: MoE, hidden: int, parallel: Parallel) -> Iterator[Matrix]:
    yield Matrix("router", "router", spec.experts, hidden, bias=spec.experts if spec.router_linear_bias else 0)
    copies = spec.experts // parallel.ep
    if spec.latent:  # shared work of all tokens: every rank projects for the experts that it holds
        yield Matrix("latent_down", "shared_experts", spec.latent, hidden)
        yield Matrix("latent_up", "shared_experts", hidden, spec.latent)
    yield from _gated(
        "experts", "experts.", spec.latent or hidden, spec.intermediate // parallel.moe_tp, spec.gated, spec.expert_bias, copies
    )
    if spec.shared_intermediate:
        yield from _gated("shared_experts", "shared_experts.", hidden, spec.shared_intermediate // parallel.tp, spec.gated, False)
    if spec.shared_gate:
        yield Matrix("shared_expert_gate", "router", 1, hidden)


@vectors.register
def _moe_vectors(spec: MoE, hidden: int, parallel: Parallel) -> Iterator[Vector]:
    if spec.router_bias:
        yield Vector("e_score_correction_bias", "router_bias", spec.experts)


def distinct_experts(experts: int, top_k: int, tokens: Array) -> Array:
    """Expected number of different experts that `tokens` tokens pick under uniform routing: E·(1 − (1 − k/E)^T).

    Source: each token leaves a given expert out with probability 1 − k/E.
    """
    if top_k >= experts:
        return np.asarray(np.minimum(tokens, 1.0) * experts)
    return np.asarray(-experts * np.expm1(tokens * np.log1p(-top_k / experts)))


def fewest_experts(top_k: int, ep: int, tokens: Array) -> Array:
    """The fewest experts that the busiest of `ep` ranks must read: k in all, when every token picks the same ones."""
    return np.asarray(np.ceil(top_k / ep) * (tokens > 0))
