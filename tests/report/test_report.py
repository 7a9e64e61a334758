"""Reports: the same story in three forms, whole, the same bytes each time, readable without a network."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import pytest

from roofline.charts import Request
from roofline.errors import RecordError
from roofline.ledger import Parallel
from roofline.planning.load import Load
from roofline.planning.plan import make_plan
from roofline.profiles.catalog import load_hardware, load_model
from roofline.report import Document, tell, write
from roofline.report.document import Cell, Facts, Grid, Text
from roofline.report.html import html
from roofline.report.markdown import markdown
from roofline.report.pdf import pdf
from roofline.report.results import result_sections
from roofline.report.typeset import Pages
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome", "chrome") if (path := shutil.which(name))), None)
SIMULATION = {
    "command": "simulate", "requests": 300, "makespan_s": 31.5, "output_tokens_per_s": 2345.6, "preemptions": 4,
    "ttft_s": {"mean": 0.2, "p50": 0.15, "p90": 0.4, "p99": 0.9}, "tpot_s": {"mean": 0.02, "p50": 0.02, "p90": 0.03, "p99": 0.05},
}  # fmt: skip
LOAD_TEST = {
    "command": "loadtest", "knee": {"concurrency": 16.3, "ci": [12, 18], "reason": ""}, "client": {"trustworthy": False},
    "stages": [{"concurrency": 1, "ttft_s": {"p50": 0.1, "p99": 0.2}, "tpot_s": {"p50": 0.01, "p99": 0.02}, "requests_ok": 8,
                "requests_failed": 0, "output_tokens_per_s": 99.0}],
}  # fmt: skip
VALIDATION = {
    "command": "validate",
    "verdict": "PASS",
    "rows": [{"op": "gemm", "measured_s": 1e-3, "expected_s": 1.1e-3, "verdict": "PASS"}],
}


def _document(request: Request, *results: dict[str, object]) -> Document:
    return tell(make_plan(request.setup, replace(request.load, concurrency=request.batch)), request, results)


@pytest.fixture(scope="module")
def request_() -> Request:
    device = load_hardware("h100-sxm")
    return Request(load_model("llama-3.1-70b"), (device,), Parallel(tp=4), batch=32, load=Load(2048, 256), command="roofline report … -o x")


@pytest.fixture(scope="module")
def document(request_: Request) -> Document:
    return _document(request_, SIMULATION, LOAD_TEST, VALIDATION)


@pytest.fixture(scope="module")
def page(document: Document) -> str:
    return html(document).decode()


def test_the_sections_of_a_story(document: Document, request_: Request) -> None:
    titles = [section.title for section in document.sections]
    for word in (
        "asked",
        "Prefill and decode",
        "Memory",
        "Batch",
        "runs out first",
        "ledger",
        "How each number",
        "not in these",
        "Run it again",
    ):
        assert any(word in title for title in titles), word
    assert {"Simulation", "Load test", "Validation: predicted against measured"} <= set(titles)
    assert not {"Simulation", "Load test"} & {section.title for section in _document(request_).sections}
    assert len(document.answers) == 3
    assert all("bound" in answer.detail and "interval" in answer.detail for answer in document.answers)


def test_the_same_bytes_each_time(document: Document, request_: Request, page: str) -> None:
    again = _document(request_, SIMULATION, LOAD_TEST, VALIDATION)
    assert html(again).decode() == page
    assert pdf(again) == pdf(document)


class Reader(HTMLParser):
    """Ids, addresses and open elements of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if found.get("id") else []
        self.links += [value for name, value in found.items() if name in ("src", "href", "xlink:href", "action", "data") and value]
        if tag not in ("meta", "link", "br", "hr", "img", "input"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_html_asks_nothing_of_the_network(page: str) -> None:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert all(link.startswith(("#", "data:")) for link in reader.links), reader.links
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org)", page)
    assert len(reader.ids) == len(set(reader.ids))
    assert {link[1:] for link in reader.links if link.startswith("#")} <= set(reader.ids)


