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
    host_s, host_per_sequence_s: CPU time of scheduling a step and taking in its outputs, which an asynchronous engine hides behind
    the device: a step then takes the longer of the two. The fitted points ran longer on the device, so it is not in fixed_s.
    """

    fixed_s: float
    per_layer_rank_s: float
    per_sequence_s: float
    decode_scale: float
    prefill_scale: float
    spread: tuple[float, float]
    source: str
    host_s: float = 0.0
    host_per_sequence_s: float = 0.0


# CPU time of a step: the period that small models on fast devices cannot go below, 2 to 3 ms in vLLM V1 and SGLang.
_HOST = (2.5e-3, 1e-5)
_FIT = "one set per engine, fitted on the fit rows of the serving points in aiconfigurator-core 0.12"
ENGINES: dict[str, EngineStep] = {
    "vllm": EngineStep(0.2e-3, 1.1e-6, 0.0, 1.08, 1.08, (0.12, 0.2), _FIT, *_HOST),
    "sglang": EngineStep(0.16e-3, 9.2e-6, 33e-6, 0.87, 0.96, (0.12, 0.2), _FIT, *_HOST),
    "trtllm": EngineStep(0.1e-3, 5.8e-6, 7e-6, 0.94, 1.05, (0.12, 0.2), _FIT, *_HOST),
    "llamacpp": EngineStep(0.3e-3, 5e-6, 0.0, 1.0, 1.0, (0.25, 0.35), "assumed: no serving points of this engine were fitted"),
    "reference": EngineStep(0.0, 0.0, 0.0, 1.0, 1.0, (0.1, 0.1), "kernels alone"),
}


def engine_step(name: str) -> EngineStep:
    """The constants of an engine by name. Raises InputError with the known names."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
