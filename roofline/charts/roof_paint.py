"""The lines of a roofline figure: zones, datasheet and expected roofs with their ridges, memory and link slopes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from roofline import units
from roofline.charts import labels, style
from roofline.charts.slopes import Slope
from roofline.profiles.hardware import Hardware

RIGHT = 0.835  # the names of the roofs stand beside the axes
_SIZE = style.TINY + 0.5
_WIDE = 82  # points from the axes to the edge of the paper
_LINE = 1.1 * 1.16 * _SIZE  # points from one line of a name to the next
_COLOUR = {"L2": style.GREEN, "link": style.ORANGE}
_DASH: dict[str, Any] = {"L2": (0, (7, 2, 1.5, 2)), "link": (0, (2, 2))}
_PER = {"L2": "L2, FLOP per byte read", "link": "link, FLOP per byte sent"}
Keys = dict[Line2D, str]


@dataclass(frozen=True)
class Roof:
    """The roof of one compute type on one device: datasheet, and what large kernels are expected to reach; FLOP/s and B/s.

    basis: the constants that the expectation rests on.
    """

    device: Hardware
    compute: str
    peak: float
    reached: float
    reached_bandwidth: float
    basis: str

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
            color=style.MUTED, ha=side, va="top", bbox=labels.BACKING, zorder=5,
        )  # fmt: skip
    left, _, right, top = labels.box_of(axes, roof.ridge, axes.get_ylim()[0], roof.ridge, axes.get_ylim()[1])
    return [(left - 82, top - 16, right + 82, top)]


def paint_roofs(axes: Axes, roofs: list[Roof], lines: list[Slope]) -> list[labels.Box]:
    """Thin datasheet roofs, broad expected ones, ridge marks, slopes, names at the right; returns boxes to keep clear of."""
    x0, x1 = axes.get_xlim()
    devices = list(dict.fromkeys(roof.device.id for roof in roofs))
    colours = {name: style.SERIES[2 + i % 4][0] if len(devices) > 1 else style.INK for i, name in enumerate(devices)}
    dashes = {name: style.SERIES[i % 6][2] for i, name in enumerate(devices)}
    reached = {name: max(roof.reached_bandwidth for roof in roofs if roof.device.id == name) for name in devices}
    for roof in roofs:
        colour, name = colours[roof.device.id], f"{roof.device.id}:{roof.compute}"
        x = np.array([x0, roof.ridge, x1])
        y = np.minimum(roof.peak, x * roof.device.memory_bandwidth)
        axes.plot(x, y, color=colour, lw=1.0, ls=dashes[roof.device.id], gid=f"roof:{name}")
        best = reached[roof.device.id]
        x = np.array([x0 if roof is _first(roofs, roof) else roof.reached / best, roof.reached / best, x1])
        y = np.minimum(roof.reached, x * best)
        axes.plot(x, y, color=colour, lw=3.4, alpha=0.22, solid_capstyle="butt", solid_joinstyle="round")
        axes.plot(roof.ridge, roof.peak, marker="|", color=colour, ms=9, ls="none", gid=f"ridge:{name}")
    _name_roofs(axes, roofs, lines, colours)
    return _paint_slopes(axes, lines, colours)


def roof_keys(roofs: list[Roof], lines: list[Slope]) -> Keys:
    """Legend entries: what thin and broad roofs are and, with several devices, what the lines of L2 and link are."""
    several = len({roof.device.id for roof in roofs}) > 1
    own = not any(roof.basis.startswith("generic") or " of " in roof.basis for roof in roofs)
    thin, broad = Line2D([], [], color=style.INK, lw=1.0), Line2D([], [], color=style.INK, lw=3.4, alpha=0.22)
    keys: Keys = {thin: "datasheet roof", broad: "calibrated roof" if own else "expected roof"}
    if several:
        levels = [level for level in _DASH if any(line.level == level for line in lines)]
        keys |= {Line2D([], [], color=style.MUTED, lw=1.2, ls=_DASH[level]): _PER[level] for level in levels}
    return keys


def _first(roofs: list[Roof], roof: Roof) -> Roof:
    """The highest roof of the same device: it alone has the slope, which the others share."""
    return max((each for each in roofs if each.device.id == roof.device.id), key=lambda each: each.reached)


def _name_roofs(axes: Axes, roofs: list[Roof], lines: list[Slope], colours: dict[str, str]) -> None:
    """Type, peak and ridge beside the right end of each roof, of several devices also name and slopes; pushed apart, with leaders."""
    roofs = sorted(roofs, key=lambda r: r.peak)
    texts = _several(roofs, lines, room=20) if len(colours) > 1 else [f"{_rate(roof)}\n{_ridge(roof)}" for roof in roofs]
    _, low, _, high = labels.box_of(axes, 1, axes.get_ylim()[0], 1, axes.get_ylim()[1])
    peaks = [labels.box_of(axes, 1, roof.peak, 1, roof.peak)[1] for roof in roofs]
    heights = [_LINE * (text.count("\n") + 1) + 4 for text in texts]
    for roof, text, centre in zip(roofs, texts, labels.spread(peaks, heights, low - 30, high + 8), strict=True):
        first = 1 - 0.5 / (text.count("\n") + 1)  # the leader ends at the first line
        leader = {"arrowstyle": "-", "color": colours[roof.device.id], "lw": 0.6, "shrinkA": 0, "shrinkB": 0, "relpos": (0, first)}
        axes.annotate(
            text, (1.0, roof.peak), (1.018, (centre - low) / (high - low)), xycoords=("axes fraction", "data"),
            textcoords="axes fraction", size=_SIZE, ha="left", va="center", color=style.INK, linespacing=1.1, annotation_clip=False,
            arrowprops=leader,
        )  # fmt: skip


def _several(roofs: list[Roof], lines: list[Slope], room: int) -> list[str]:
    """Texts of roofs of several devices; slopes stand with a device's lowest roof as long as all texts have at most `room` lines."""
    slopes = {roof.device.id: [line.short for line in lines if line.device.id == roof.device.id] for roof in roofs}
    fits = sum(map(len, slopes.values())) + 3 * len(roofs) <= room
    texts = []
    for index, roof in enumerate(roofs):
        first = all(other.device.id != roof.device.id for other in roofs[:index])
        own = slopes[roof.device.id] if first and fits else []
        name = style.shortened(roof.device.name, _WIDE, _SIZE)
        texts.append("\n".join([name, _rate(roof), _ridge(roof), *own] if fits else [name, _rate(roof)]))
    return texts


