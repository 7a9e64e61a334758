"""A report as one HTML file: figures inside as SVG, nothing fetched, tables that sort, pages that print."""

from __future__ import annotations

import re
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from roofline.charts.chart import Chart
from roofline.charts.save import image
from roofline.report.document import Document, pieces


def html(document: Document) -> bytes:
    """The document as a self-contained page in UTF-8; the same bytes each time."""
    return _template().render(document=document, svg=svg, pieces=pieces, kind=lambda block: type(block).__name__).encode()


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("roofline.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def svg(chart: Chart) -> Markup:
    """The figure as an <svg> element with a title for those who cannot see it; its ids are its own on the page."""
    text = image(chart, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    text = re.sub(r'\bid="', f'id="{chart.kind}-', text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{chart.kind}-", text)
    title = Markup.escape(f"{chart.title}. {chart.subtitle}")
    return Markup(re.sub(r"(<svg[^>]*)>", rf'\1 role="img" aria-label="{title}">', text, count=1))  # noqa: S704  the figure is ours
