"""Which unit of a device multiplies a format, and what happens when it has none."""

from __future__ import annotations

from roofline.errors import InputError
from roofline.profiles.hardware import Hardware

# What an engine runs instead, first choice first: weight-only kernels convert to 16 bits on the way into the multiplier.
_INSTEAD = {
    "fp4": ("bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "tf32": ("fp32",),
    "fp32": ("tf32", "bf16", "fp16"),
}
_WEIGHT_ONLY = {"fp4", "fp8", "int8"}


def effective_peak(hardware: Hardware, compute: str) -> tuple[float, str]:
    """Dense FLOP/s at which `hardware` multiplies the compute type, and a sentence when it is not its own unit ("" if it is).

    A format without a unit is stored as it is and converted to the next one that the device has: bytes shrink, FLOP/s do
    not grow. fp4 weights on a device with fp8 but no fp4 unit run weight-only in 16 bits, as engines do. Raises InputError
    when the profile has no peak that could run it.
    """
    if compute in hardware.peaks:
        return hardware.peaks[compute], ""
    for other in _INSTEAD.get(compute, ()):
        if other in hardware.peaks:
            how = "weights are stored so and converted" if compute in _WEIGHT_ONLY else "computed"
            return hardware.peaks[
                other
            ], f"{hardware.id} has no {compute} unit: {how} in {other} ({hardware.peaks[other] / 1e12:.4g} TFLOP/s)"
    raise InputError(
        f"{hardware.id} has no peak for {compute} or anything that could stand in; its profile has {', '.join(hardware.peaks)}"
    )


def notes(hardware: Hardware, computes: set[str]) -> list[str]:
    """The sentences of effective_peak for several compute types, without repeats."""
    found = (effective_peak(hardware, c)[1] for c in sorted(computes) if c)
    return [note for note in dict.fromkeys(found) if note]
