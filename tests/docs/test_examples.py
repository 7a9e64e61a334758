"""Documentation says what the program says: commands run, outputs are theirs, links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scripting import load_script

CHECKOUT = Path(__file__).parents[2]


refresh_docs = load_script("refresh_docs")
PAGES = [str(page.relative_to(CHECKOUT)) for page in refresh_docs.pages()]


@pytest.mark.parametrize("page", PAGES)
def test_outputs_are_real(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    assert refresh_docs.refreshed(text) == text, "run: python scripts/refresh_docs.py"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    path = CHECKOUT / page
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{page} links to {target}"


def test_docstrings_point_at_pages_that_exist() -> None:
    for file in (CHECKOUT / "roofline").rglob("*.py"):
        for target in re.findall(r"docs/[\w/]+\.md", file.read_text(encoding="utf-8")):
            assert (CHECKOUT / target).is_file(), f"{file.relative_to(CHECKOUT)} names {target}"


def test_readme_has_the_two_commands() -> None:
    text = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    assert "python3 -m venv .venv && .venv/bin/pip install -q . && .venv/bin/roofline plan llama-3.1-8b -H h100-sxm\n" in text
    assert ".venv/bin/pip install -q -e '.[test]' && bash scripts/test.sh\n" in text


def test_the_reference_is_that_of_the_code() -> None:
    reference = load_script("make_reference")
    pages = {"commands.md": reference.commands(), "json.md": reference.json_page(), "python.md": reference.python_page()}
    for name, text in pages.items():
        assert (CHECKOUT / "docs/reference" / name).read_text(encoding="utf-8") == text, "run: python scripts/make_reference.py"


def test_every_page_is_reachable_from_the_index() -> None:
    index = (CHECKOUT / "docs/index.md").read_text(encoding="utf-8")
    pages = {str(page.relative_to(CHECKOUT / "docs")) for page in (CHECKOUT / "docs").rglob("*.md")} - {"index.md"}
    assert {page for page in pages if f"({page})" not in index} == set()


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=CHECKOUT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_cells_and_commands_show_something(page: str) -> None:
    text = (CHECKOUT / page).read_text(encoding="utf-8")
    assert not re.search(r"```text\n```", text)
    assert "TODO" not in text
