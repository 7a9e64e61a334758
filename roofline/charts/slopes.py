"""The slopes of a roofline figure: what memory, L2 and link of a device can carry, and how well each figure is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from roofline import units
from roofline.charts.chart import Row
from roofline.phases import Setup
from roofline.profiles.hardware import Hardware
from roofline.timing.bound import link_bandwidth


@dataclass(frozen=True)
class Slope:
    """One level of a device's memory: B/s, and FLOP per byte of that level across. level: memory, L2 or link.

    kind, source: those of the figure in the profile.
    """

    device: Hardware
    level: str
    name: str
    bytes_per_s: float
    kind: str
    source: str

    @property
    def short(self) -> str:
        """Name and figure: HBM3 3.35 TB/s."""
        return f"{self.name} {units.format(self.bytes_per_s, 'bandwidth')}"

    @property
    def text(self) -> str:
        """What stands along the line; of the L2 also how its figure was found."""
        known = f" {self.kind}" if self.level == "L2" and self.kind not in ("", "datasheet", "whitepaper") else ""
        per = {"memory": "", "L2": ", FLOP per byte read", "link": ", FLOP per byte sent"}[self.level]
        return f"{self.short}{known}{per}"

    def row(self) -> Row:
        """The slope as a row of the figure's data."""
        return {
            "series": "slope", "name": self.device.id, "level": self.level, "slope_bytes_per_s": self.bytes_per_s,
            "kind": self.kind, "source": self.source,
        }  # fmt: skip


def slopes(devices: Sequence[Hardware], setup: Setup) -> list[Slope]:
    """Memory of each device, its L2 where the profile has a rate, and its link (else PCIe) when the layout has GPUs that talk."""
    return [slope for device in devices for slope in _of(device, setup.parallel.gpus > 1)]


def _of(device: Hardware, linked: bool) -> Iterator[Slope]:
    memory = device.memory_type.split(",")[0].split(" ")[0] or "memory"
    yield _slope(device, "memory", memory, device.memory_bandwidth, "memory_bandwidth")
    if device.l2_bandwidth:
        yield _slope(device, "L2", "L2", device.l2_bandwidth, "l2_bandwidth")
    speed = link_bandwidth(device)
    if linked and speed:
        name = (device.link if device.link_bandwidth else "PCIe").split(" (")[0]
        key = "link_bandwidth" if device.link_bandwidth else "pcie_bandwidth"
        yield _slope(device, "link", name, speed, key)


def _slope(device: Hardware, level: str, name: str, bytes_per_s: float, key: str) -> Slope:
    figure = device.figures.get(key)
    return Slope(device, level, name, bytes_per_s, figure.kind if figure else "", figure.source if figure else "")


def unknown(devices: Sequence[Hardware]) -> str:
    """The sentence that says of which devices no L2 rate is known ("" if of none)."""
    names = [device.name for device in devices if not device.l2_bandwidth]
    return f"L2 rate not known of {', '.join(dict.fromkeys(names))}" if names else ""
