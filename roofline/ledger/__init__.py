"""The one ledger: what a forward pass does, operation by operation."""

from roofline.ledger.build import AS_SHIPPED, DEFAULT, Conventions, Precision, build_ledger
from roofline.ledger.kv import kv_bytes_per_token, kv_bytes_stored
from roofline.ledger.ops import Ledger, Op
from roofline.ledger.parallel import SINGLE, Parallel
from roofline.ledger.tensors import active_parameters, extra_weights, layer_tensors, outer_tensors, parameters, stage_weights

__all__ = [
    "AS_SHIPPED",
    "DEFAULT",
    "SINGLE",
    "Conventions",
    "Ledger",
    "Op",
    "Parallel",
    "Precision",
    "active_parameters",
    "build_ledger",
    "extra_weights",
    "kv_bytes_per_token",
    "kv_bytes_stored",
    "layer_tensors",
    "outer_tensors",
    "parameters",
    "stage_weights",
]
