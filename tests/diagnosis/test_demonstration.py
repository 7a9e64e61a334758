"""`roofline demo`: a real server with a fault, under real load, and what /metrics alone gives away."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from roofline.diagnosis import demonstration
from roofline.diagnosis.demonstration import FAULTS, HEALTHY, Case, Finding
from roofline.diagnosis.observations import Observations
from roofline.diagnosis.rank import diagnose
from roofline.diagnosis.rules import RULES
from tests.cli.conftest import Cli, cli

__all__ = ["cli"]

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


class _Ladder:
    """An outcome of a load test, as far as the page reads it."""

    def to_json(self) -> dict[str, Any]:
        stage = {"output_tokens_per_s": 100.0, "ttft_s": {"p50": 0.02}, "tpot_s": {"p50": 0.01}}
        return {"stages": [{"concurrency": n} | stage for n in (1, 2)], "knee": {"concurrency": 1.5, "reason": ""}}


@pytest.mark.parametrize(("put_in", "code"), [("KV", 0), ("CAP", 1)])
def test_the_page_and_its_exit_code(cli: Cli, monkeypatch: pytest.MonkeyPatch, put_in: str, code: int) -> None:
    seen = Observations({"running": 6, "running_before": 8, "waiting": 12, "waiting_before": 10, "kv_usage": 0.99, "preemptions": 30,
                         "requests_finished": 20})  # fmt: skip
    case = Case(put_in, "a server", ("--kv-blocks", "49"), (), "a load")
    monkeypatch.setattr(demonstration, "demonstrate", lambda window_s, say: (_Ladder(), [Finding(case, diagnose(seen), seen)]))
    page = cli("demo")
    assert page.code == code
    assert "The knee is at 1.5 streams" in page.out
    assert "30 preemptions in 20 finished requests" in page.out
    found = cli("demo", "--json").json
    assert [(row["expected"], row["label"], row["right"]) for row in found["cases"]] == [(put_in, "KV", put_in == "KV")]
    assert found["cases"][0]["observations"]["preemptions"] == 30
    assert [rung["concurrency"] for rung in found["ladder"]] == [1, 2]


@pytest.mark.parametrize("missing", ["torch", "aiohttp", "prometheus_client"])
def test_what_is_not_installed_is_named_in_one_line(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from roofline.cli.main import run; run(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: demo needs {missing}, which is not installed: pip install 'roofline[gpu,serve]'\n"
