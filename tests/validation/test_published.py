"""Reports of validations come again from the records that are committed beside them."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from roofline.report import write
from roofline.report.validation import tell
from roofline.validation.compare import assemble
from tests.validation.test_compare import folder as records

ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "reports").glob("validation_*/run_*"))
TOGETHER = sorted({run.parent for run in RUNS})


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_validation", ROOT / "scripts" / "report_validation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not RUNS, reason="no validation is published in this tree")
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_the_published_text_is_that_of_its_records(folder: Path, tmp_path: Path) -> None:
    found = assemble(folder)
    again = write(tell(found), tmp_path / "README.md")
    assert again[-1].read_bytes() == (folder / "README.md").read_bytes()
    assert json.loads(json.dumps(found.to_json())) == json.loads((folder / "verdict.json").read_text(encoding="utf-8"))


@pytest.mark.skipif(not RUNS, reason="no validation is published in this tree")
@pytest.mark.parametrize("folder", TOGETHER, ids=lambda folder: folder.name)
def test_the_runs_side_by_side_are_those_of_the_records(folder: Path) -> None:
    runs = sorted(folder.glob("run_*"))
    text = script().agreement(runs, [assemble(run) for run in runs])
    assert text == (folder / "README.md").read_text(encoding="utf-8")


def test_agreement_is_over_the_runs_that_can_be_trusted_and_the_others_are_named(tmp_path: Path) -> None:
    folders = [records(tmp_path / "run_1"), records(tmp_path / "run_2", slower=2.0, load=9.0), records(tmp_path / "run_3")]
    text = script().agreement(folders, [assemble(folder) for folder in folders])
    assert "| run | – | trusted | untrusted | trusted |" in text
    assert "The 2 trusted runs agree on: gemm, decode.\n" in text
    assert "Untrusted: run_2: a busy neighbour" in text
    assert "Preliminary: fewer than 3 runs can be trusted" in text
