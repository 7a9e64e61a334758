"""What a report says in which words: only of the load and the experts there are, with the command that writes it again."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from html import unescape
from pathlib import Path, PurePosixPath

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from roofline.charts import Request, style
from roofline.ledger import Parallel
from roofline.planning.load import Load
from roofline.planning.plan import make_plan
from roofline.profiles.catalog import load_hardware, load_model
from roofline.report import Document, tell, write
from roofline.report.document import Section, Text
from roofline.report.html import html
from roofline.report.markdown import markdown
from roofline.report.typeset import Pages
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture


def _document(model: str) -> Document:
    request = Request(load_model(model), (load_hardware("h100-sxm"),), Parallel(tp=2), load=Load(1024, 256))
    return tell(make_plan(request.setup, request.load), request)


@pytest.fixture(scope="module")
def document() -> Document:
    return _document("llama-2-7b")


@pytest.mark.parametrize(("batch", "told"), [((), False), (("--batch", 1), True), (("--batch", 64), True)])
def test_replicas_and_cost_are_those_of_a_load_that_was_given(batch: tuple[object, ...], told: bool, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    assert cli("report", "llama-2-7b", "-H", "h100-sxm", *batch, "-o", tmp_path / "x.md").code == 0
    text = (tmp_path / "x.md").read_text()
    assert ("The load takes 1 replica, 1 GPU; what binds a replica" in text) is told
    assert ("USD per million output tokens" in text) is told


@pytest.mark.parametrize("suffix", ["html", "md"])
def test_the_command_under_a_report_writes_it_again(suffix: str, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    """With -o and the file's own name; the folder it happens to be in is nobody's business."""
    out = tmp_path / f"my plan.{suffix}"
    assert cli("report", "llama-2-7b", "-H", "h100-sxm", "-o", out).code == 0
    written = [out, *(tmp_path / "my plan-figures").glob("*.svg")]
    for text in (unescape(file.read_text()) for file in written):
        assert f"roofline report llama-2-7b -H h100-sxm -o 'my plan.{suffix}'" in text
        assert str(tmp_path) not in text


@pytest.mark.parametrize(("model", "routes"), [("llama-2-7b", False), ("mixtral-8x7b", True)])
def test_experts_are_spoken_of_where_there_are_some(model: str, routes: bool) -> None:
    (limits,) = (section.blocks[0] for section in _document(model).sections if section.title == "What is not in these numbers")
    assert isinstance(limits, Text)
    assert any("experts" in line for line in limits.lines) is routes


def test_what_stands_between_backticks_is_code(document: Document, tmp_path: Path) -> None:
    lines = ["`a_b <i>` is one | a lone ` is not"]
    small = replace(document, sections=[Section("Words", [Text(lines, bullets=True), Text(lines)])])
    assert html(small).decode().count("<code>a_b &lt;i&gt;</code> is one | a lone ` is not<") == 2
    assert markdown(small, PurePosixPath("x")).decode().count(r"`a_b <i>` is one \| a lone \` is not") == 2
    if shutil.which("pdftotext"):
        (file,) = write(small, tmp_path / "x.pdf")
        text = subprocess.run(["pdftotext", file, "-"], capture_output=True, text=True, check=True).stdout
        assert text.count("a_b <i> is one | a lone ` is not") == 2


def test_figures_on_a_page_keep_their_words_inside_its_margins(document: Document) -> None:
    pages = Pages("footer")
    with style.applied(""):
        for chart in document.charts:
            pages.picture(replace(chart, title="a finding of many words " * 6, subtitle="what is shown " * 30))
        for page in pages.figures:
            canvas = FigureCanvasAgg(page)
            for part in page.subfigs:
                words = [text.get_window_extent(canvas.get_renderer()) for text in part.texts]
                assert max(box.x1 for box in words) <= part.bbox.x1


def test_what_the_values_of_the_answers_are_is_said(document: Document) -> None:
    text = markdown(replace(document, answers_are="median error"), PurePosixPath("x")).decode()
    assert "| | median error | |" in text
    assert "| | expected | |" not in text
