"""Delta nets: gated delta net (Qwen3-Next, Qwen3.5) and Kimi delta attention."""

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
from roofline.profiles.model import KDA, GatedDelta

UPDATE_FLOPS = 7  # per state element and token: decay 1; read by key, rank-one write and read by query 2 each


def _sizes(spec: GatedDelta, tp: int) -> tuple[int, int, int]:
    """Value heads, value elements and convolution channels of one rank."""
    heads, key_heads = spec.heads // tp, max(1, spec.key_heads // tp)
    value = heads * spec.value_dim
    return heads, value, 2 * key_heads * spec.key_dim + value


@matrices.register
def _delta_matrices(spec: GatedDelta, hidden: int, tp: int) -> Iterator[Matrix]:
    heads, value, channels = _sizes(spec, tp)
    yield Matrix("in_proj_qkv", "mixer", channels, hidden, input="delta")
    yield Matrix("in_proj_z", "mixer", value, hidden, input="delta")
    yield Matrix("in_proj_b", "mixer", heads, hidden, input="delta")
    yield Matrix("in_proj_a", "mixer", heads, hidden, input="delta")
    yield Matrix("out_proj", "mixer", hidden, value)


@vectors.register
def _delta_vectors(spec: GatedDelta, hidden: int, tp: int) -> Iterator[Vector]:
    heads, _, channels = _sizes(spec, tp)
    yield Vector("conv1d", "norm", channels * spec.conv)
    yield Vector("A_log", "norm", heads)
    yield Vector("dt_bias", "norm", heads)
    yield Vector("norm", "norm", spec.value_dim)


@core_ops.register
def _delta_ops(spec: GatedDelta, batch: Batch, context: CoreContext) -> Iterator[Op]:
    heads, value, channels = _sizes(spec, context.tp)
    yield state_op(
        context,
        batch,
        name="delta_net",
        formula=f"T·({UPDATE_FLOPS}·{heads}·{spec.key_dim}·{spec.value_dim} + 2·{spec.conv}·{channels})",
        flops_per_token=UPDATE_FLOPS * heads * spec.key_dim * spec.value_dim + 2 * spec.conv * channels,
        state=state_bytes(spec, context.tp),
        width=channels + 2 * value,
    )


@state_bytes.register
def _delta_state(spec: GatedDelta, tp: int, drafts: int = 0) -> float:
    """Source: the state of vLLM's hybrid allocator: heads·key·value elements and conv − 1 inputs of the convolution."""
    heads, _, channels = _sizes(spec, tp)
    return heads * spec.key_dim * spec.value_dim * spec.state_bits / 8 + (spec.conv - 1 + drafts) * channels * CONV_STATE_BYTES


@matrices.register
def _kda_matrices(spec: KDA, hidden: int, tp: int) -> Iterator[Matrix]:
    heads = spec.heads // tp
    inner = heads * spec.head_dim
    for name in ("q_proj", "k_proj", "v_proj"):
        yield Matrix(name, "mixer", inner, hidden, input="kda")
    yield Matrix("b_proj", "mixer", heads, hidden, input="kda")
    for gate in ("f", "g"):
        yield Matrix(f"{gate}_a_proj", "mixer", spec.head_dim, hidden, input="kda")
        yield Matrix(f"{gate}_b_proj", "mixer", inner, spec.head_dim)
    yield Matrix("o_proj", "mixer", hidden, inner)


@vectors.register
def _kda_vectors(spec: KDA, hidden: int, tp: int) -> Iterator[Vector]:
    inner = spec.heads // tp * spec.head_dim
    yield Vector("conv1d", "norm", 3 * inner * spec.conv)
    yield Vector("A_log", "norm", spec.heads // tp)
    yield Vector("dt_bias", "norm", inner)
    yield Vector("o_norm", "norm", spec.head_dim)


@core_ops.register
def _kda_ops(spec: KDA, batch: Batch, context: CoreContext) -> Iterator[Op]:
    heads = spec.heads // context.tp
    inner = heads * spec.head_dim
    yield state_op(
        context,
        batch,
        name="delta_net",
        formula=f"T·({UPDATE_FLOPS}·{heads}·{spec.head_dim}² + 2·{spec.conv}·{3 * inner})",
        flops_per_token=UPDATE_FLOPS * inner * spec.head_dim + 2 * spec.conv * 3 * inner,
        state=state_bytes(spec, context.tp),
        width=6 * inner,  # q, k, v, decay, gate, output
    )


@state_bytes.register
def _kda_state(spec: KDA, tp: int, drafts: int = 0) -> float:
    inner = spec.heads // tp * spec.head_dim
    return inner * spec.head_dim * spec.state_bits / 8 + (spec.conv - 1 + drafts) * 3 * inner * CONV_STATE_BYTES


@kv_bytes_per_token.register(GatedDelta)
@kv_bytes_per_token.register(KDA)
def _no_kv(spec: GatedDelta | KDA, kv: DType, tp: int, dcp: int) -> float:
    return 0.0


@kv_tokens_stored.register(GatedDelta)
@kv_tokens_stored.register(KDA)
def _no_positions(spec: GatedDelta | KDA, context: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.zeros_like(context)
