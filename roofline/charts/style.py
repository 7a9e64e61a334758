"""How every figure looks: palette, type, the frame with its one finding, and axes with units.

Colours are those of Okabe and Ito (2008), told apart by the colour-blind; in grey, marker, dash and hatch do the telling.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from typing import Any

import matplotlib as mpl
import matplotlib.font_manager as fonts
from matplotlib.axes import Axes
from matplotlib.figure import Figure, FigureBase, SubFigure
from matplotlib.ft2font import FT2Font, LoadFlags
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

WIDTH, HEIGHT = 8.0, 5.2  # inches
INK, MUTED, FAINT, PAPER = "#1a1a1a", "#595959", "#d9d9d9", "#ffffff"
BLUE, VERMILION, GREEN, ORANGE, SKY, PINK = "#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7"
SERIES: tuple[tuple[str, str, Any], ...] = (  # colour, marker, dashes: each series differs in all three
    (BLUE, "o", "-"),
    (VERMILION, "s", (0, (6, 2))),
    (GREEN, "^", (0, (1.5, 1.5))),
    (PINK, "D", (0, (6, 2, 1.5, 2))),
    (ORANGE, "v", (0, (3, 1.5))),
    (INK, "P", (0, (8, 2, 1.5, 2, 1.5, 2))),
)
PHASES = {"prefill": (VERMILION, "s"), "decode": (BLUE, "o")}
LIMITS = {"compute": VERMILION, "weights": BLUE, "KV": SKY, "link": ORANGE}
TITLE_SIZE, TEXT_SIZE, SMALL, TINY = 12.5, 10.0, 9.0, 7.5
LEFT, RIGHT, BOTTOM, TOP = 0.1, 0.975, 0.19, 0.80
_FAMILIES = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "WenQuanYi Zen Hei", "Droid Sans Fallback", "Microsoft YaHei",
    "PingFang SC", "Hiragino Sans GB", "Arial Unicode MS", "Noto Sans Devanagari", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Thai",
)  # fmt: skip


@contextmanager
def applied(text: str = "") -> Iterator[None]:
    """Draws and saves in the house style, whatever the user's own settings are; no text of the library on stderr.

    text: what the figure will say, so that scripts beyond the house font find an installed one.
    """
    quiet = logging.getLogger("matplotlib")
    level = quiet.level
    quiet.setLevel(logging.ERROR)  # a home without a cache folder is no problem of the user's
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        mpl.rcdefaults()
        for key, value in _settings(_families(text)).items():
            mpl.rcParams[key] = value
        try:
            yield
        finally:
            quiet.setLevel(level)


def _families(text: str) -> list[str]:
    """The house font, which every installation has, and installed fonts for scripts that it lacks."""
    if not any(c >= "\u0900" and not "\u1d00" <= c <= "\u2fff" for c in text):
        return ["DejaVu Sans"]
    known = {font.name for font in fonts.fontManager.ttflist}
    return ["DejaVu Sans", *(name for name in _FAMILIES if name in known)]


def _settings(families: list[str]) -> dict[Any, Any]:
    return {
        "font.family": families,
        "font.size": TEXT_SIZE,
        "text.color": INK,
        "text.hinting": "no_hinting",  # widths are the same at every resolution
        "text.parse_math": False,  # a "$" in a model's name is a "$"
        "axes.edgecolor": MUTED,
        "axes.labelcolor": INK,
        "axes.labelsize": TEXT_SIZE,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
        "axes.grid": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
        "legend.fontsize": SMALL,
        "legend.frameon": True,
        "legend.framealpha": 0.9,
        "legend.edgecolor": "none",
        "legend.borderpad": 0.3,
        "hatch.linewidth": 0.7,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "none",
        "svg.hashsalt": "roofline",
        "pdf.fonttype": 42,
    }


def frame(figure: Figure | SubFigure, title: str, subtitle: str, footer: Sequence[str]) -> None:
    """The finding as title, what is shown below it, and a footer of three lines: device, version and basis, then the command."""
    width = 72 * figure.bbox.width / figure.dpi * 0.965  # a part of a page is narrower than a figure of its own
    lines = wrapped(shortened(title, 1.9 * width, TITLE_SIZE, bold=True), width, TITLE_SIZE, bold=True)[:2]
    figure.text(0.018, 0.972, "\n".join(lines), size=TITLE_SIZE, weight="bold", va="top", linespacing=1.2)
    figure.text(0.018, 0.925 if len(lines) == 1 else 0.877, shortened(subtitle, width, SMALL), size=SMALL, color=MUTED, va="top")
    *first, last = footer
    end = wrapped(last, width, TINY)[:2]
    start = [line for text in first for line in wrapped(shortened(text, 0.95 * width * (3 - len(end)), TINY), width, TINY)]
    figure.text(0.018, 0.016, "\n".join([*start[: 3 - len(end)], *end]), size=TINY, color=MUTED, va="bottom", linespacing=1.25)


def panels(figure: FigureBase, columns: int = 1, *, right: float = RIGHT, left: float = LEFT, gap: float = 0.115) -> list[Axes]:
    """Axes side by side inside the frame. left, right: edges as shares of the width; gap: between panels, with labels."""
    width = (right - left - gap * (columns - 1)) / columns
    return [figure.add_axes((left + i * (width + gap), BOTTOM, width, TOP - BOTTOM)) for i in range(columns)]


@cache
def _face(bold: bool) -> FT2Font:
    """The house font as the library ships it: measuring with it gives the same lines on every machine."""
    return fonts.get_font(fonts.findfont(fonts.FontProperties(family=["DejaVu Sans"], weight="bold" if bold else "normal")))


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a line in points. What another font must draw, or none can, counts a quarter more than a square."""
    face = _face(bold)
    own = "".join(c for c in text if face.get_char_index(ord(c)))
    face.set_size(size, 72)
    face.set_text(own, 0.0, flags=LoadFlags.NO_HINTING)
    return float(face.get_width_height()[0]) / 64 + 1.25 * size * (len(text) - len(own))


