"""`roofline demo`: a real server with a fault, under real load, and what /metrics alone gives away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from roofline.diagnosis import demonstration
from roofline.diagnosis.demonstration import FAULTS, HEALTHY, Case
from roofline.diagnosis.rules import RULES

CHECKOUT = Path(__file__).parents[2]


def test_the_faults_are_causes_that_the_diagnosis_knows() -> None:
    labels = {rule.label for rule in RULES}
    assert [case.label for case in FAULTS] == ["KV", "PI", "CAP", "PFX"]
    assert {case.label for case in (HEALTHY, *FAULTS)} <= labels
    assert all(load.shared <= load.prompt and load.prompt + load.output <= 256 for case in FAULTS for load in case.loads)


@pytest.mark.parametrize("case", [case for case in FAULTS if case.label == "CAP"], ids=lambda case: str(case.label))
def test_a_fault_is_named_from_its_metrics(case: Case) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("prometheus_client")
    with demonstration.server(case.server) as url:
        finding = demonstration.examine(case, url, 2.0)
    assert finding.seen.number("running") == 4
    assert finding.seen.number("waiting") > 4
    assert finding.right, [(cause.label, cause.confidence) for cause in finding.found.causes[:3]]


@pytest.mark.parametrize("missing", ["torch", "aiohttp", "prometheus_client"])
def test_what_is_not_installed_is_named_in_one_line(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from roofline.cli.main import run; run(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: demo needs {missing}, which is not installed: pip install 'roofline[gpu,serve]'\n"
