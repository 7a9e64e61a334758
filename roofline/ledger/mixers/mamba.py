"""State-space mixers: Mamba-2 (Nemotron-H, Bamba) and Mamba-1 (Jamba)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.dtypes import DType
from roofline.ledger.mixers.base import CoreContext, core_ops, kv_bytes_per_token, kv_tokens_stored, matrices, state_bytes, vectors
from roofline.ledger.mixers.state import CONV_STATE_BYTES, state_op
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Mamba, Mamba2

UPDATE_FLOPS = 5  # per state element and token: decay 1, input 2, readout 2


def _sizes(spec: Mamba2, tp: int) -> tuple[int, int, int]:
    """Heads, inner elements and convolution channels (inner, B, C) of one rank; groups replicate when tp exceeds them."""
    heads = spec.heads // tp
    inner = heads * spec.head_dim
    return heads, inner, inner + 2 * max(1, spec.groups // tp) * spec.state_size


@matrices.register
def _mamba2_matrices(spec: Mamba2, hidden: int, tp: int) -> Iterator[Matrix]:
    heads, inner, channels = _sizes(spec, tp)
    width = inner + channels + heads
    yield Matrix("in_proj", "mixer", width, hidden, bias=width if spec.bias else 0)
    yield Matrix("out_proj", "mixer", hidden, inner, bias=hidden if spec.bias else 0)


@vectors.register
def _mamba2_vectors(spec: Mamba2, hidden: int, tp: int) -> Iterator[Vector]:
    heads, inner, channels = _sizes(spec, tp)
    yield Vector("conv1d", "norm", channels * (spec.conv + spec.conv_bias))
    for name in ("A_log", "D", "dt_bias"):
        yield Vector(name, "norm", heads)
    if spec.gated_norm:
        yield Vector("norm", "norm", inner)


@core_ops.register
def _mamba2_ops(spec: Mamba2, batch: Batch, context: CoreContext) -> Iterator[Op]:
    heads, inner, channels = _sizes(spec, context.tp)
    yield state_op(
        context,
        batch,
        name="ssm",
        formula=f"T·({UPDATE_FLOPS}·{heads}·{spec.head_dim}·{spec.state_size} + 2·{spec.conv}·{channels})",
        flops_per_token=UPDATE_FLOPS * inner * spec.state_size + 2 * spec.conv * channels,
        state=state_bytes(spec, context.tp),
        width=channels + 2 * inner + heads,
    )


@state_bytes.register
def _mamba2_state(spec: Mamba2, tp: int, drafts: int = 0) -> float:
    _, inner, channels = _sizes(spec, tp)
    return inner * spec.state_size * spec.state_bits / 8 + (spec.conv - 1 + drafts) * channels * CONV_STATE_BYTES


@matrices.register
def _mamba_matrices(spec: Mamba, hidden: int, tp: int) -> Iterator[Matrix]:
    inner = spec.heads // tp
    yield Matrix("in_proj", "mixer", 2 * inner, hidden, bias=2 * inner if spec.bias else 0)
    yield Matrix("x_proj", "mixer", spec.dt_rank + 2 * spec.state_size, inner)
    yield Matrix("dt_proj", "mixer", inner, spec.dt_rank, bias=inner)
    yield Matrix("out_proj", "mixer", hidden, inner, bias=hidden if spec.bias else 0)


@vectors.register
def _mamba_vectors(spec: Mamba, hidden: int, tp: int) -> Iterator[Vector]:
    inner = spec.heads // tp
    yield Vector("conv1d", "norm", inner * (spec.conv + spec.conv_bias))
    yield Vector("A_log", "norm", inner * spec.state_size)
    yield Vector("D", "norm", inner)
    if spec.inner_norms:
        yield Vector("inner_norms", "norm", spec.dt_rank + 2 * spec.state_size)


@core_ops.register
def _mamba_ops(spec: Mamba, batch: Batch, context: CoreContext) -> Iterator[Op]:
    inner = spec.heads // context.tp
    yield state_op(
        context,
        batch,
        name="ssm",
        formula=f"T·({UPDATE_FLOPS}·{inner}·{spec.state_size} + 2·{spec.conv}·{inner})",
        flops_per_token=UPDATE_FLOPS * inner * spec.state_size + 2 * spec.conv * inner,
        state=state_bytes(spec, context.tp),
        width=4 * inner + 2 * spec.state_size,  # x, step, gate, output; B and C
    )


@state_bytes.register
def _mamba_state(spec: Mamba, tp: int, drafts: int = 0) -> float:
    inner = spec.heads // tp
    return inner * spec.state_size * spec.state_bits / 8 + (spec.conv - 1 + drafts) * inner * CONV_STATE_BYTES


@kv_bytes_per_token.register(Mamba)
@kv_bytes_per_token.register(Mamba2)
def _no_kv(spec: Mamba | Mamba2, kv: DType, tp: int, dcp: int) -> float:
    return 0.0


@kv_tokens_stored.register(Mamba)
@kv_tokens_stored.register(Mamba2)
def _no_positions(spec: Mamba | Mamba2, context: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.zeros_like(context)
