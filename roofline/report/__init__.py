"""Documents: the whole story of a plan as PDF, HTML or Markdown."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from roofline.charts.save import image, write_all
from roofline.errors import InputError, RooflineError
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
    if form == "md":
        from roofline.report.markdown import markdown

        folder = _folder(path.with_name(f"{path.stem}-figures"))
        files = {folder / f"{chart.kind}.svg": image(chart, "svg") for chart in document.charts}
        files[path] = markdown(document, PurePosixPath(folder.name))
    elif form == "html":
        from roofline.report.html import html

        files = {path: html(document)}
    else:
        from roofline.report.pdf import pdf

        files = {path: pdf(document)}
    write_all(files)
    return list(files)


def _folder(path: Path) -> Path:
    """The folder of the figures, made when it is missing."""
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise RooflineError(f"{path}: cannot make this folder for the figures: {error.strerror or error}") from None
    return path


__all__ = ["FORMATS", "Document", "format_of", "read_result", "tell", "write"]
