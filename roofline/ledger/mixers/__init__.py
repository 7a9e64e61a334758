"""Token mixers: what each kind costs. A new kind is one file that registers these six functions."""

from roofline.ledger.mixers import attention, compressed, delta, mamba, mla
from roofline.ledger.mixers.base import CoreContext, core_ops, kv_bytes_per_token, kv_tokens_stored, matrices, state_bytes, vectors

__all__ = [
    "CoreContext",
    "attention",
    "compressed",
    "core_ops",
    "delta",
    "kv_bytes_per_token",
    "kv_tokens_stored",
    "mamba",
    "matrices",
    "mla",
    "state_bytes",
    "vectors",
]
