"""The six questions that a token mixer answers, as single-dispatch functions on its spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray

from roofline.batch import Batch
from roofline.dtypes import DType
from roofline.ledger.ops import Op
from roofline.ledger.weights import Matrix, Vector
from roofline.profiles.model import Mixer


@dataclass(frozen=True)
class CoreContext:
    """What the op builder of a mixer needs beside its spec.

    activation, kv: storage types. causal, naive: conventions of the ledger. weight: a function that prices a matrix in bytes.
    """

    layer: str
    count: int
    hidden: int
    tp: int
    dcp: int
    activation: DType
    kv: DType
    causal: bool
    naive: bool


@singledispatch
def matrices(spec: Mixer, hidden: int, tp: int) -> Iterator[Matrix]:
    """The projections of one rank of `tp`, whole matrices first to last."""
    raise NotImplementedError(type(spec))


@singledispatch
def vectors(spec: Mixer, hidden: int, tp: int) -> Iterator[Vector]:
    """The small tensors of one rank."""
    raise NotImplementedError(type(spec))


@singledispatch
def core_ops(spec: Mixer, batch: Batch, context: CoreContext) -> Iterator[Op]:
    """The operations between the projections: attention itself, or a state update."""
    raise NotImplementedError(type(spec))


@singledispatch
def kv_bytes_per_token(spec: Mixer, kv: DType, tp: int, dcp: int) -> float:
    """Cached bytes of one position of one layer on one rank; 0 for a mixer without a cache that grows."""
    raise NotImplementedError(type(spec))


@singledispatch
def kv_tokens_stored(spec: Mixer, context: NDArray[np.float64]) -> NDArray[np.float64]:
    """Positions that must stay cached at a context length (a window keeps only its last ones)."""
    return context


@singledispatch
def state_bytes(spec: Mixer, tp: int, drafts: int = 0) -> float:
    """Bytes of recurrent state of one sequence and layer on one rank; 0 for attention.

    drafts: speculative tokens of a step, for each of which a convolution keeps one more input.
    """
    return 0.0