def shortened(text: str, width: float, size: float, bold: bool = False) -> str:
    """`text` with its middle left out when it is wider than `width` points."""
    half = len(text) // 2
    short = text
    while half > 1 and text_width(short, size, bold) > width:
        half -= 1
        short = f"{text[:half]}…{text[-half:]}"
    return short


def wrapped(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """Lines no wider than `width` points; a word that is too long is cut."""
    lines, line = [], ""
    for word in text.split():
        while text_width(word, size, bold) > width:
            cut = next(n for n in range(len(word), 0, -1) if n == 1 or text_width(word[:n], size, bold) <= width)
            lines += [line, word[:cut]] if line else [word[:cut]]
            line, word = "", word[cut:]
        longer = f"{line} {word}".strip()
        if text_width(longer, size, bold) <= width:
            line = longer
        else:
            lines.append(line)
            line = word
    return [*lines, line] if line or not lines else lines


def compact(value: float) -> str:
    """A count in few characters, powers of two as people say them: 128k for 131072, 4k for 4096, 1.5M."""
    for size, name in ((1 << 20, "M"), (1 << 10, "k")):
        if size <= value < size << 10 and value % (size // 8) == 0:
            return f"{value / size:g}{name}"
    for factor, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if float(f"{value:.3g}") >= factor:
            return f"{float(f'{value:.3g}') / factor:.10g}{name}"
    return f"{value:.3g}"


def log_counts(axis: Any, low: float, high: float, most: int = 9) -> None:
    """A log axis of tokens or sequences from low to high, with ticks at powers of two, every second one if they are many."""
    first, last = max(0, int(low).bit_length() - 1), max(1, int(high)).bit_length()
    powers = [1 << i for i in range(first, last + 1) if low <= 1 << i <= high] or [int(low)]
    step = -(-len(powers) // most)
    axis.axes.set(**{f"{axis.axis_name}scale": "log"})
    axis.set_major_locator(FixedLocator([float(p) for p in powers[::step]]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axis.set_view_interval(low, high, ignore=True)


def _plain(value: float) -> str:
    return f"{value:,.10g}" if abs(value) < 1e4 else f"{value / 1e3:,.10g}k" if abs(value) < 1e6 else f"{value / 1e6:,.10g}M"


def time_unit(longest_s: float) -> tuple[float, str]:
    """The unit that suits an axis up to longest_s seconds: (seconds, name)."""
    return next((unit for unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")) if longest_s >= 2 * unit[0]), (1e-9, "ns"))


def plain_numbers(axis: Any, unit: float = 1.0) -> None:
    """Tick labels as plain numbers of multiples of `unit` (the axis label names it): 0.1, 20, 3,000, 50k; whole decades on a log axis."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: _plain(float(f"{value / unit:.6g}"))))
    if axis.get_scale() == "log":
        low, high = sorted(axis.get_view_interval())
        decades = math.log10(high / low)
        steps = (1.0,) if decades > 2.2 else (1.0, 2.0, 5.0)
        axis.set_major_locator(LogLocator(subs=steps, numticks=12))
        axis.set_minor_locator(NullLocator())


def log_span(values: Sequence[float], *, below: float = 1.6, above: float = 1.6) -> tuple[float, float]:
    """Limits of a log axis around positive values with room as factors; 1 to 10 when there are none."""
    positive = [float(v) for v in values if v > 0]
    return (min(positive) / below, max(positive) * above) if positive else (1.0, 10.0)
