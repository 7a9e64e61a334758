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
