"""The times that figures show, from one place, and the sentence that says what they rest on."""

from __future__ import annotations

from roofline.ledger import Op
from roofline.ledger.ops import Array
from roofline.profiles.hardware import Hardware
from roofline.timing.calibrated import op_times
from roofline.timing.generic import DEFAULTS
from roofline.timing.step import StepPrice


def op_seconds(op: Op, device: Hardware) -> Array:
    """Expected time of one run of an op, as `roofline ops` gives it."""
    return op_times(op, device, "vllm").expected_s


def launch_seconds(op: Op) -> float:
    """The part of an op's expected time that starts its kernel."""
    return DEFAULTS.launch_attention if op.kind.endswith("attention") else DEFAULTS.launch


def basis(price: StepPrice) -> str:
    """What a price says of its expected times: constants of this device, or the same ones for all."""
    return next((note for note in price.assumptions if note.startswith("kernel times")), "")
