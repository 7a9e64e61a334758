"""Labels that do not collide: the heaviest first, each where there is room, the rest left to the CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from roofline.charts.style import MUTED, PAPER, SMALL, text_width

BACKING = {"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 0.6}  # keeps a text readable where it crosses a line
Box = tuple[float, float, float, float]  # left, bottom, right, top in points


@dataclass(frozen=True)
class Label:
    """A text at a point of the data. weight: who gets room first. radius: of the marker, in points."""

    x: float
    y: float
    text: str
    weight: float = 1.0
    colour: str = MUTED
    radius: float = 3.0


def place(
    axes: Axes, labels: Sequence[Label], *, taken: Sequence[Box] = (), size: float = SMALL, most: int = 24, furthest: float = 32
) -> list[Label]:
    """Writes as many of the labels as fit, at most `most`, and returns them. Axis limits must be final.

    taken: boxes (see `box_of`) that labels keep clear of. furthest: how many points a label may stand from its marker.
    """
    scale = 72.0 / axes.figure.dpi
    (left, bottom), (right, top) = axes.transAxes.transform([(0, 0), (1, 1)]) * scale
    spots = (axes.transData.transform([(label.x, label.y) for label in labels]) * scale).tolist() if labels else []
    occupied = [*taken, *((x - r.radius, y - r.radius, x + r.radius, y + r.radius) for (x, y), r in zip(spots, labels, strict=True))]
    written: list[Label] = []
    for (x, y), label in sorted(zip(spots, labels, strict=True), key=lambda pair: (-pair[1].weight, pair[1].text)):
        if len(written) == most:
            break
        width, height = text_size(label.text, size)
        for dx, dy in _offsets(width, height, label.radius, furthest):
            box = (x + dx, y + dy, x + dx + width, y + dy + height)
            inside = box[0] >= left and box[1] >= bottom and box[2] <= right and box[3] <= top
            if inside and not any(_overlap(box, other) for other in occupied):
                far = max(dx, -dx - width, 0.0) + max(dy, -dy - height, 0.0) > label.radius + 8
                leader = {"arrowstyle": "-", "color": MUTED, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 1} if far else None
                axes.annotate(
                    label.text, (label.x, label.y), (dx, dy), textcoords="offset points", size=size, color=label.colour,
                    ha="left", va="bottom", arrowprops=leader, zorder=6, bbox=BACKING,
                )  # fmt: skip
                occupied.append(box)
                written.append(label)
                break
    return written


def together(axes: Axes, labels: Sequence[Label], *, within: float = 7.0) -> list[Label]:
    """Labels whose points lie closer than `within` points become one: the heaviest two names, and how many more."""
    scale = 72.0 / axes.figure.dpi
    groups: list[tuple[float, float, list[Label]]] = []
    for label in sorted(labels, key=lambda each: (-each.weight, each.text)):
        x, y = axes.transData.transform((label.x, label.y)) * scale
        near = next((group for group in groups if abs(group[0] - x) < within and abs(group[1] - y) < within), None)
        if near:
            near[2].append(label)
        else:
            groups.append((x, y, [label]))
    return [_joined(group) for _, _, group in groups]


def _joined(group: Sequence[Label]) -> Label:
    names = list(dict.fromkeys(label.text for label in group))
    text = ", ".join(names[:2]) + (f" +{len(names) - 2}" if len(names) > 2 else "")
    return replace(group[0], text=text, weight=sum(label.weight for label in group))


def text_size(text: str, size: float) -> tuple[float, float]:
    """Width and height in points that a line of text takes, with a little room."""
    return text_width(text, size) + 3, 1.25 * size


def spread(centres: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Centres of stacked boxes, moved as little as it takes to lie apart, first upwards, then down below `high`.

    centres: ascending. What does not fit between low and high sticks out below.
    """
    placed: list[float] = []
    floor = low
    for centre, height in zip(centres, heights, strict=True):
        placed.append(max(centre, floor + height / 2))
        floor = placed[-1] + height / 2
    ceiling = high
    for index in reversed(range(len(placed))):
        placed[index] = min(placed[index], ceiling - heights[index] / 2)
        ceiling = placed[index] - heights[index] / 2
    return placed


def box_of(axes: Axes, x0: float, y0: float, x1: float, y1: float) -> Box:
    """A rectangle of the data in the points that `place` counts in."""
    scale = 72.0 / axes.figure.dpi
    (a, b), (c, d) = axes.transData.transform([(x0, y0), (x1, y1)]) * scale
    return min(a, c), min(b, d), max(a, c), max(b, d)


def _offsets(width: float, height: float, radius: float, furthest: float) -> Iterator[tuple[float, float]]:
    """Lower left corners of the text around its point: beside, above, below, then further out."""
    for away in (radius + step for step in (1.5, 10, 20, 32, 46, 62) if step <= furthest):
        yield away, -height / 2
        yield -away - width, -height / 2
        yield -width / 2, away
        yield -width / 2, -away - height
        yield away * 0.8, away * 0.8
        yield away * 0.8, -away * 0.8 - height
        yield -away * 0.8 - width, away * 0.8
        yield -away * 0.8 - width, -away * 0.8 - height


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
