"""The published comparison of load clients is what its rows say, and what it promises; a client that is not there is left out."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "reports" / "loadtest_xeon-vm_202611"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loadtest_truth", ROOT / "benchmarks" / "loadtest_truth.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_report_is_what_its_rows_say(script: ModuleType) -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    machine = text.splitlines()[4].removeprefix("- ")
    assert script.report(script._read(FOLDER / "runs.csv"), machine) == text


def test_published_runs_of_ours_are_near_the_truth(script: ModuleType) -> None:
    rows = [row for row in script._read(FOLDER / "runs.csv") if row.client == "roofline"]
    assert {row.streams for row in rows} == {256, 512}
    for row in rows:
        assert abs(row.ttft_off_ms) <= {256: 15.0, 512: 30.0}[row.streams]
        assert abs(row.tpot_off) <= 0.01
        assert row.answered == 3 * row.streams


def test_a_row_survives_the_file(script: ModuleType, tmp_path: Path) -> None:
    row = script.Row("a", "1.2", 4, 12, 4, 210.5, 200.25, 20.5, 20.0, "trustworthy")
    script._keep(row, tmp_path / "runs.csv")
    script._keep(row, tmp_path / "runs.csv")
    assert script._read(tmp_path / "runs.csv") == [row, row]
    assert row.ttft_off_ms == 10.25
    assert row.tpot_off == pytest.approx(0.025)


def test_a_client_that_is_not_installed_is_left_out_and_named(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    found = script.installed(argparse.Namespace(aiperf="no-such-aiperf", guidellm="no-such-guidellm"))
    assert list(found) == ["roofline"]
    assert capsys.readouterr().err.count("not installed here, left out") == 2
