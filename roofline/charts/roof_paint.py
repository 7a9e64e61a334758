"""The lines of a roofline figure: zones, datasheet and expected roofs with their ridges, memory and link slopes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from roofline import units
from roofline.charts import labels, style
from roofline.profiles.hardware import Hardware

RIGHT = 0.835  # the names of the roofs stand beside the axes
_SIZE = style.TINY + 0.5


@dataclass(frozen=True)
class Roof:
    """The roof of one compute type on one device: datasheet, and what large kernels are expected to reach; FLOP/s and B/s."""

    device: Hardware
    compute: str
    peak: float
    reached: float
    reached_bandwidth: float

    @property
    def ridge(self) -> float:
        """FLOP/B at which the datasheet's compute and memory time are equal."""
        return self.peak / self.device.memory_bandwidth


def paint_zones(axes: Axes, roof: Roof) -> list[labels.Box]:
    """Left of the ridge memory limits, right of it compute does; returns the boxes of the words."""
    x0, x1 = axes.get_xlim()
    axes.axvspan(x0, roof.ridge, color=style.BLUE, alpha=0.045, lw=0, zorder=0)
    axes.axvspan(roof.ridge, x1, color=style.VERMILION, alpha=0.045, lw=0, zorder=0)
    for text, side, shift in (("← memory limits", "right", -6), ("compute limits →", "left", 6)):
        axes.annotate(
            text, (roof.ridge, 0.985), (shift, 0), xycoords=("data", "axes fraction"), textcoords="offset points", size=_SIZE,
            color=style.MUTED, ha=side, va="top",
        )  # fmt: skip
    left, _, right, top = labels.box_of(axes, roof.ridge, axes.get_ylim()[0], roof.ridge, axes.get_ylim()[1])
    return [(left - 82, top - 16, right + 82, top)]


def paint_roofs(axes: Axes, roofs: list[Roof], link: tuple[str, float] | None) -> list[labels.Box]:
    """Thin datasheet roofs, broad expected ones, ridge marks, names at the right; returns boxes to keep clear of.

    link: name and B/s of the interconnect, when GPUs talk to each other.
    """
    x0, x1 = axes.get_xlim()
    devices = list(dict.fromkeys(roof.device.id for roof in roofs))
    colours = {name: style.SERIES[2 + i % 4][0] if len(devices) > 1 else style.INK for i, name in enumerate(devices)}
    dashes = {name: style.SERIES[i % 6][2] for i, name in enumerate(devices)}
    for roof in roofs:
        colour, name = colours[roof.device.id], f"{roof.device.id}:{roof.compute}"
        x = np.array([x0, roof.ridge, x1])
        y = np.minimum(roof.peak, x * roof.device.memory_bandwidth)
        axes.plot(x, y, color=colour, lw=1.0, ls=dashes[roof.device.id], gid=f"roof:{name}")
        x = np.array([x0, roof.reached / roof.reached_bandwidth, x1])
        y = np.minimum(roof.reached, x * roof.reached_bandwidth)
        axes.plot(x, y, color=colour, lw=3.4, alpha=0.22, solid_capstyle="butt", solid_joinstyle="round")
        axes.plot(roof.ridge, roof.peak, marker="|", color=colour, ms=9, ls="none", gid=f"ridge:{name}")
    _name_roofs(axes, roofs, colours)
    return _name_slopes(axes, roofs, link)


def _name_roofs(axes: Axes, roofs: list[Roof], colours: dict[str, str]) -> None:
    """Type, peak and ridge beside the right end of each roof; texts of close roofs are pushed apart upwards, with a leader."""
    low, high = axes.get_ylim()
    several = len(colours) > 1
    height_points = labels.box_of(axes, 1, low, 1, high)
    room = height_points[3] - height_points[1]
    step = (high / low) ** ((3.35 if several else 2.3) * _SIZE * 1.1 / room)
    floor = 0.0
    for roof in sorted(roofs, key=lambda r: r.peak):
        height = max(roof.peak, floor)
        name = f"{roof.device.name}\n" if several else ""
        text = f"{name}{roof.compute} {units.format(roof.peak, 'flop_rate')}\nridge {units.significant(roof.ridge)} FLOP/B"
        leader = {"arrowstyle": "-", "color": colours[roof.device.id], "lw": 0.6, "shrinkA": 0, "shrinkB": 0}
        axes.annotate(
            text, (1.0, roof.peak), (1.018, height), xycoords=("axes fraction", "data"), textcoords=("axes fraction", "data"), size=_SIZE,
            ha="left", va="center", color=style.INK, linespacing=1.1, annotation_clip=False, arrowprops=leader,
        )  # fmt: skip
        floor = height * step


def _name_slopes(axes: Axes, roofs: list[Roof], link: tuple[str, float] | None) -> list[labels.Box]:
    """The memory slope of each device and the slope of the link, with their names along the lines."""
    taken = []
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    lines = {device.id: (device.memory_bandwidth, _memory_name(device)) for device in (roof.device for roof in roofs)}
    if link:
        axes.plot([x0, x1], [x0 * link[1], x1 * link[1]], color=style.ORANGE, lw=1.2, ls=(0, (2, 2)), gid="roof:link")
        axes.set(xlim=(x0, x1), ylim=(y0, y1))
        lines["link"] = (link[1], f"{link[0]}, FLOP per byte sent:")
    for index, (key, (slope, name)) in enumerate(lines.items()):
        below = key == "link"  # its points lie above it
        start = max(x0, y0 / slope) * (1.12 + 0.5 * index)
        text = f"{name} {units.format(slope, 'bandwidth')}"
        (ax, ay), (bx, by) = axes.transData.transform([(start, start * slope), (start * 4, start * 4 * slope)])
        axes.annotate(
            text, (start, start * slope), (0, -3 if below else 3), textcoords="offset points", size=_SIZE, ha="left",
            va="top" if below else "bottom",
            rotation=float(np.degrees(np.arctan2(by - ay, bx - ax))), rotation_mode="anchor",
        )  # fmt: skip
        taken += _boxes_along(axes, slope, 0.0 if below else labels.text_size(text, _SIZE)[0], start)
    return taken


def _boxes_along(axes: Axes, slope: float, length: float, start: float) -> list[labels.Box]:
    """Small boxes that cover a slope and the slanted text on it."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    boxes = []
    end = labels.box_of(axes, start, y0, start, y0)[0] + 0.92 * length
    for x in np.geomspace(max(x0, y0 / slope), min(x1, y1 / slope), 60):
        left, bottom, _, _ = labels.box_of(axes, x, x * slope, x, x * slope)
        text = 12.0 if x >= start and left < end else 1.5
        boxes.append((left - 2.5 - text / 2, bottom - 2.5, left + 2.5, bottom + 2.5 + text))
    return boxes


def _memory_name(device: Hardware) -> str:
    return device.memory_type.split(",")[0].split(" ")[0] or "memory"
