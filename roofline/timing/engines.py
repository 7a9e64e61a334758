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
    launch_s: CPU time of launching one kernel outside a captured graph, as this product counts kernels (rotary embedding and
    cache write inside attention); 0: the engine captures everything, or launching never matters. prompts_captured: passes with
    prompts replay graphs too, up to the largest size. sampling_bytes: memory traffic of the sampler per logit; 0: not on the device.
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
    launch_s: float = 0.0
    prompts_captured: bool = False
    sampling_bytes: float = 0.0


# One kernel launched from Python, 31 to 42 µs in five places: a decode step of Llama 3 8B (257 kernels) without graphs takes 8.2 and
# 9.3 ms in SGLang (its pull request 1401), 8.4 ms in PyTorch on an H100 (cloudai.pt, citing Spheron 2026); passes with prompts do
# not go below 0.25 to 0.34 ms a layer of 8 kernels on the fit rows of the serving points (calibration/serving.yaml).
_LAUNCH = 32e-6
LAUNCH_SPREAD = (0.25, 0.3)  # half-widths below and above of the 80 % interval of that
# Logits to FP32 (2 + 4 bytes), softmax (4 + 4), division by noise and maximum (4 + 4 + 4): temperature alone, no top-k or top-p.
_SAMPLING = 26.0

# CPU time of a step: the period that small models on fast devices cannot go below, 2 to 3 ms in vLLM V1 and SGLang.
_HOST = (2.5e-3, 1e-5)
_FIT = "one set per engine, fitted on the fit rows of the serving points in aiconfigurator-core 0.12"
ENGINES: dict[str, EngineStep] = {
    "vllm": EngineStep(0.2e-3, 1.1e-6, 0.0, 1.08, 1.08, (0.12, 0.2), _FIT, *_HOST, _LAUNCH, True, _SAMPLING),
    "sglang": EngineStep(0.16e-3, 9.2e-6, 33e-6, 0.87, 0.96, (0.12, 0.2), _FIT, *_HOST, _LAUNCH, False, _SAMPLING),
    "trtllm": EngineStep(0.1e-3, 5.8e-6, 7e-6, 0.94, 1.05, (0.12, 0.2), _FIT, *_HOST, _LAUNCH, False, _SAMPLING),
    "llamacpp": EngineStep(0.3e-3, 5e-6, 0.0, 1.0, 1.0, (0.25, 0.35), "assumed: no serving points of this engine were fitted"),
    "reference": EngineStep(0.0, 0.0, 0.0, 1.0, 1.0, (0.1, 0.1), "kernels alone"),
}


def engine_step(name: str) -> EngineStep:
    """The constants of an engine by name. Raises InputError with the known names."""
    if name not in ENGINES:
        raise InputError(f"unknown engine {name!r}; known: {', '.join(ENGINES)}")
    return ENGINES[name]
