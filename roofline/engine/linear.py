"""Matrix products by storage format of the weights: plain, int8 and int4 weight-only, int8 and fp8 with quantised activations.

All keep the (outputs, inputs) layout of a checkpoint. Activations come as (rows, inputs).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from roofline.errors import InputError

Product = Callable[[Tensor], Tensor]
FORMATS = ("w8a16", "int4", "int8", "fp8")
INT4_GROUPS = (128, 64, 32)
_FP8_MAX = 448.0
_GPU_INT_ROWS = 32
_CPU_KERNEL_ROWS = 16
_CPU_KERNEL_TYPES = (torch.float32, torch.bfloat16)


class Dense:
    """x · Wᵀ + b in the type of the activations."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Int8WeightOnly:
    """Weights as int8 with one scale per output channel, 16-bit activations (W8A16).

    A few rows on a CPU go through its bf16 kernel, which reads the codes only; more rows, or wider types, are multiplied by weights
    widened on the way, as there is nothing to gain from narrow ones.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.quantised, scale = quantise_rows(weight)
        self.scale, self.bias = scale.to(weight.dtype), bias
        self._narrow = scale.to(torch.bfloat16) if weight.device.type == "cpu" and weight.dtype in _CPU_KERNEL_TYPES else None

    def __call__(self, x: Tensor) -> Tensor:
        if self._narrow is not None and len(x) <= _CPU_KERNEL_ROWS:
            y = torch._weight_int8pack_mm(x.bfloat16(), self.quantised, self._narrow).to(x.dtype)
        else:
            y = F.linear(x, self.quantised.to(x.dtype)) * self.scale
        return y if self.bias is None else y + self.bias


class Int4WeightOnly:
    """Weights as 4-bit codes, a scale and a zero per group of inputs: weight = (code − 8) · scale + zero. bf16 activations (W4A16)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.group = int4_group(weight.shape[1])
        codes, scale, zero = quantise_groups(weight, self.group)
        self.scales_zeros = torch.stack((scale, zero), -1).transpose(0, 1).contiguous().to(torch.bfloat16)
        self.bias = bias
        if weight.device.type == "cpu":
            self.packed = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
            self._multiply = torch._weight_int4pack_mm_for_cpu
        else:
            pairs = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
            self.packed = torch._convert_weight_to_int4pack(pairs, 2)
            self._multiply = torch._weight_int4pack_mm

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self._multiply(x.bfloat16(), self.packed, self.group, self.scales_zeros).to(x.dtype)
        return y if self.bias is None else y + self.bias


class Int8:
    """Weights as int8 per output channel and activations as int8 per row, scaled as they come (W8A8)."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.quantised, self.scale = quantise_rows(weight)
        self.bias = bias

    def __call__(self, x: Tensor) -> Tensor:
        codes, scale = quantise_rows(x)
        rows = len(codes)
        if x.is_cuda and rows < _GPU_INT_ROWS:
            codes = F.pad(codes, (0, 0, 0, _GPU_INT_ROWS - rows))
        y = torch._int_mm(codes, self.quantised.t())[:rows]
        out = (y * scale.unsqueeze(1) * self.scale).to(x.dtype)
        return out if self.bias is None else out + self.bias


class Fp8:
    """Weights and activations as fp8 (e4m3), one scale per output channel and per row."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.quantised, scale = _fp8_rows(weight)
        self.scale, self.bias = scale.t(), bias

    def __call__(self, x: Tensor) -> Tensor:
        codes, scale = _fp8_rows(x)
        y = torch._scaled_mm(codes, self.quantised.t(), scale, self.scale, out_dtype=torch.bfloat16).to(x.dtype)
        return y if self.bias is None else y + self.bias


def _fp8_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    scale = matrix.abs().amax(1, keepdim=True).float().clamp(min=1e-12) / _FP8_MAX
    return (matrix.float() / scale).to(torch.float8_e4m3fn), scale


def quantise_rows(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 codes, scale per row in fp32) of a matrix: code = round(value / scale), scale = largest absolute value / 127."""
    scale = matrix.abs().amax(-1).float().clamp(min=1e-12) / 127
    return torch.round(matrix / scale.unsqueeze(-1)).to(torch.int8), scale


def quantise_groups(weight: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """(codes 0 … 15 in int32, scales, zeros per output and group) of a matrix; see Int4WeightOnly for what they mean."""
    grouped = weight.float().view(len(weight), -1, group)
    low, high = grouped.amin(-1), grouped.amax(-1)
    scale = ((high - low) / 15).clamp(min=1e-12)
    codes = torch.round((grouped - low.unsqueeze(-1)) / scale.unsqueeze(-1)).clamp(0, 15).to(torch.int32)
    return codes.view_as(weight), scale, low + 8 * scale


def int4_group(inputs: int) -> int:
    """Inputs per scale: the largest of INT4_GROUPS that divides them. Raises InputError if none does."""
    for group in INT4_GROUPS:
        if inputs % group == 0:
            return group
    raise InputError(f"int4 weights need matrices whose inputs are a multiple of {INT4_GROUPS[-1]}; one has {inputs} on each rank")


_KINDS: dict[str, type[Dense | Int8WeightOnly | Int4WeightOnly | Int8 | Fp8]] = {
    "": Dense, "w8a16": Int8WeightOnly, "int4": Int4WeightOnly, "int8": Int8, "fp8": Fp8,
}  # fmt: skip


def linear(weight: Tensor, bias: Tensor | None = None, fmt: str = "") -> Product:
    """The product with `weight` stored as `fmt` ("": as it is)."""
    return _KINDS[fmt](weight, bias)


def check_format(fmt: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raises InputError where a storage format has no product for this activation type or device."""
    if fmt not in _KINDS:
        raise InputError(f"weights {fmt!r}: the engine stores w8a16, int4, int8 or fp8")
    if fmt == "int4" and dtype == torch.float64:
        raise InputError("int4 weights multiply 16-bit activations; fp64 would not be what it says")
    if fmt == "fp8" and device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise InputError("fp8 products need a GPU of compute capability 8.9 or later; use w8a16")
