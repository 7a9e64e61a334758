"""What an engine adds to the kernels of a step: host work, launches, its own efficiency."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class EngineStep:
    """Step = fixed_s + per_layer_rank_s · layers · log2(ranks) + scale · kernels + per_sequence_s · sequences.

    decode_scale, prefill_scale: kernels inside this engine's step against the same kernels measured alone. The constants of an
    engine were fitted together and only mean something together. spread: relative half-widths (below, above) of the 80 %
    interval that the engine adds to that of the kernels. source: where they come from.
    """

    fixed_s: float
    per_layer_rank_s: float
    per_sequence_s: float
    decode_scale: float
    prefill_scale: float
    spread: tuple[float, float]
    source: str


_FIT = "one set per engine, fitted on the fit rows of the serving points in aiconfigurator-core 0.12"
ENGINES: dict[str, EngineStep] = {
    "vllm": EngineStep(0.2e-3, 1.1e-6, 0.0, 1.08, 1.08, (0.12, 0.2), _FIT),
    "sglang": EngineStep(0.16e-3, 9.2e-6, 33e-6, 0.87, 0.96, (0.12, 0.2), _FIT),
    "trtllm": EngineStep(0.1e-3, 5.8e-6, 7e-6, 0.94, 1.05, (0.12, 0.2), _FIT),
    "llamacpp": EngineStep(0.3e-3, 5e-6, 0.0, 1.0, 1.0, (0.25, 0.35), "assumed: no serving points of this engine were fitted"),
    "reference": EngineStep(0.0, 0.0, 0.0, 1.0, 1.0, (0.1, 0.1), "kernels alone"),
}


def engine_step(name: str) -> EngineStep:
    """The constants of an engine by name. Raises InputError with the known names."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
