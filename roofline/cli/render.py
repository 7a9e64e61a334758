"""Answers as plain text: paragraphs, aligned tables without boxes, bars. Fits any width, coloured only on a terminal."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from roofline import units

READING_WIDTH = 100  # lines of prose longer than this are hard to read
_ASCII = str.maketrans({
    "█": "#", "▓": "=", "▒": "+", "░": ".", "·": ".", "–": "-", "—": "-", "µ": "u", "×": "x", "≤": "<", "≥": ">", "→": ">", "…": "~",
    "±": "~", "−": "-", "∞": "i", "◀": "<", "▶": ">", "•": "*",
})  # fmt: skip


@dataclass(frozen=True)
class Ink:
    """How text is emphasised on one output: with ANSI colours, or not at all."""

    colour: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Ink:
        """Colours only on a terminal that can show them and whose owner did not refuse them (NO_COLOR)."""
        wanted = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(wanted and stream.isatty())

    def __call__(self, text: str, style: str) -> str:
        codes = {"bold": "1", "dim": "2", "green": "32", "yellow": "33", "red": "31", "blue": "34", "magenta": "35", "cyan": "36"}
        return f"\x1b[{codes[style]}m{text}\x1b[0m" if self.colour and style else text


class Block(Protocol):
    """A part of a page."""

    def lines(self, width: int, ink: Ink) -> Iterator[str]:
        """Its lines, none longer than `width` unless a single word is."""


@dataclass(frozen=True)
class Heading:
    """A title; a blank line goes before it."""

    text: str

    def lines(self, width: int, ink: Ink) -> Iterator[str]:
        """The blank line and the title."""
        yield ""
        for line in textwrap.wrap(self.text, width):
            yield ink(line, "bold")


@dataclass(frozen=True)
class Paragraph:
    """Prose. bullet: a mark in front of its first line. style: of the whole text."""

    text: str
    bullet: str = ""
    style: str = ""

    def lines(self, width: int, ink: Ink) -> Iterator[str]:
        """Wrapped to a readable width; an empty text is an empty line."""
        if not self.text:
            yield ""
        lead = f"{self.bullet} " if self.bullet else ""
        wrapped = textwrap.wrap(
            self.text, min(width, READING_WIDTH), initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False
        )
        for line in wrapped:
            yield ink(line, self.style)


@dataclass(frozen=True)
class Column:
    """One column. key: its name in CSV; kind: of units.format, or text, integer, number, percent, parameters (in billions, as
    people say them), memory (bytes as GiB).

    unit: every cell in this unit ("ms"), named once in the title, in place of a prefix that changes from row to row.
    drop: narrow outputs leave out the columns with the highest number first, those of one number together (0: never).
    most: longest text cell, cut with "…".
    align: "right" for text that stands as numbers do.
    """

    key: str
    title: str
    kind: str = "text"
    unit: str = ""
    drop: int = 0
    most: int = 0
    align: str = ""

    def cell(self, value: Any) -> str:
        """`value` in base units, as text."""
        if value is None or value == "":
            return "" if self.kind == "text" else "–"
        if self.kind == "text":
            text = str(value)
            return text if not self.most or len(text) <= self.most else text[: self.most - 1] + "…"
        if self.kind == "integer":
            return f"{int(value):,}"
        if self.kind == "number":
            return units.significant(value)
        if self.kind == "percent":
            short = units.significant(100 * value, 3) if abs(value) >= 9.995 else f"{100 * value:.3g}"
            return f"{short} %" if value >= 0.001 or value <= 0 else "<0.1 %"
        if self.kind == "parameters":
            return units.format(value, "count").replace(" G", " B")
        if self.unit:
            return units.significant(value / units.parse(f"1 {self.unit}", self.kind), 3)
        return units.format(value, "bytes", binary=True) if self.kind == "memory" else units.format(value, self.kind)

    @property
    def heading(self) -> str:
        """Title with its unit."""
        return f"{self.title} {self.unit}" if self.unit else self.title


@dataclass(frozen=True)
class Table:
    """Rows of values in base units; a person sees them formatted, CSV as they are.

    marks: row number → style. more: columns that only CSV has.
    """

    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    marks: Mapping[int, str] = field(default_factory=dict)
    more: Sequence[str] = ()

    def lines(self, width: int, ink: Ink) -> Iterator[str]:
        """Title row and rows; says which columns a narrow output leaves out."""
        cells = {column.key: [column.heading, *(column.cell(row.get(column.key)) for row in self.rows)] for column in self.columns}
        wide = {key: max(map(len, texts)) for key, texts in cells.items()}
        shown, left_out = _columns_that_fit(self.columns, wide, width)
        for number in range(len(self.rows) + 1):
            parts = (_padded(cells[c.key][number], wide[c.key], c) for c in shown)
            line = "  ".join(parts).rstrip()
            yield ink(line, "dim") if number == 0 else ink(line, self.marks.get(number - 1, ""))
        if left_out:
            note = f"(not shown at this width: {', '.join(c.heading for c in left_out)}; --csv and --json have all)"
            yield from Paragraph(note, style="dim").lines(width, ink)


def _padded(text: str, wide: int, column: Column) -> str:
    return text.ljust(wide) if column.kind == "text" and column.align != "right" else text.rjust(wide)


def _columns_that_fit(columns: Sequence[Column], wide: Mapping[str, int], width: int) -> tuple[list[Column], list[Column]]:
    """(columns that fit, columns left out), each in their order; those of one drop number stay or go together."""
    shown = list(columns)
    while sum(wide[c.key] + 2 for c in shown) - 2 > width and (highest := max(c.drop for c in shown)):
        shown = [column for column in shown if column.drop != highest]
    return shown, [column for column in columns if column not in shown]


@dataclass(frozen=True)
class Bar:
    """Up to five parts of a whole, drawn to scale, with a legend: (label, value, style) each. kind: of the values, as in Column."""

    parts: Sequence[tuple[str, float, str]]
    total: float
    kind: str = "bytes"

    def lines(self, width: int, ink: Ink) -> Iterator[str]:
        """The bar, then one legend line per part."""
        room = min(width, READING_WIDTH)
        glyphs = "█▓▒░·"
        edges, reached = [0], 0.0
        for _, value, _ in self.parts:
            reached += max(value, 0.0)
            edges.append(min(room, round(room * reached / self.total)))
        drawn = (ink(glyphs[i] * (edges[i + 1] - edges[i]), style) for i, (_, _, style) in enumerate(self.parts))
        yield "".join(drawn) + ink("·" * (room - edges[-1]), "dim")
        longest = max(len(label) for label, _, _ in self.parts)
        cells = Column("", "", self.kind)
        for i, (label, value, style) in enumerate(self.parts):
            yield f"{ink(glyphs[i], style)} {label.ljust(longest)}  {cells.cell(value):>9}  {100 * value / self.total:>3.0f} %"


def assumed(notes: Sequence[str]) -> list[Block]:
    """What the numbers rest on, quietly, at the end of a page."""
    return [Heading("Assumed"), *(Paragraph(note, bullet="·", style="dim") for note in notes)] if notes else []


def page(blocks: Sequence[Block], width: int, ink: Ink, *, ascii_only: bool = False) -> str:
    """The blocks as text that ends with a newline."""
    text = "\n".join(line for block in blocks for line in block.lines(width, ink)).strip("\n") + "\n"
    return text.translate(_ASCII) if ascii_only else text