def _rate(roof: Roof) -> str:
    return f"{roof.compute} {units.format(roof.peak, 'flop_rate')}"


def _ridge(roof: Roof) -> str:
    return f"ridge {units.significant(roof.ridge)} FLOP/B"


def _paint_slopes(axes: Axes, lines: list[Slope], colours: dict[str, str]) -> list[labels.Box]:
    """The slopes of L2 and link (the roofs have that of the memory); with one device, the names of all along the lines."""
    taken = []
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    several = len(colours) > 1
    for index, line in enumerate(lines):
        slope, below = line.bytes_per_s, line.level == "link"  # the points lie above the link's line
        if line.level != "memory":
            colour = colours[line.device.id] if several else _COLOUR[line.level]
            axes.plot(
                [x0, x1], [x0 * slope, x1 * slope], color=colour, lw=1.2, ls=_DASH[line.level], gid=f"slope:{line.device.id}:{line.level}"
            )
            axes.set(xlim=(x0, x1), ylim=(y0, y1))
        if several:
            taken += _boxes_along(axes, slope, 0.0, x0)
            continue
        text = line.text
        start = max(x0, y0 / slope) * (1.12 + 0.5 * index)
        (ax, ay), (bx, by) = axes.transData.transform([(start, start * slope), (start * 4, start * 4 * slope)])
        axes.annotate(
            text, (start, start * slope), (0, -3 if below else 3), textcoords="offset points", size=_SIZE, ha="left",
            va="top" if below else "bottom",
            rotation=float(np.degrees(np.arctan2(by - ay, bx - ax))), rotation_mode="anchor",
        )  # fmt: skip
        taken += _boxes_along(axes, slope, labels.text_size(text, _SIZE)[0], start, below)
    return taken


def _boxes_along(axes: Axes, slope: float, length: float, start: float, below: bool = False) -> list[labels.Box]:
    """Small boxes that cover a slope and the slanted text on it, or below it."""
    (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
    boxes = []
    end = labels.box_of(axes, start, y0, start, y0)[0] + 0.92 * length
    for x in np.geomspace(max(x0, y0 / slope), min(x1, y1 / slope), 60):
        left, bottom, _, _ = labels.box_of(axes, x, x * slope, x, x * slope)
        text = 12.0 if x >= start and left < end else 1.5
        if below:
            boxes.append((left - 2.5, bottom - 2.5 - text, left + 2.5 + text / 2, bottom + 2.5))
        else:
            boxes.append((left - 2.5 - text / 2, bottom - 2.5, left + 2.5, bottom + 2.5 + text))
    return boxes
