"""A report before it has a form: an answer in a few numbers, and sections of text, facts, tables, figures and commands."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline import units
from roofline.charts.chart import Chart


@dataclass(frozen=True)
class Cell:
    """What a person reads, and the value that a table sorts by (None: the text itself)."""

    text: str
    value: float | None = None


def cell(value: float | str | None, kind: str = "text", *, binary: bool = False) -> Cell:
    """A value in base units as a cell. kind: of units.format, or text, integer, percent."""
    if isinstance(value, str) or value is None:
        return Cell("–" if value is None else value)
    if kind == "integer":
        return Cell(f"{value:,.0f}", float(value))
    if kind == "percent":
        return Cell(f"{units.significant(100 * value)} %", float(value))
    return Cell(units.format(value, kind, binary=binary), float(value))


_CODE = re.compile(r"`([^`\n]+)`")


def pieces(line: str) -> list[tuple[str, bool]]:
    """A line of Text cut at what stands `between backticks`: each piece without them, and whether it is code."""
    return [(piece, place % 2 == 1) for place, piece in enumerate(_CODE.split(line)) if piece]


@dataclass(frozen=True)
class Text:
    """A paragraph; a list of several items when bullets. What stands `between backticks` is code."""

    lines: Sequence[str]
    bullets: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values, one pair a line."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Grid:
    """A table. numeric: columns (by index) that stand right-aligned."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    numeric: frozenset[int] = frozenset()
    caption: str = ""


@dataclass(frozen=True)
class Code:
    """A command to copy."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure with its finding as caption."""

    chart: Chart


Block = Text | Facts | Grid | Code | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Answer:
    """One number of the answer: what it is, its expected value, and the line below with bound and interval."""

    name: str
    value: str
    detail: str


@dataclass(frozen=True)
class Document:
    """A whole report. verdict: one sentence that says whether it fits. answers_are: what the values of its answers are."""

    title: str
    subtitle: str
    verdict: str
    answers: Sequence[Answer]
    sections: Sequence[Section]
    footer: str = ""
    answers_are: str = "expected"

    @property
    def charts(self) -> list[Chart]:
        """All figures in reading order."""
        return [block.chart for section in self.sections for block in section.blocks if isinstance(block, Picture)]


@dataclass(frozen=True)
class Column:
    """A column of a table: title, key of its values, their kind (as for `cell`), bytes as GiB when binary."""

    title: str
    key: str
    kind: str = "text"
    binary: bool = False


def grid(columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], caption: str = "") -> Grid:
    """Rows of values in base units as a table."""
    numeric = frozenset(i for i, column in enumerate(columns) if column.kind != "text")
    cells = [[cell(row.get(c.key), c.kind, binary=c.binary) for c in columns] for row in rows]
    return Grid([c.title for c in columns], cells, numeric, caption)
