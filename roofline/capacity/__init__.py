"""What fits on a device: footprint, engine budgets, blocks and tokens."""

from roofline.capacity.activations import ActivationPeak, activation_peak
from roofline.capacity.additions import Addition, draft_layers, draft_model, multi_token_prediction
from roofline.capacity.blocks import LayerKind, Pool, Reservation, Share, contiguous, layer_kinds, paged, token_budget
from roofline.capacity.engines import ENGINES, Engine, engine_rules
from roofline.capacity.hybrid import delta_net_state_bytes, grouped_shares, hybrid_pool
from roofline.capacity.limits import Gain, first_limit, knob_gains
from roofline.capacity.memory import Known, MemoryPlan
from roofline.capacity.plan import memory_plan
from roofline.capacity.ranges import ByteRange
from roofline.capacity.settings import Settings, sglang_fraction

__all__ = [
    "ENGINES",
    "ActivationPeak",
    "Addition",
    "ByteRange",
    "Engine",
    "Gain",
    "Known",
    "LayerKind",
    "MemoryPlan",
    "Pool",
    "Reservation",
    "Settings",
    "Share",
    "activation_peak",
    "contiguous",
    "delta_net_state_bytes",
    "draft_layers",
    "draft_model",
    "engine_rules",
    "first_limit",
    "grouped_shares",
    "hybrid_pool",
    "knob_gains",
    "layer_kinds",
    "memory_plan",
    "multi_token_prediction",
    "paged",
    "sglang_fraction",
    "token_budget",
]
