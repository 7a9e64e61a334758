"""Documentation says what the program says: commands run, outputs are theirs, links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("refresh_docs", CHECKOUT / "scripts" / "refresh_docs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
refresh_docs = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(refresh_docs)
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
    assert ".venv/bin/pip install -q -e '.[test]' && .venv/bin/python -m pytest\n" in text
