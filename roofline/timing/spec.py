"""What the kernel forms need of a device, taken from its profile."""

from __future__ import annotations

from roofline.profiles.calibration import shipped
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


# Generations whose constants come from one device: the best share of its bf16 peak in the rows they were fitted on, and whether
# its memory keeps ECC bits in line with the data. Ada: L40S (aiconfigurator-core 0.12.0).
_CONSTANTS_FROM = {"ada": (0.82, True)}
_ECC_SHARE = 15 / 16  # of a memory with ECC in line, capacity and traffic, that is data: 46,068 of 49,152 MiB on an L40S


def transfer(hardware: Hardware) -> tuple[float, float]:
    """Factors on (compute peaks, bandwidth) when the constants of another device of the generation price this one.

    Power limits and ECC differ within a generation: an L40S reaches 82 % of its bf16 peak at 350 W where a GeForce RTX 4090, whose
    tensor units run at half rate, sustains 108 %; and a GeForce card has no ECC to read. (1, 1) where nothing is known or needed.
    """
    source = _CONSTANTS_FROM.get(generation(hardware))
    if source is None or hardware.calibration or shipped(hardware.id):
        return 1.0, 1.0
    share, ecc = source
    own = [each.fraction for each in hardware.achieved if (each.metric, each.dtype) == ("gemm_max_torch", "bf16") and each.fraction]
    return (own[0] / share if own else 1.0), (1 / _ECC_SHARE if ecc and not _inline_ecc(hardware) else 1.0)


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
