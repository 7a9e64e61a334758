"""Pages of A4 that fill from top to bottom: wrapped text, tables that continue, figures as vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from roofline.charts import style
from roofline.charts.chart import Chart
from roofline.charts.save import draw
from roofline.charts.style import text_width, wrapped
from roofline.report.document import Grid

WIDTH, HEIGHT = 8.27 * 72, 11.69 * 72  # points
LEFT, RIGHT, TOP, BOTTOM = 46.0, 46.0, 46.0, 46.0
ASIDE = 22.0  # margin of figures, narrower: two of them fill a page
BODY, SMALL, TABLE = 9.5, 8.0, 7.6
_LEADING = 1.38


@dataclass
class Pages:
    """The pages so far. y: points from the top of the last one at which the next block begins. footer: at the foot of each."""

    footer: str
    figures: list[Figure] = field(default_factory=list)
    y: float = 0.0

    @property
    def page(self) -> Figure:
        """The page under way; the first one when there is none."""
        if not self.figures:
            self.turn()
        return self.figures[-1]

    def turn(self) -> None:
        """Begins a new page."""
        self.figures.append(Figure(figsize=(WIDTH / 72, HEIGHT / 72)))
        self.y = TOP

    def need(self, height: float) -> None:
        """Turns the page when less than `height` points are left."""
        if not self.figures or self.y + height > HEIGHT - BOTTOM:
            self.turn()

    def gap(self, height: float) -> None:
        """White space, but none at the top of a page."""
        if self.figures and self.y > TOP:
            self.y += height

    def line(
        self, text: str, *, size: float = BODY, bold: bool = False, colour: str = style.INK, x: float = LEFT, align: str = "left"
    ) -> None:
        """One line of text at the current height."""
        self.need(size * _LEADING)
        self._write(text, x, size, bold, colour, align)
        self.y += size * _LEADING

    def paragraph(
        self, text: str, *, size: float = BODY, bold: bool = False, colour: str = style.INK, mark: str = "", indent: float = 0.0
    ) -> None:
        """Wrapped text; mark: a bullet before its first line."""
        x = LEFT + indent + (text_width("– ", size) if mark else 0.0)
        for number, line in enumerate(wrapped(text, WIDTH - RIGHT - x, size, bold)):
            self.need(size * _LEADING)
            if mark and number == 0:
                self._write(mark, LEFT + indent, size, False, style.MUTED)
            self.line(line, size=size, bold=bold, colour=colour, x=x)

    def heading(self, text: str) -> None:
        """A section's title with a rule, never alone at the foot of a page."""
        self.gap(16)
        self.need(140)
        self.line(text, size=14, bold=True)
        self.rule(style.BLUE, 1.2)
        self.y += 7

    def rule(self, colour: str = style.FAINT, width: float = 0.6) -> None:
        """A line across the page."""
        y = 1 - self.y / HEIGHT
        self.page.add_artist(Line2D([LEFT / WIDTH, 1 - RIGHT / WIDTH], [y, y], color=colour, lw=width))

    def box(self, x: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle from the current height down."""
        patch = Rectangle(
            (x / WIDTH, 1 - (self.y + height) / HEIGHT),
            width / WIDTH,
            height / HEIGHT,
            facecolor=colour,
            lw=0,
            transform=self.page.transFigure,
        )
        self.page.add_artist(patch)

    def picture(self, chart: Chart) -> None:
        """A figure as wide as the page."""
        width = WIDTH - 2 * ASIDE
        height = width * style.HEIGHT / style.WIDTH
        self.need(height)
        rows, columns = (max(self.y, 1e-3), height, max(HEIGHT - self.y - height, 1e-3)), (ASIDE, width, ASIDE)
        spec = self.page.add_gridspec(3, 3, height_ratios=rows, width_ratios=columns, hspace=0, wspace=0)
        draw(chart, self.page.add_subfigure(spec[1, 1]))
        self.y += height + 8

    def table(self, table: Grid) -> None:
        """Rows with wrapped cells; the head is repeated on every page that the table reaches."""
        widths = _column_widths(table)
        if table.caption:
            self.gap(6)
            self.need(60)
            self.paragraph(table.caption, size=SMALL, bold=True)
        self._row([(title, True) for title in table.columns], widths, table.numeric)
        for row in table.rows:
            tall = max(len(_lines(c.text, w, False)) for c, w in zip(row, widths, strict=True)) * TABLE * _LEADING + 3
            if self.y + tall > HEIGHT - BOTTOM:
                self.turn()
                self._row([(title, True) for title in table.columns], widths, table.numeric)
            self._row([(c.text, False) for c in row], widths, table.numeric)
        self.y += 6

    def _row(self, cells: Sequence[tuple[str, bool]], widths: Sequence[float], numeric: frozenset[int]) -> None:
        columns = [_lines(text, width, bold) for (text, bold), width in zip(cells, widths, strict=True)]
        start, x = self.y, LEFT
        for index, (lines, width) in enumerate(zip(columns, widths, strict=True)):
            right = index in numeric
            for number, line in enumerate(lines):
                self.y = start + number * TABLE * _LEADING
                colour = style.MUTED if cells[index][1] else style.INK
                self._write(line, x + width - 6 if right else x, TABLE, cells[index][1], colour, "right" if right else "left")
            x += width
        self.y = start + max(map(len, columns)) * TABLE * _LEADING + 1.5
        self.rule()
        self.y += 1.5

    def _write(self, text: str, x: float, size: float, bold: bool, colour: str, align: str = "left") -> None:
        weight = "bold" if bold else "normal"
        self.page.text(x / WIDTH, 1 - (self.y + size) / HEIGHT, text, size=size, weight=weight, color=colour, ha=align, va="baseline")

    def number(self) -> None:
        """Footers, once all pages are there."""
        for index, page in enumerate(self.figures, start=1):
            page.text(LEFT / WIDTH, 26 / HEIGHT, style.shortened(self.footer, WIDTH - LEFT - RIGHT - 40, 7), size=7, color=style.MUTED)
            page.text(1 - RIGHT / WIDTH, 26 / HEIGHT, f"{index} / {len(self.figures)}", size=7, color=style.MUTED, ha="right")


def _lines(text: str, width: float, bold: bool) -> list[str]:
    indent = "  " if text.startswith("  ") else ""
    return [indent + line for line in wrapped(text, width - 6 - text_width(indent, TABLE), TABLE, bold)]


def _column_widths(table: Grid) -> list[float]:
    """As wide as the widest cell; when that is too much, the widest columns shrink and their text wraps."""
    room = WIDTH - LEFT - RIGHT
    wanted = []
    for index, title in enumerate(table.columns):
        texts = [text_width(row[index].text, TABLE) for row in table.rows]
        wanted.append(max([*texts, text_width(title, TABLE, bold=True)]) + 10)
    limit = max(wanted, default=0.0)
    while sum(min(w, limit) for w in wanted) > room and limit > 20:
        limit -= 2
    return [min(w, limit) for w in wanted]
