"""What a sequence keeps in memory: KV stored against KV read, and recurrent state."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import ArrayLike

from roofline.batch import Array
from roofline.ledger import mixers
from roofline.ledger.build import AS_SHIPPED, Precision
from roofline.ledger.parallel import SINGLE, Parallel
from roofline.profiles.model import Model


def kv_bytes_per_token(model: Model, *, parallel: Parallel = SINGLE, precision: Precision = AS_SHIPPED, stage: int = 0) -> float:
    """KV bytes that one more cached token takes on one rank while no window is full: all layers of the stage charged.

    Source: 2 · kv_heads · head_dim · bytes per layer (MLA: latent + rope, on every tp rank).
    """
    kv = precision.kv_cache_dtype(model)
    return sum(
        count * mixers.kv_bytes_per_token(mixer, kv, parallel.tp, parallel.dcp)
        for name, count in Counter(parallel.stages(model)[stage]).items()
        if (mixer := model.layers[name].mixer) is not None
    )


def kv_bytes_stored(
    model: Model,
    context: ArrayLike,
    *,
    parallel: Parallel = SINGLE,
    precision: Precision = AS_SHIPPED,
    stage: int = 0,
    windows: bool = True,
) -> Array:
    """KV bytes that a sequence with `context` cached tokens keeps on one rank, its recurrent state included.

    windows: a sliding or chunked layer keeps only the positions that can still be seen (False: an engine that charges all).
    """
    length = np.asarray(context, dtype=np.float64)
    kv = precision.kv_cache_dtype(model)
    total = np.zeros_like(length)
    for name, count in Counter(parallel.stages(model)[stage]).items():
        mixer = model.layers[name].mixer
        if mixer is None:
            continue
        positions = mixers.kv_tokens_stored(mixer, length) if windows else length
        total = total + count * positions * mixers.kv_bytes_per_token(mixer, kv, parallel.tp, parallel.dcp)
        total = total + count * mixers.state_bytes(mixer, parallel.tp)
    return total
