"""The floors of the house: the contract holds, and the picture in the documentation is the contract."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]


def _layers() -> list[str]:
    config = configparser.ConfigParser()
    config.read(CHECKOUT / ".importlinter")
    return config["importlinter:contract:floors"]["layers"].strip().splitlines()


def test_contract_holds() -> None:
    pytest.importorskip("importlinter")
    code = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:]


def test_picture_is_the_contract() -> None:
    text = (CHECKOUT / "docs/architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"```\n(cli\n.*?)```", text, re.DOTALL)
    assert picture is not None
    assert picture[1].splitlines() == _layers()


def test_every_room_is_described() -> None:
    text = (CHECKOUT / "docs/architecture.md").read_text(encoding="utf-8")
    rooms = re.findall(r"\w+", " ".join(_layers()))
    assert [room for room in rooms if f"`{room}`" not in text] == []


def test_files_and_functions_stay_short() -> None:
    long = {
        str(file.relative_to(CHECKOUT)): lines
        for file in (CHECKOUT / "roofline").rglob("*.py")
        if (lines := file.read_text(encoding="utf-8").count("\n")) > 400
    }
    assert long == {}
