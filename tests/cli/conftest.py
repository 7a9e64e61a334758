"""Runs the command line in this process, or as a process of its own where the process is what is tested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from roofline.cli.main import run

CHECKOUT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]


@dataclass(frozen=True)
class Done:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


Cli = Callable[..., Done]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """cli("plan", "llama-3.1-8b", …, columns=100) → code, out, err."""

    def call(*args: str | Path, columns: int = 100) -> Done:
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            run([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Done(int(end.value.code or 0), out, err)

    return call


def process(*args: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own. settings: of subprocess.run; env is added to this process's."""
    settings["env"] = os.environ | {"PYTHONPATH": str(CHECKOUT)} | settings.get("env", {})
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "check": False, "timeout": 120} | settings
    return subprocess.run([*PROGRAM, *args], **settings)
