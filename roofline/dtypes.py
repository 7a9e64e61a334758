"""Number formats: how many bytes a weight, a KV entry or an activation takes, scales included, and what unit computes it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from roofline.errors import InputError


@dataclass(frozen=True)
class DType:
    """One storage format.

    bits: per element, without scales. group: elements along K that share one scale (0: none). block: rows and columns that
    share one scale (fp8 block quantisation). scale_bits: bits of scale and zero point per group or block.
    compute: the datasheet peak that multiplies it when weights and activations both have it ("bf16", "fp8", "int8", "fp4");
    a weight-only format has weight_only = True and computes in the activation's type.
    """

    name: str
    bits: float
    compute: str
    group: int = 0
    block: tuple[int, int] | None = None
    scale_bits: int = 0
    weight_only: bool = False

    @property
    def bits_per_element(self) -> float:
        """Bits per element with the scales of a large matrix spread over it (int4 group 128: 4.25)."""
        if self.block:
            return self.bits + self.scale_bits / (self.block[0] * self.block[1])
        return self.bits + (self.scale_bits / self.group if self.group else 0.0)

    @property
    def bytes_per_element(self) -> float:
        """As bits_per_element, in bytes."""
        return self.bits_per_element / 8

    def matrix_bytes(self, n: int, k: int) -> float:
        """Bytes of an (n, k) weight matrix, K the reduced axis, scales counted whole (partial groups and blocks round up).

        A per-tensor scale (a few bytes) is not counted.
        """
        elements = n * k * self.bits / 8
        if self.block:
            return elements + math.ceil(n / self.block[0]) * math.ceil(k / self.block[1]) * self.scale_bits / 8
        if self.group:
            return elements + n * math.ceil(k / self.group) * self.scale_bits / 8
        return elements


def _types() -> dict[str, DType]:
    known = [
        DType("fp64", 64, "fp64"),
        DType("fp32", 32, "fp32"),
        DType("tf32", 32, "tf32"),
        DType("bf16", 16, "bf16"),
        DType("fp16", 16, "fp16"),
        DType("fp8", 8, "fp8"),  # one scale per tensor (or per channel), not counted
        DType("fp8_block", 8, "fp8", block=(128, 128), scale_bits=32),
        DType("mxfp8", 8, "fp8", group=32, scale_bits=8),
        DType("int8", 8, "int8"),
        DType("nvfp4", 4, "fp4", group=16, scale_bits=8),
        DType("fp8_block_e8m0", 8, "fp8", block=(128, 128), scale_bits=8),  # DeepSeek-V4: power-of-two scales
        DType("w4a16_nvfp4", 4, "bf16", group=16, scale_bits=8, weight_only=True),
        DType("mxfp4", 4, "fp4", group=32, scale_bits=8, weight_only=True),
        DType("w4a8_mxfp4", 4, "fp8", group=32, scale_bits=8),  # activations are quantised to fp8, weights widened to it
        DType("w4afp8", 4, "fp8", group=128, scale_bits=16),
        DType("w8a16", 8, "bf16", weight_only=True),
        DType("w8a16_fp8", 8, "bf16", weight_only=True),
        DType("int4", 4, "bf16", group=128, scale_bits=32, weight_only=True),  # 16-bit scale + 16-bit zero point
        DType("int4_g32", 4, "bf16", group=32, scale_bits=16, weight_only=True),
        DType("int4_g64", 4, "bf16", group=64, scale_bits=32, weight_only=True),
        DType("nf4", 4, "bf16", group=64, scale_bits=8, weight_only=True),  # bitsandbytes, double-quantised scales
        DType("int3", 3, "bf16", group=128, scale_bits=32, weight_only=True),
        DType("int2", 2, "bf16", group=128, scale_bits=32, weight_only=True),
    ]
    return {d.name: d for d in known}


DTYPES: dict[str, DType] = _types()
ALIASES: dict[str, str] = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32", "f16": "fp16", "f32": "fp32",
    "fp4": "nvfp4", "w4a4": "nvfp4", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8": "fp8", "float8_e4m3fn": "fp8", "f8_e4m3": "fp8",
    "fp8_static": "fp8", "fp8_dynamic": "fp8", "fp8_tensor": "fp8", "w8a8_fp8": "fp8", "w8a8": "int8", "w8a8_int8": "int8",
    "int4_wo": "int4", "w4a16": "int4", "awq": "int4", "gptq": "int4", "int8_wo": "w8a16", "w4a16_mxfp4": "mxfp4", "auto": "bf16",
}  # fmt: skip


def dtype(name: str | DType) -> DType:
    """The format called `name` (case-insensitive; bfloat16, half, w4a16 … are accepted). Raises InputError with the known names."""
    if isinstance(name, DType):
        return name
    key = str(name).strip().lower().removeprefix("torch.")
    found = DTYPES.get(ALIASES.get(key, key)) or _grouped_int(key)
    if found is None:
        raise InputError(f"unknown dtype {name!r}; known: {', '.join(DTYPES)}; also {', '.join(sorted(ALIASES))}")
    return found


_GROUPED = re.compile(r"int([2348])_g(\d{1,5})_s(\d{1,3})")
_MEAN_BITS = re.compile(r"w(\d{1,2}(?:\.\d+)?)")


def _grouped_int(name: str) -> DType | None:
    """Weight-only formats by their figures: int4_g128_s20 has 20 bits of scale and zero point per 128 weights; w4.85 has 4.85
    bits per weight in all (the mean of a mixed file)."""
    if (mean := _MEAN_BITS.fullmatch(name)) and 0 < float(mean[1]) <= 64:
        return DType(name, float(mean[1]), "bf16", weight_only=True)
    match = _GROUPED.fullmatch(name)
    if not match or not (group := int(match[2])):
        return None
    return DType(name, int(match[1]), "bf16", group=group, scale_bits=int(match[3]), weight_only=True)
