"""A report as PDF: typeset pages with embedded fonts, text that can be selected, and figures as vectors."""

from __future__ import annotations

import io

from matplotlib.backends.backend_pdf import PdfPages

from roofline.charts import style
from roofline.charts.style import text_width, wrapped
from roofline.report.document import Answer, Block, Code, Document, Facts, Grid, Picture, Text, pieces
from roofline.report.typeset import BODY, LEFT, RIGHT, SMALL, WIDTH, Pages


def pdf(document: Document) -> bytes:
    """The document as a PDF file; the same bytes each time."""
    out = io.BytesIO()
    with style.applied(document.title + document.subtitle):
        pages = Pages(document.footer)
        _opening(pages, document)
        for section in document.sections:
            pages.heading(section.title)
            for block in section.blocks:
                _block(pages, block)
        pages.number()
        metadata = {"Creator": "roofline", "Title": document.title, "CreationDate": None}
        with PdfPages(out, metadata=metadata) as file:
            for page in pages.figures:
                file.savefig(page)
    return out.getvalue()


def _opening(pages: Pages, document: Document) -> None:
    """Title, verdict, and the answers side by side."""
    pages.need(0)
    for line in wrapped(document.title, WIDTH - LEFT - RIGHT, 20, bold=True):
        pages.line(line, size=20, bold=True)
    pages.paragraph(document.subtitle, size=SMALL + 0.5, colour=style.MUTED)
    pages.y += 8
    pages.paragraph(document.verdict, size=11)
    pages.y += 8
    height, gap = 84.0, 10.0
    width = (WIDTH - LEFT - RIGHT - gap * (len(document.answers) - 1)) / max(len(document.answers), 1)
    start = pages.y
    for index, answer in enumerate(document.answers):
        pages.y = start
        _answer(pages, answer, LEFT + index * (width + gap), width, height)
    pages.y = start + height + 4


def _answer(pages: Pages, answer: Answer, x: float, width: float, height: float) -> None:
    pages.box(x, width, height, "#eef4f9")
    pages.y += 8
    pages.line(answer.name, size=SMALL, colour=style.MUTED, x=x + 9)
    size = next(s for s in (18, 16, 14, 12, 10) if s == 10 or text_width(answer.value, s, True) <= width - 18)
    pages.line(answer.value, size=size, bold=True, x=x + 9)
    for line in wrapped(answer.detail, width - 18, SMALL - 0.5):
        pages.line(line, size=SMALL - 0.5, colour=style.MUTED, x=x + 9)


def _block(pages: Pages, block: Block) -> None:
    if isinstance(block, Text):
        for item in block.lines:
            line = "".join(piece for piece, _ in pieces(item))
            pages.paragraph(line, mark="–" if block.bullets else "", size=BODY if not block.bullets else SMALL + 0.5)
            pages.y += 2
    elif isinstance(block, Facts):
        for name, value in block.pairs:
            lines = wrapped(value, WIDTH - LEFT - RIGHT - 76, SMALL + 0.5)
            pages.need((SMALL + 0.5) * 1.38 * len(lines))
            before = pages.y
            pages.line(name, size=SMALL + 0.5, colour=style.MUTED)
            pages.y = before
            for line in lines:
                pages.line(line, size=SMALL + 0.5, x=LEFT + 76)
        pages.y += 4
    elif isinstance(block, Grid):
        pages.gap(2)
        pages.table(block)
    elif isinstance(block, Picture):
        pages.gap(6)
        pages.picture(block.chart)
    elif isinstance(block, Code):
        _code(pages, block)


def _code(pages: Pages, block: Code) -> None:
    lines = wrapped(block.text, WIDTH - LEFT - RIGHT - 16, SMALL)
    height = len(lines) * SMALL * 1.38 + 12
    pages.need(height)
    pages.box(LEFT, WIDTH - LEFT - RIGHT, height, "#f2f2f2")
    start = pages.y
    pages.y += 5
    for line in lines:
        pages.line(line, size=SMALL, x=LEFT + 8)
    pages.y = start + height + 6
