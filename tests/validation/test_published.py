"""Reports of validations come again from the records that are committed beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline.report import write
from roofline.report.validation import tell
from roofline.validation.compare import assemble

RUNS = sorted((Path(__file__).parents[2] / "reports").glob("validation_*/run_*"))


@pytest.mark.skipif(not RUNS, reason="no validation is published in this tree")
@pytest.mark.parametrize("folder", RUNS, ids=lambda folder: f"{folder.parent.name}/{folder.name}")
def test_the_published_text_is_that_of_its_records(folder: Path, tmp_path: Path) -> None:
    again = write(tell(assemble(folder)), tmp_path / "README.md")
    assert again[-1].read_bytes() == (folder / "README.md").read_bytes()
