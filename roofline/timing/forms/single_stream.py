"""Batch-1 generation of local engines: weights once per token, a fixed time per layer, and prefill at a share of peak.

A constant share of bandwidth fails here because the fixed time per layer does not shrink with fewer bits or more bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.timing.forms.base import Array

ENGINES = ("llama.cpp", "mlx", "exllama", "mlc", "vllm", "compiled", "eager", "cpu")
FABRIC = 0.2  # of a joining over PCIe: two all-reduces of 5 µs where modules share NVLink, per layer, against about 50
_CEILING = 0.95  # no engine streams more than this share of a datasheet's bandwidth


@dataclass(frozen=True)
class Streams:
    """Rows of single-stream generation, arrays of one length.

    engine: index into ENGINES. weight_bytes: read per token and device (active experts only). kv_bytes: cache read per token
    and device. layers; bits per weight; devices that share each token (tensor parallel; 1 when they take turns); fabric: what
    joining their results costs against PCIe.
    active_parameters; prompt tokens; bandwidth in B/s and dense 16-bit peak in FLOP/s of one device.
    """

    engine: NDArray[np.int64]
    weight_bytes: Array
    kv_bytes: Array
    layers: Array
    bits: Array
    devices: Array
    fabric: Array
    active_parameters: Array
    prompt: Array
    bandwidth: Array
    peak: Array


def engine_class(engine: str, device: str = "") -> str:
    """The class in ENGINES of an engine's name as tables spell it; "eager" for Python loops without a compiled graph."""
    text = engine.lower()
    if "cpu" in text or "cpu" in device.lower():
        return "cpu"
    for words, name in (
        (("ctransformers", "onnx", "deepspeed", "autogptq", "autoawq", "optimum"), "eager"),
        (("llama.cpp", "llamacpp", "llama-bench", "ollama"), "llama.cpp"),
        (("mlx",), "mlx"),
        (("gpt-fast", "torchao", "torch.compile"), "compiled"),
        (("mlc",), "mlc"),
        (("exllama",), "exllama"),
        (("vllm", "sglang", "trtllm", "tensorrt"), "vllm"),
    ):
        if any(word in text for word in words):
            return name
    return "eager"


def _bits_class(bits: Array) -> NDArray[np.int64]:
    return np.where(bits >= 14, 0, np.where(bits >= 7, 1, 2)).astype(np.int64)


def decode_seconds(rows: Streams, c: Mapping[str, Array]) -> Array:
    """Time of one token, s. c: em (3,) share of bandwidth for 16, 8 and fewer bits; per engine (8,) eta (factor on it),
    layer_us, and tp_us: what a layer costs where two devices share a token over PCIe (llama.cpp's row split: most of a step)."""
    share = np.minimum(c["em"][_bits_class(rows.bits)] * c["eta"][rows.engine], _CEILING)
    per_layer = c["layer_us"][rows.engine] + c["tp_us"][rows.engine] * rows.fabric * np.sqrt(np.log2(rows.devices))
    return np.asarray((rows.weight_bytes + rows.kv_bytes) / (share * rows.bandwidth) + rows.layers * per_layer * 1e-6)


def decode_bound(rows: Streams) -> Array:
    """Hard bound of one token, s: what it reads / bandwidth."""
    return np.asarray(rows.weight_bytes / rows.bandwidth)


def prefill_seconds(rows: Streams, c: Mapping[str, Array]) -> Array:
    """Time of the prompt, s: 2 FLOP per active parameter and token at the share `mfu` (per engine) of the 16-bit peak, plus layers."""
    return np.asarray(prefill_bound(rows) / c["mfu"][rows.engine] + rows.layers * c["layer_us"][rows.engine] * 1e-6)


def prefill_bound(rows: Streams) -> Array:
    """2 FLOP per active parameter and token / dense 16-bit peak, s. 8-bit units are not counted: local engines dequantise."""
    return np.asarray(2.0 * rows.active_parameters * rows.prompt / (rows.peak * rows.devices))
