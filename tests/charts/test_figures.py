"""Every kind for every case: it draws, its text stays on the paper and apart, its data is there, its bytes are the same again."""

from __future__ import annotations

import csv
import io
import itertools
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg, RendererAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from roofline.charts import KINDS, Chart, Request, build, style
from roofline.charts.save import draw, image, table
from roofline.ledger import Parallel
from roofline.planning.load import Load
from roofline.profiles.catalog import load_hardware
from tests.charts.conftest import CASES, Ask

EVERY = [pytest.param(kind, case, id=f"{kind} {case}") for kind in KINDS for case in CASES]


Corners = np.ndarray  # of a rectangle, in order around it, shape (4, 2)


def texts_on_paper(chart: Chart) -> list[tuple[str, Corners]]:
    """Each visible text with its box in pixels, as the renderer measures it; checks that it lies on the figure."""
    with style.applied(chart.title + chart.subtitle):
        figure = Figure(figsize=(style.WIDTH, style.HEIGHT))
        renderer = FigureCanvasAgg(figure).get_renderer()
        draw(chart, figure)
        figure.draw(renderer)
        found, undrawn = [], _undrawn(figure)
        for text in figure.findobj(Text):
            if not text.get_visible() or not text.get_text().strip() or id(text) in undrawn:
                continue
            box = Text.get_window_extent(text, renderer)  # of an annotation: without its leader
            assert box.x0 >= -1, (text.get_text(), box)
            assert box.y0 >= -1, (text.get_text(), box)
            assert box.x1 <= figure.bbox.width + 1, (text.get_text(), box)
            assert box.y1 <= figure.bbox.height + 1, (text.get_text(), box)
            found.append((text.get_text(), _corners(text, renderer)))
        return found


def _corners(text: Text, renderer: RendererAgg) -> Corners:
    """The box of a text, turned around its anchor as the text is."""
    angle = np.radians(text.get_rotation())
    if text.get_rotation_mode() != "anchor" or not angle:
        (x0, y0), (x1, y1) = Text.get_window_extent(text, renderer).get_points()
        return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)])
    anchor = text.get_transform().transform(text.get_unitless_position())
    text.set_rotation(0)
    (x0, y0), (x1, y1) = Text.get_window_extent(text, renderer).get_points() - anchor
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    return np.array([(x0, y0), (x1, y0), (x1, y1), (x0, y1)]) @ turn + anchor


def _undrawn(figure: Figure) -> set[int]:
    """Labels of ticks outside the view: they stay in the tree of artists."""
    found: set[int] = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        shown = {id(tick) for tick in axis._update_ticks()}
        found |= {id(tick.label1) for tick in (*axis.majorTicks, *axis.minorTicks) if id(tick) not in shown}
    return found


def overlapping(texts: list[tuple[str, Corners]]) -> list[tuple[str, str]]:
    """Pairs of texts whose boxes share more than a sliver: no side of either parts them."""
    return [(a, b) for (a, one), (b, other) in itertools.combinations(texts, 2) if _shared(one, other) > 1.5]


def _shared(one: Corners, other: Corners) -> float:
    """How far two rectangles reach into each other, along the side that parts them best."""
    sides = np.concatenate([np.diff(box[:3], axis=0) for box in (one, other)])
    depths = []
    for x, y in sides / np.linalg.norm(sides, axis=1, keepdims=True):
        a, b = one @ (-y, x), other @ (-y, x)
        depths.append(min(a.max(), b.max()) - max(a.min(), b.min()))
    return float(min(depths))


@pytest.mark.parametrize(("kind", "case"), EVERY)
def test_no_text_leaves_the_paper_or_meets_another(kind: str, case: str, ask: Ask) -> None:
    assert overlapping(texts_on_paper(build(kind, ask(case)))) == []


@pytest.mark.parametrize(("kind", "case"), EVERY)
def test_the_title_is_a_finding_and_axes_have_units(kind: str, case: str, ask: Ask) -> None:
    chart = build(kind, ask(case))
    assert re.search(r"\d|fits|waits", chart.title)
    words = " ".join(text for text, _ in texts_on_paper(chart))
    assert re.search(r"\((TFLOP|TFLOP/s|ms|µs|s|GiB|%|FLOP per byte.*)\)|tokens/s|sequences in the batch", words)
    assert chart.request.command in words.replace("\n", " ")


