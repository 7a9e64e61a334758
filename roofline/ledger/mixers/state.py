"""Mixers that keep a state of fixed size per sequence: what an update costs and moves."""

from __future__ import annotations

import numpy as np

from roofline.batch import Array, Batch
from roofline.ledger.mixers.base import CoreContext
from roofline.ledger.ops import Op


def state_op(context: CoreContext, batch: Batch, *, name: str, formula: str, flops_per_token: float, state: float, width: float) -> Op:
    """One pass over the new tokens: the state is read once per sequence that has a past and written once per sequence.

    flops_per_token: of the recurrent form (a chunked prefill kernel executes more); state: bytes per sequence; width: elements
    read and written per token.
    """
    active = batch.new > 0
    reads: Array = np.asarray(np.where(active & (batch.past > 0), batch.count, 0.0).sum(axis=-1))
    writes: Array = np.asarray(np.where(active, batch.count, 0.0).sum(axis=-1))
    tokens = batch.tokens
    return Op(
        name=name,
        kind="state",
        layer=context.layer,
        count=context.count,
        compute=context.activation.compute,
        formula=formula,
        m=tokens,
        n=reads,
        flops_each=tokens * flops_per_token,
        kv_read_bytes_each=reads * state,
        kv_write_bytes_each=writes * state,
        activation_bytes_each=tokens * width * context.activation.bytes_per_element,
        batch=batch,
    )


CONV_STATE_BYTES = 2  # the convolution keeps its last inputs in the activations' 16 bits
