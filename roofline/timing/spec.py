"""What the kernel forms need of a device, taken from its profile."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from statistics import geometric_mean

from roofline.profiles.calibration import shipped
from roofline.profiles.catalog import load_hardware
from roofline.profiles.hardware import Hardware
from roofline.timing.forms.base import DeviceSpec

_FALLBACK_SM, _FALLBACK_L2, _FALLBACK_CLOCK = 100.0, 40e6, 1.8e9  # an average accelerator, for profiles that do not say
_FALLBACK_LINK = 31.5e9  # PCIe Gen4 x16, one direction


def generation(hardware: Hardware) -> str:
    """Devices whose libraries run the same kernels: "hopper", "blackwell" (data centre), "blackwell-rtx", "ada", …"""
    name = hardware.architecture.split("(")[0].strip().lower()
    if name == "blackwell" and hardware.compute_capability.split(".")[0] not in ("", "10"):
        return "blackwell-rtx"
    return "xe" if name.startswith("xe") else name.replace(" ", "-")


# The devices whose rows a generation's constants were fitted on (aiconfigurator-core 0.12.0).
_MEASURED = {
    "ada": ("l40s",),
    "ampere": ("a100-sxm-80gb",),
    "blackwell": ("b200-sxm", "b300-sxm", "gb200", "gb300"),
    "blackwell-rtx": ("rtx-pro-6000-server",),
    "hopper": ("h100-sxm", "h200-sxm"),
}
_LONG_RUNS = ("gemm_max_torch", "gemm_cublaslt_constant_inputs")  # benchmarks long enough to meet the power limit
# Share of bandwidth fitted on an RTX PRO 6000, without ECC in line, over that on an L40S, with it: median of the 18 kernels (products
# and decode attention, all engines and dtypes) of both. A fluid solver agrees: 67 to 76 % of the datasheet on L40S, L40, A40, A10 and
# L4, 80 to 93 % on cards without (github: ProjectPhysX/FluidX3D@01d3cdd README).
_WITHOUT_ECC = 1.18


def transfer(hardware: Hardware) -> tuple[float, float]:
    """Factors on (compute peaks, bandwidth) when the constants of other devices of the generation price this one.

    What carries over is the share of what a device sustains, not of its datasheet: in one benchmark an L40S reaches 70 % of its bf16
    peak at 350 W where a GeForce RTX 4090, whose tensor units run at half rate, reaches 108 %; and a GeForce card has no ECC to
    read. (1, 1) where nothing is known or needed.
    """
    names = _MEASURED.get(generation(hardware))
    if names is None or hardware.calibration or shipped(hardware.id):
        return 1.0, 1.0
    memory = _WITHOUT_ECC if names == ("l40s",) and not _inline_ecc(hardware) else 1.0
    return sustained(hardware, _profiles(names)), memory


def sustained(hardware: Hardware, others: Iterable[Hardware]) -> float:
    """Share of its bf16 peak that a device sustains, in units of what others do: geometric mean over the long-running benchmarks
    (of one source) that both ran, by the `achieved` of the profiles. 1 where no benchmark ran on both."""
    own = _shares(hardware)
    ratios = [own[name] / share for other in others for name, share in _shares(other).items() if name in own]
    return geometric_mean(ratios) if ratios else 1.0


def _shares(hardware: Hardware) -> dict[tuple[str, str], float]:
    return {(a.metric, a.source): a.fraction for a in hardware.achieved if a.dtype == "bf16" and a.metric in _LONG_RUNS and a.fraction}


@cache
def _profiles(names: tuple[str, ...]) -> tuple[Hardware, ...]:
    return tuple(load_hardware(name) for name in names)


def _inline_ecc(hardware: Hardware) -> bool:
    """Whether the driver reports clearly less memory than the card has in GiB (profiles say GB for it)."""
    reported = hardware.memory_reported_bytes
    return reported is None or reported < 0.96 * hardware.memory_bytes * 2**30 / 1e9


def device_spec(hardware: Hardware) -> DeviceSpec:
    """The DeviceSpec of a profile. What a profile does not know (SM count, L2, clock, links) is filled with an average device's.

    Compute capability 10.3 (B300, GB300) has twice the exponential rate: vendor's statement, and what its prefill kernels show.
    """
    compute, memory = transfer(hardware)
    link = hardware.link_bandwidth or hardware.pcie_bandwidth or _FALLBACK_LINK
    return DeviceSpec(
        id=hardware.id,
        generation=generation(hardware),
        peaks={name: compute * peak for name, peak in hardware.peaks.items()},
        bandwidth=memory * hardware.memory_bandwidth,
        sm_count=float(hardware.sm_count or _FALLBACK_SM),
        l2_bytes=float(hardware.l2_bytes or _FALLBACK_L2),
        clock_hz=hardware.peak_clock_hz or hardware.boost_hz or _FALLBACK_CLOCK,
        link_bandwidth=link,
        exponent_rate=2.0 if hardware.compute_capability == "10.3" else 1.0,
    )
