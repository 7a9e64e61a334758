"""A report as Markdown, with its figures as SVG files in a folder beside it."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote

from roofline.report.document import Block, Document, Facts, Grid, Picture, Text, pieces


def markdown(document: Document, figures: PurePosixPath) -> bytes:
    """The document as GitHub-flavoured Markdown. figures: the folder, relative to the file, that holds KIND.svg of each figure."""
    parts = [f"# {_escaped(document.title)}", _escaped(document.subtitle), f"**{_escaped(document.verdict)}**"]
    rows = [f"| {_escaped(a.name)} | **{_escaped(a.value)}** | {_escaped(a.detail)} |" for a in document.answers]
    parts.append("\n".join([f"| | {_escaped(document.answers_are)} | |", "|---|---|---|", *rows]))
    for section in document.sections:
        parts += [f"## {_escaped(section.title)}", *(_block(block, figures) for block in section.blocks)]
    return ("\n\n".join([*parts, f"<sub>{_escaped(document.footer)}</sub>"]) + "\n").encode()


def _block(block: Block, figures: PurePosixPath) -> str:
    if isinstance(block, Text):
        return "\n".join(f"- {_prose(line)}" for line in block.lines) if block.bullets else "\n\n".join(map(_prose, block.lines))
    if isinstance(block, Facts):
        return "\n".join(["| | |", "|---|---|", *(f"| {_escaped(name)} | {_escaped(value)} |" for name, value in block.pairs)])
    if isinstance(block, Grid):
        return _table(block)
    if isinstance(block, Picture):
        path = quote(str(figures / f"{block.chart.kind}.svg"))
        return f"![{_escaped(block.chart.title)}]({path})"
    return f"```\n{block.text}\n```"


def _table(table: Grid) -> str:
    rule = "|".join("---:" if i in table.numeric else "---" for i in range(len(table.columns)))
    head = [f"**{_escaped(table.caption)}**", ""] if table.caption else []
    lines = [f"| {' | '.join(map(_escaped, table.columns))} |", f"|{rule}|"]
    lines += [f"| {' | '.join(_escaped(cell.text).strip() for cell in row)} |" for row in table.rows]
    return "\n".join([*head, *lines])


def _prose(line: str) -> str:
    return "".join(f"`{piece}`" if code else _escaped(piece) for piece, code in pieces(line))


def _escaped(text: str) -> str:
    for mark in "\\|*_`<[":
        text = text.replace(mark, f"\\{mark}")
    return text
