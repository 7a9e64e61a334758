"""A row of a serving table in the project's own words: the checkpoint that was served, its layout, its KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from roofline import units
from roofline.dtypes import dtype
from roofline.errors import InputError, UnknownNameError
from roofline.ledger import Parallel, Precision
from roofline.profiles.catalog import load_model
from roofline.profiles.model import MLA, GatedDelta, Mamba, Model, MoE

_ENGINES = {"tensorrt-llm": "trtllm", "tensorrt_llm": "trtllm", "trt-llm": "trtllm"}
_SIBLINGS = {"nvfp4": ("-nvfp4",), "fp8": ("-fp8-static", "-fp8"), "fp8_block": ("-fp8",)}
_ONE_DEPLOYMENT = {"deepseek-r1": "deepseek-v3.1", "deepseek-v3": "deepseek-v3.1"}  # their NVFP4 recipes format the same tensors


def engine_name(software: str) -> str:
    """The engine as the project spells it; "tensorrt-llm" is "trtllm"."""
    lower = software.strip().lower()
    return _ENGINES.get(lower, lower)


@lru_cache(maxsize=512)
def as_served(name: str, gemm: str, moe: str, fp4_unit: bool = False) -> Model:
    """The model with weights as its published recipe for `gemm` has them; without a recipe all matrices take the format.

    gemm, moe: formats of linear layers and experts, "" for the checkpoint as it is. A checkpoint whose experts are 4-bit already
    and that has no published recipe is served as it is: attention stays alone whatever a table says. fp4_unit: of the device: MXFP4
    experts then meet activations in 8 bits (the engines' recipes for gpt-oss on Blackwell). Raises UnknownNameError for a name
    nobody knows.
    """
    model = load_model(name)
    if fp4_unit and model.weights.get("default") == "mxfp4":
        return model.model_copy(update={"weights": model.weights | {"experts": "w4a8_mxfp4"}, "checkpoint_bytes": {}})
    if not gemm:
        return model
    base = _ONE_DEPLOYMENT.get(model.name, model.name) if gemm == "nvfp4" else model.name
    for ending in _SIBLINGS.get(gemm, ()):
        try:
            return load_model(base + ending)
        except UnknownNameError:
            continue
    if _bits(model) == _size(gemm):
        return model
    layers = {kind: layer.model_copy(update={"weights": {}}) for kind, layer in model.layers.items()}
    return model.model_copy(update={"weights": {"default": gemm, "experts": moe or gemm}, "layers": layers, "checkpoint_bytes": {}})


def _bits(model: Model) -> float:
    role = "experts" if any(isinstance(layer.ffn, MoE) for layer in model.layers.values()) else "mlp"
    return model.weight_dtype(role).bits


def _size(name: str) -> float:
    return dtype(name).bits


def precision_of(row: Mapping[Any, Any]) -> Precision:
    """The KV cache as stated; else fp8 where activations are quantised too, which SGLang alone does not conclude."""
    gemm = word(row, "gemm_dtype")
    quantised = gemm not in ("", "bf16", "w4a16", "w8a16") and engine_name(word(row, "software")) != "sglang"
    return Precision(kv=word(row, "kv_dtype") or ("fp8" if quantised else None))


def family(model: Model) -> str:
    """mla, hybrid (recurrent layers), moe or dense: the classes of models that engines run differently."""
    mixers = [layer.mixer for layer in model.layers.values()]
    if any(isinstance(mixer, MLA) for mixer in mixers):
        return "mla"
    if any(isinstance(mixer, GatedDelta | Mamba) for mixer in mixers):
        return "hybrid"
    return "moe" if any(isinstance(layer.ffn, MoE) for layer in model.layers.values()) else "dense"


def layout(row: Mapping[Any, Any], side: str = "") -> Parallel:
    """tp, dp and ep of a row; side "prefill" or "decode" reads the columns of that pool. Raises InputError for a number missing."""
    if side:
        return Parallel(
            tp=count(row, f"{side}_tp_size"),
            dp=count(row, f"{side}_attention_dp_size"),
            ep=count(row, f"{side}_moe_ep_size"),
            pp=count(row, f"{side}_pp_size"),
        )
    dp = count(row, "attention_dp")
    # One point measured with experts whole and with experts split takes the same time: the busiest rank sets the pace.
    return Parallel(tp=count(row, "tp"), dp=dp, ep=count(row, "ep") if dp > 1 else 1)


def count(row: Mapping[Any, Any], name: str, default: int | None = 1) -> int:
    """A whole number ≥ 1 of a row; `default` where it is blank. Raises InputError that names the column."""
    value = row.get(name)
    if value is None or value != value or value == "":
        if default is None:
            raise InputError(f"{name}: is empty; give a whole number ≥ 1")
        return default
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not (1 <= number < 1e15 and number == int(number)):
        raise InputError(f"{name}: must be a whole number ≥ 1, got {value!r}")
    return int(number)


def quantity(row: Mapping[Any, Any], name: str, default: float) -> float:
    """A number ≥ 0 and at most 10⁹ of a row, `default` where it is blank. Raises InputError that names the column."""
    value = row.get(name)
    if value is None or value != value or value == "":
        return default
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found <= units.FAR:
        raise InputError(f"{name}: must be a number from 0 to {units.FAR:g}, got {value!r}")
    return found


def word(row: Mapping[Any, Any], name: str) -> str:
    """A text of a row, "" where it is blank."""
    value = row.get(name)
    return value.strip() if isinstance(value, str) else ""
