"""One mock server for all tests, in a process of its own; each request brings its options in the model's name."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from roofline.loadtest.run import LoadTest, Outcome
from roofline.loadtest.settings import Settings

CHECKOUT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from roofline.cli.main import run; run()"]


@dataclass(frozen=True)
class Mock:
    """A running mock server."""

    url: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:  # noqa: S310 - our own server
            return json.load(answer)

    def reset(self) -> None:
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/mock/reset", data=b"", method="POST")).close()  # noqa: S310

    def truth(self) -> list[dict[str, Any]]:
        """Its requests that ended well, in order."""
        return [each for each in self.get("/mock/truth")["requests"] if each.get("end") == "ok"]

    def run(self, options: dict[str, Any] | None = None, **settings: Any) -> Outcome:
        """A load test whose requests ask for these mock options."""
        self.reset()
        values = {"ladder": (4,), "requests_per_stage": 8, "input_tokens": 8, "output_tokens": 8, "warmup": 0} | settings
        model = f"mock?{urlencode({'ttft_ms': 30, 'itl_ms': 5} | (options or {}))}"
        return LoadTest(Settings(self.url, model, **values)).run()


def start_mock(*options: str) -> tuple[subprocess.Popen[str], Mock]:
    """A mock server on a free port."""
    process = subprocess.Popen([*PROGRAM, "mock", "--port", "0", *options], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    return process, Mock(line.split()[2])


@pytest.fixture(scope="session")
def mock() -> Iterator[Mock]:
    process, server = start_mock()
    yield server
    process.terminate()
    process.communicate(timeout=20)
