"""What is promised about the package besides its code."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import roofline

CHECKOUT = Path(__file__).parents[2]
PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))


def test_licence_is_whole() -> None:
    text = (CHECKOUT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["project"]["license"] == "Apache-2.0"


def test_typed_and_versioned() -> None:
    assert (CHECKOUT / "roofline/py.typed").is_file()
    assert re.fullmatch(r"\d+\.\d+\.\d+", roofline.__version__)


def test_the_core_does_not_need_torch() -> None:
    names = {re.split(r"[<>=~ ]", text)[0].lower() for text in PROJECT["project"]["dependencies"]}
    assert not names & {"torch", "transformers", "safetensors", "aiohttp", "pyarrow"}


def test_changelog_has_unreleased_on_top() -> None:
    headings = re.findall(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_notice_names_the_measured_data() -> None:
    assert "aiconfigurator-core" in (CHECKOUT / "NOTICE").read_text(encoding="utf-8")
