"""What the kernel forms need of a device, taken from its profile."""

from __future__ import annotations

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


def device_spec(hardware: Hardware) -> DeviceSpec:
    """The DeviceSpec of a profile. What a profile does not know (SM count, L2, clock, links) is filled with an average device's.

    Compute capability 10.3 (B300, GB300) has twice the exponential rate: vendor's statement, and what its prefill kernels show.
    """
    link = hardware.link_bandwidth or hardware.pcie_bandwidth or _FALLBACK_LINK
    return DeviceSpec(
        id=hardware.id,
        generation=generation(hardware),
        peaks=dict(hardware.peaks),
        bandwidth=hardware.memory_bandwidth,
        sm_count=float(hardware.sm_count or _FALLBACK_SM),
        l2_bytes=float(hardware.l2_bytes or _FALLBACK_L2),
        clock_hz=hardware.peak_clock_hz or hardware.boost_hz or _FALLBACK_CLOCK,
        link_bandwidth=link,
        exponent_rate=2.0 if hardware.compute_capability == "10.3" else 1.0,
    )
