"""Whether servers of a stack were measured: a plan and a simulation price its steps with their engine's general set and say so.

Reads names alone, and imports none of what prices serving rows, since every plan asks.
"""

from __future__ import annotations

from roofline.dtypes import dtype
from roofline.phases import Setup
from roofline.profiles.calibration import shipped_names
from roofline.profiles.model import Model, MoE

_CONVERTED = ("-nvfp4", "-fp8-static", "-fp8")  # endings of checkpoints that serving tables call by the name before them
SEEN_WITH = {"deepseek-r1": "deepseek-v3"}  # one deployment under two names


def measured_note(setup: Setup, *, apart: bool = False) -> str:
    """A sentence if measured servers of this engine, model, device and precision have constants of their own, else "".

    apart: prompts on servers of their own.
    """
    word = _precision(setup.model, setup.precision.weights)
    base = next((setup.model.name.removesuffix(end) for end in _CONVERTED if setup.model.name.endswith(end)), setup.model.name)
    sets = shipped_names("serving")
    engine = f"{setup.engine} disaggregated" if apart else setup.engine
    known = {name for name in (setup.model.name, base) if (engine, f"{setup.hardware.id} {SEEN_WITH.get(name, name)}", word) in sets}
    if not known:
        return ""
    return (
        f"{setup.engine} was measured serving {min(known)} in {word} on {setup.hardware.id}: `roofline predict` prices a row of "
        "kind serving with constants fitted to those servers, where this takes one set for all models of the engine"
    )


def _precision(model: Model, given: str | None) -> str:
    """The word for the format of most weights in tables of serving points: bf16, fp8, fp4, int4."""
    routed = any(isinstance(layer.ffn, MoE) for layer in model.layers.values())
    kind = dtype(given) if given is not None else model.weight_dtype("experts" if routed else "mlp")
    if kind.bits == 4:
        return "int4" if kind.name.startswith("int4") else "fp4"
    return {8: "fp8", 16: "bf16"}.get(int(kind.bits), kind.name)
