"""What an engine adds to the kernels of a step: host work, launches, its own efficiency."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class EngineStep:
    """Seconds beside the kernels of a step: fixed_s + per_layer_rank_s · layers · log2(ranks) + per_sequence_s · sequences.

    source: where the constants come from.
    """

    fixed_s: float
    per_layer_rank_s: float
    per_sequence_s: float
    source: str


_SEEN = "median of measured minus kernel time at up to 8 streams, fit rows of the serving points in aiconfigurator-core 0.12"
ENGINES: dict[str, EngineStep] = {
    "vllm": EngineStep(1.4e-3, 1e-6, 0.0, _SEEN),
    "sglang": EngineStep(1.0e-3, 9e-6, 30e-6, _SEEN),
    "trtllm": EngineStep(0.6e-3, 6e-6, 7e-6, _SEEN),
    "llamacpp": EngineStep(0.3e-3, 5e-6, 0.0, "assumed: no serving points of this engine were fitted"),
    "reference": EngineStep(0.0, 0.0, 0.0, "kernels alone"),
}


def engine_step(name: str) -> EngineStep:
    """The constants of an engine by name. Raises InputError with the known names."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
