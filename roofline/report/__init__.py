"""Documents: the whole story of a plan as PDF, HTML or Markdown."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from roofline.charts.save import image, write_all
from roofline.errors import InputError
from roofline.report.document import Document
from roofline.report.results import read_result
from roofline.report.story import tell

FORMATS = ("pdf", "html", "md")


def format_of(path: Path) -> str:
    """pdf, html or md. Raises InputError for another suffix."""
    found = {"htm": "html", "markdown": "md"}.get(name := path.suffix.lower().lstrip("."), name)
    if found not in FORMATS:
        raise InputError(
            f"{path}: a report is written as {', '.join('.' + f for f in FORMATS)}; {path.suffix or 'no suffix'} is none of them"
        )
    return found


def write(document: Document, path: Path) -> list[Path]:
    """Writes the document whole or not at all and returns the files; Markdown puts its figures in STEM-figures beside it.

    Raises InputError for the suffix, RooflineError when it cannot write.
    """
    form = format_of(path)
    folder = path.with_name(f"{path.stem}-figures") if form == "md" else None
    if folder:
        from roofline.report.markdown import markdown

        files = {folder / f"{chart.kind}.svg": image(chart, "svg") for chart in document.charts}
        files[path] = markdown(document, PurePosixPath(folder.name))
    elif form == "html":
        from roofline.report.html import html

        files = {path: html(document)}
    else:
        from roofline.report.pdf import pdf

        files = {path: pdf(document)}
    write_all(files, folder)
    return list(files)


__all__ = ["FORMATS", "Document", "format_of", "read_result", "tell", "write"]
