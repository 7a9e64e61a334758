"""Charts as files: PDF, PNG or SVG by the suffix, the data as CSV beside it, both whole or not at all, the same bytes each time."""

from __future__ import annotations

import csv
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure, SubFigure

from roofline.charts import style
from roofline.charts.chart import Chart
from roofline.errors import InputError, RooflineError

FORMATS = ("pdf", "png", "svg")
DPI = 220
_METADATA: dict[str, dict[str, Any]] = {  # no dates: the same input gives the same bytes
    "pdf": {"Creator": "roofline", "CreationDate": None},
    "png": {"Software": "roofline"},
    "svg": {"Creator": "roofline", "Date": None},
}


def format_of(path: Path) -> str:
    """pdf, png or svg. Raises InputError for another suffix."""
    found = path.suffix.lower().lstrip(".")
    if found not in FORMATS:
        raise InputError(
            f"{path}: a chart is written as {', '.join('.' + f for f in FORMATS)}; {path.suffix or 'no suffix'} is none of them"
        )
    return found


def check_place(path: Path) -> None:
    """Raises InputError when a file cannot be written there: before the work rather than after it."""
    if path.is_dir():
        raise InputError(f"{path}: is a folder; give a file name")
    folder = path.resolve().parent
    if not folder.is_dir():
        raise InputError(f"{path}: cannot write: there is no folder {path.parent}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"{path}: cannot write: the folder {path.parent} is read-only for you")


def image(chart: Chart, form: str) -> bytes:
    """The drawn figure as a file of one of FORMATS."""
    out = io.BytesIO()
    with style.applied(chart.title + chart.subtitle):
        figure = Figure(figsize=(style.WIDTH, style.HEIGHT))
        draw(chart, figure)
        figure.savefig(out, format=form, dpi=DPI if form == "png" else 72, metadata=_METADATA[form] | _titled(chart, form))
    content = out.getvalue()
    # Verdana has the widths of the house font and is on the machines that lack it
    return content.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif") if form == "svg" else content


def draw(chart: Chart, figure: Figure | SubFigure) -> None:
    """Frame and content onto a figure or a part of a page; inside style.applied()."""
    style.frame(figure, chart.title, chart.subtitle, chart.footer)
    chart.paint(figure)


def _titled(chart: Chart, form: str) -> dict[str, str]:
    return {"Title": chart.title} if form != "png" else {}


def table(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as CSV in UTF-8: numbers as exact as Python prints them, unknown as empty."""
    out = io.StringIO()
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue().encode()


def save(chart: Chart, path: Path) -> list[Path]:
    """Writes the figure and its CSV; returns both paths.

    Raises InputError for the suffix and where the CSV would replace the table that the figure was made of, RooflineError when it
    cannot write.
    """
    form = format_of(path)
    data = path.with_suffix(".csv")
    table_read = chart.request.table
    if table_read and table_read.resolve() == data.resolve():
        raise InputError(f"{path}: the figure's data would replace {table_read}, which it is made of; give another name")
    write_all({path: image(chart, form), data: table(chart.rows)})
    return [path, data]


def write_all(files: Mapping[Path, bytes], folder: Path | None = None) -> None:
    """Writes every file beside its place, then renames them all: an error or Ctrl-C before that leaves nothing behind.

    folder: made when it is missing, and removed again when the files cannot be written. Raises InputError for a folder where a
    file should go, RooflineError for a place that cannot be written.
    """
    waiting: dict[Path, str] = {}
    path, made = folder or next(iter(files)), False
    try:
        if folder and not folder.is_dir():
            folder.mkdir()
            made = True
        for path, content in files.items():
            check_place(path)
            with tempfile.NamedTemporaryFile("wb", dir=path.resolve().parent, prefix=f".{path.name[:60]}.", delete=False) as file:
                waiting[path] = file.name
                file.write(content)
            os.chmod(file.name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        for path in files:
            os.replace(waiting[path], path.resolve())
            del waiting[path]
        made = False
    except OSError as error:
        raise RooflineError(f"{path}: cannot write: {error.strerror or error}") from None
    finally:
        for name in waiting.values():
            Path(name).unlink(missing_ok=True)
        if folder and made:
            with suppress(OSError):  # another run put its figures there
                folder.rmdir()


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
