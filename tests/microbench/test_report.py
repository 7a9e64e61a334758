"""The published CPU records give the published text, and what the text promises."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "reports" / "microbench_xeon-vm_202611"


def test_report_is_what_its_records_say(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("report_microbench", ROOT / "scripts" / "report_microbench.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    copied = tmp_path / FOLDER.name
    copied.mkdir()
    for file in FOLDER.iterdir():
        (copied / file.name).write_bytes(file.read_bytes())
    text = script.page(copied)
    assert _without_fits(text) == _without_fits((FOLDER / "README.md").read_text(encoding="utf-8"))
    for family in ("gemm", "prefill_attention", "decode_attention"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"- {family}: median error")]
        assert float(line.split()[-2]) <= 15.0


def _without_fits(text: str) -> list[str]:
    """The lines without those of an optimiser, whose last digits may differ between versions of SciPy."""
    return [line for line in text.splitlines() if "| t0_us" not in line and "median error" not in line]