def test_html_escapes_what_it_is_given(request_: Request) -> None:
    model = request_.the_model.model_copy(update={"name": "<script>alert(1)</script>"})
    assert "<script>alert(1)" not in html(_document(replace(request_, model=model))).decode()


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")
@pytest.mark.parametrize("width", [400, 1400])
def test_a_browser_shows_it_sorts_it_and_has_no_complaints(width: int, page: str, tmp_path: Path) -> None:
    """Without a network: the page fits its width, figures are drawn, a click sorts, the console stays empty."""
    probe = """<script>
      const button = [...document.querySelectorAll("th button")].find((b) => b.textContent === "batch");
      button.click(); button.click();
      const body = button.closest("table").tBodies[0];
      const facts = {
        wide: document.documentElement.scrollWidth, width: document.documentElement.clientWidth,
        drawn: [...document.querySelectorAll("figure svg")].filter((s) => s.getBoundingClientRect().height > 100).length,
        sorted: [...body.rows].map((row) => Number(row.cells[0].dataset.value)),
        small: Math.min(...[...document.querySelectorAll("p, td, li, dd")].map((e) => parseFloat(getComputedStyle(e).fontSize))),
      };
      document.body.setAttribute("data-facts", JSON.stringify(facts));
    </script></body>"""
    file = tmp_path / "page.html"
    file.write_text(page.replace("</body>", probe), encoding="utf-8")
    frame = tmp_path / "frame.html"  # a window is never narrower than a browser likes: the page stands in a frame of the width
    frame.write_text(f'<iframe src="page.html" width="{width}" height="900" style="border:0"></iframe>')
    arguments = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
    ]
    arguments += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 600)},1000"]
    target = file if width >= 600 else frame
    collect = [*arguments, "--virtual-time-budget=4000", "--dump-dom"]
    if width < 600:
        frame.write_text(
            frame.read_text() + '<script>onload = () => document.body.setAttribute("data-facts", '
            'document.querySelector("iframe").contentDocument.body.getAttribute("data-facts"))</script>'
        )
    done = subprocess.run([*collect, target.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    facts = json.loads(re.search(r'data-facts="([^"]+)"', done.stdout)[1].replace("&quot;", '"'))
    assert facts["width"] == pytest.approx(width, abs=20)
    assert facts["wide"] <= facts["width"]
    assert facts["drawn"] == 9
    assert facts["sorted"] == sorted(facts["sorted"], reverse=True)
    assert facts["small"] >= 12
    assert "CONSOLE" not in done.stderr, done.stderr


def test_pdf_embeds_fonts_and_has_figures_as_vectors(document: Document) -> None:
    content = pdf(document)
    assert content.startswith(b"%PDF")
    assert b"CreationDate" not in content
    assert b"/FontFile2" in content
    assert b"/Subtype /Image" not in content


@pytest.mark.skipif(
    not (shutil.which("qpdf") and shutil.which("pdftotext") and shutil.which("pdffonts")), reason="qpdf or poppler is missing"
)
def test_pdf_is_valid_and_its_text_can_be_selected(document: Document, tmp_path: Path) -> None:
    (file,) = write(document, tmp_path / "report.pdf")
    assert subprocess.run(["qpdf", "--check", file], capture_output=True, check=False).returncode == 0
    text = " ".join(subprocess.run(["pdftotext", file, "-"], capture_output=True, text=True, check=True).stdout.split())
    for words in (document.title, "What runs out first", "gate_proj", document.answers[0].value, document.charts[0].title.split(":")[0]):
        assert " ".join(words.split()) in text
    fonts = subprocess.run(["pdffonts", file], capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert fonts
    assert all(re.search(r"\byes\s+(yes|no)\s+yes\b", line) for line in fonts), fonts


def test_a_long_table_goes_on_with_its_head() -> None:
    pages = Pages("footer")
    rows = [[Cell(f"row {i}"), Cell("a formula that is far too long for one line of a narrow column " * 2)] for i in range(120)]
    pages.table(Grid(["name", "formula"], rows))
    heads = [[text.get_text() for text in page.texts].count("formula") for page in pages.figures]
    assert len(pages.figures) > 2
    assert heads == [1] * len(pages.figures)
    lowest = min(text.get_position()[1] for page in pages.figures for text in page.texts)
    assert lowest > 0


def test_markdown_names_files_that_are_there(document: Document, tmp_path: Path) -> None:
    files = write(document, tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    assert len(pictures) == len(document.charts) == len(files) - 1
    for name in pictures:
        ET.parse(tmp_path / name)  # noqa: S314  our own files
    for block in re.findall(r"(?:^\|.*\n)+", text, flags=re.M):
        counts = {len(re.sub(r"\\\|", "", line).split("|")) for line in block.strip().splitlines()}
        assert len(counts) == 1, block


def test_markdown_finds_its_figures_beside_a_name_of_any_kind(document: Document, tmp_path: Path) -> None:
    write(document, tmp_path / "a|b (c) #1 ü.md")
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", (tmp_path / "a|b (c) #1 ü.md").read_text())
    assert len(pictures) == len(document.charts)
    assert all(not re.search(r"[|()# ]", name) and (tmp_path / unquote(name)).is_file() for name in pictures)


def test_markdown_escapes(request_: Request) -> None:
    model = request_.the_model.model_copy(update={"name": "a|b*c_d`e<f"})
    text = markdown(_document(replace(request_, model=model)), PurePosixPath("x")).decode()
    assert r"a\|b\*c\_d\`e\<f" in text.splitlines()[0]


def test_what_does_not_fit_is_a_report_and_exit_code_three(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    done = cli("report", "llama-3.1-70b", "-H", "h100-sxm", "-o", tmp_path / "x.md")
    assert done.code == 3
    assert "does not fit" in (tmp_path / "x.md").read_text()


@pytest.mark.parametrize("suffix", ["pdf", "html", "md"])
def test_the_command_writes_and_says_so(suffix: str, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "sim.json").write_text(json.dumps(SIMULATION))
    out = tmp_path / f"r.{suffix}"
    done = cli("report", "llama-2-7b", "-H", "a100-sxm-80gb", "--include", tmp_path / "sim.json", "-o", out, "--json")
    assert done.code == 0, done.err
    assert done.json["files"][-1] == str(out)
    assert done.json["plan"]["fits"] is True


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-o", "{}/x.docx"], ".pdf, .html, .md"),
        (["-o", "{}/none/x.pdf"], "cannot write"),
        (["-o", "{}/none/x.md"], "cannot write"),
        (["-o", "{}/x.pdf", "--include", "{}/absent.json"], "cannot be read"),
        (["-o", "{}/x.pdf", "--include", "{}/list.json"], "has no section"),
        (["-o", "{}/x.pdf", "--include", "{}/broken.json"], "is not JSON"),
    ],
)
def test_what_it_refuses(arguments: list[str], says: str, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    before = sorted(tmp_path.iterdir())
    done = cli("report", "llama-2-7b", "-H", "a100-sxm-80gb", *(word.format(tmp_path) for word in arguments))
    assert done.code in (1, 2)
    assert says in done.err
    assert sorted(tmp_path.iterdir()) == before


STEP = {"bound": 0.004, "expected": 0.006, "low": 0.005, "high": 0.008}
PLAN = {
    "command": "plan", "inputs": {"model": "llama-2-7b", "hardware": "h100-sxm"}, "fits": True, "meets_load": False,
    "model": {"name": "llama-2-7b"}, "hardware": {"name": "H100 SXM5 80GB", "gpus": 1}, "largest_batch": 105, "knee_batch": 24,
    "memory": {"kv_bytes_total": 60 * 2**30, "kv_tokens": 121008}, "limits": [{"name": "kv", "text": "KV memory: 105 sequences"}],
    "curve": [{"batch": 16, "tpot_s": STEP, "output_tokens_per_s": 2000.0, "fits": True}],
}  # fmt: skip
TABLE_VALIDATION = {
    "command": "validate", "inputs": {"measurements": "there/kernels.csv"}, "verdict": "FAIL", "violations": [], "warnings": ["87 rows"],
    "groups": [{"op": "gemm", "verdict": "FAIL", "rows": 60, "median_error": 0.49, "coverage": 0.183}],
}  # fmt: skip
LOAD_VALIDATION = {
    "command": "validate", "inputs": {"loadtest": "load.json"}, "verdict": "PASS", "trustworthy": False, "groups": [],
    "rows": [
        {"stage": "4 req/s", "metric": "ttft_s", "statistic": "p50", "measured": 0.021, "expected": 0.02, "verdict": "PASS"},
        {"stage": "4 req/s", "metric": "output_tokens_per_s", "statistic": "", "measured": 256.0, "expected": 260.0, "verdict": "PASS"},
    ],
}  # fmt: skip


def _words(result: dict[str, object]) -> str:
    """All that a section says."""
    (section,) = result_sections([result])
    said = [section.title]
    for block in section.blocks:
        if isinstance(block, Facts):
            said += [f"{name} {value}" for name, value in block.pairs]
        elif isinstance(block, Grid):
            said += [*block.columns, *(cell.text for row in block.rows for cell in row)]
        elif isinstance(block, Text):
            said += block.lines
    return " | ".join(said)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (PLAN, ["Plan: llama-2-7b on h100-sxm", "meets its load no", "60.0 GiB", "6.00 ms", "2.00 ktok/s", "KV memory: 105 sequences."]),
        (SIMULATION, ["Simulation |", "requests 300", "duration 31.5 s", "2.35 ktok/s", "900 ms"]),
        (
            SIMULATION | {"inputs": {"model": "m", "hardware": "h"}, "goodput": {"levels_s": {"ttft": 0.5}, "share": 0.94},
                          "max_rate": {"requests_per_s": 7.64}, "waited_for": "prefill"},
            ["Simulation: m on h", "94.0 % of the requests within ttft 500 ms", "highest rate 7.64 requests/s", "waited for prefill"],
        ),
        (VALIDATION, ["verdict PASS", "gemm", "1.10 ms"]),
        (TABLE_VALIDATION, ["(kernels.csv)", "87 rows.", "49.0 %", "18.3 %"]),
        (LOAD_VALIDATION, ["(load.json)", "cannot be trusted", "4 req/s: TTFT p50", "21.0 ms", "4 req/s: output", "256 tok/s"]),
        (LOAD_TEST, ["1 streams", "99.0 tok/s", "16.3 streams"]),
    ],
)  # fmt: skip
def test_a_section_says_what_its_command_found(result: dict[str, object], says: list[str]) -> None:
    words = _words(result)
    assert [phrase for phrase in says if phrase not in words] == [], words


@pytest.mark.parametrize(
    "result",
    [PLAN | {"curve": [{}]}, SIMULATION | {"goodput": {"levels_s": {"ttft": "soon"}}}, LOAD_TEST | {"knee": {"concurrency": "few"}}],
)
def test_a_document_of_another_shape_is_refused(result: dict[str, object]) -> None:
    with pytest.raises(RecordError, match="--json"):
        result_sections([result])


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="no limits on file sizes here")
@pytest.mark.parametrize("suffix", ["pdf", "html", "md"])
def test_a_disk_that_takes_only_the_beginning_leaves_nothing(suffix: str, tmp_path: Path) -> None:
    """Files may grow to 20 kB: less than any form of the report or most of its figures."""
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); from roofline.cli.main import run; run()"
    words = ["report", "llama-2-7b", "-H", "a100-sxm-80gb", "-o", f"x.{suffix}"]
    checkout = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "cannot write" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("knee", "said"),
    [
        ({"concurrency": 16.3, "ci": [12, 18], "reason": ""}, "16.3 streams (12–18, 95 %)"),
        ({"concurrency": None, "ci": None, "reason": "climb higher"}, "climb higher"),
    ],
)
def test_the_knee_of_a_load_test_is_a_sentence(knee: dict[str, object], said: str) -> None:
    (section,) = result_sections([LOAD_TEST | {"knee": knee}])
    (facts,) = (block for block in section.blocks if isinstance(block, Facts))
    assert facts.pairs == [("knee", said)]