@pytest.mark.parametrize(("kind", "case"), EVERY)
def test_the_data_is_a_table_with_one_header(kind: str, case: str, ask: Ask) -> None:
    chart = build(kind, ask(case))
    rows = list(csv.DictReader(io.StringIO(table(chart.rows).decode())))
    assert len(rows) == len(chart.rows) > 0
    assert all(set(row) == set(rows[0]) and None not in row.values() for row in rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("form", ["svg", "pdf", "png"])
def test_the_same_input_gives_the_same_bytes(kind: str, form: str, ask: Ask) -> None:
    request = ask("llama-2-7b on A100")
    assert image(build(kind, request), form) == image(build(kind, request), form)


@pytest.mark.parametrize("kind", KINDS)
def test_svg_is_well_formed_and_keeps_its_text_as_text(kind: str, ask: Ask) -> None:
    chart = build(kind, ask("deepseek-v3 on 8 H200"))
    root = ET.fromstring(image(chart, "svg"))  # noqa: S314  our own file
    words = " ".join("".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert chart.title.split(" ")[0] in words
    assert b"'DejaVu Sans', Verdana, sans-serif" in image(chart, "svg")


@pytest.mark.parametrize("kind", KINDS)
def test_pdf_embeds_its_fonts_and_has_no_date(kind: str, ask: Ask) -> None:
    content = image(build(kind, ask("llama-2-7b on A100")), "pdf")
    assert content.count(b"/FontFile2") >= 1
    assert b"/Type3" not in content
    assert b"CreationDate" not in content


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "error"])
@pytest.mark.parametrize("lengths", [(1, 1), (10_000_000, 1000)], ids=["shortest", "longest"])
def test_lengths_from_one_token_to_ten_million(kind: str, lengths: tuple[int, int], ask: Ask) -> None:
    texts_on_paper(build(kind, ask("llama-2-7b on A100", load=Load(*lengths))))


@pytest.mark.parametrize("kind", ["batch", "heatmap", "pareto", "budget", "waterfall", "roofline"])
def test_what_does_not_fit_is_drawn_and_said(kind: str, ask: Ask) -> None:
    chart = build(kind, ask("llama-3.1-70b tp 4 on H100", parallel=Parallel()))
    texts_on_paper(chart)
    if kind in ("batch", "heatmap", "budget"):
        assert re.search(r"not fit|Nothing fits|Not one", chart.title)


@pytest.mark.parametrize("name", ["通义千问-超长模型名称" * 8, "Löwe-Ελλάδα-модель", "a$b_1$", "<script>&amp;", "x" * 300])
def test_names_of_any_kind(name: str, ask: Ask) -> None:
    request = ask("llama-2-7b on A100")
    chart = build("roofline", replace(request, model=request.the_model.model_copy(update={"name": name})))
    texts_on_paper(chart)
    ET.fromstring(image(chart, "svg"))  # noqa: S314  our own file


def five_hundred_ops(request: Request) -> Request:
    """The request's model with 70 different kinds of layers: some 500 operations a pass."""
    model = request.the_model
    layer = model.layers["dense"]
    layers = {f"l{i}": layer.model_copy(update={"ffn": layer.ffn.model_copy(update={"intermediate": 1024 * (1 + i)})}) for i in range(70)}
    data = model.model_dump() | {"layers": {name: each.model_dump() for name, each in layers.items()}, "order": " + ".join(layers)}
    return replace(request, model=type(model).model_validate(data))


def test_labels_thin_out_among_five_hundred_ops(ask: Ask) -> None:
    request = five_hundred_ops(ask("llama-2-7b on A100"))
    chart = build("roofline", request)
    assert sum(row["series"] == "op" and row["phase"] == "prefill" for row in chart.rows) > 490
    assert overlapping(texts_on_paper(chart)) == []


def test_several_devices_share_the_axes(ask: Ask) -> None:
    request = ask("llama-2-7b on A100")
    others = tuple(ask(case).devices[0] for case in CASES)
    chart = build("roofline", replace(request, devices=others))
    assert len({row["name"] for row in chart.rows if row["series"] == "roof"}) == 4
    assert overlapping(texts_on_paper(chart)) == []
    budget = build("budget", replace(request, devices=others))
    assert len({row["hardware"] for row in budget.rows}) == 4
    texts_on_paper(budget)


def test_eight_devices_with_their_links_share_the_axes(ask: Ask) -> None:
    names = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "mi300x", "l40s", "rtx-4090", "v100-sxm-32gb")
    request = ask("llama-3.1-70b tp 4 on H100", devices=tuple(map(load_hardware, names)), table=None)
    assert overlapping(texts_on_paper(build("roofline", request))) == []
