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
        stages = [
            {
                "concurrency": n,
                "output_tokens_per_s": 100.0 + n,
                "ttft_s": {"p50": 0.02 * n, "p99": 0.05 * n},
                "tpot_s": {"p50": 0.01, "p99": 0.02},
            }
            for n in (1, 2)
        ]
        return {"stages": stages, "knee": {"concurrency": 1.2, "ci": [1, 2], "reason": ""}, "started": "2026-11-30T12:00:00+00:00"}


@pytest.mark.parametrize(("put_in", "code"), [("KV", 0), ("CAP", 1)])
def test_the_page_and_its_exit_code(cli: Cli, monkeypatch: pytest.MonkeyPatch, put_in: str, code: int) -> None:
    seen = Observations({"running": 6, "running_before": 8, "waiting": 12, "waiting_before": 10, "kv_usage": 0.99, "preemptions": 30,
                         "requests_finished": 20})  # fmt: skip
    case = Case(put_in, "a server", ("--kv-blocks", "49"), (), "a load")
    monkeypatch.setattr(demonstration, "demonstrate", lambda window_s, say: (_Ladder(), [Finding(case, diagnose(seen), seen)]))
    page = cli("demo")
    assert page.code == code
    assert "The knee is at 1.2 streams: 2 get 1 × the tokens of 1, and wait 2 × as long for the first one." in " ".join(page.out.split())
    assert "30 preemptions in 20 finished requests" in page.out
    found = cli("demo", "--json").json
    assert [(row["expected"], row["label"], row["right"]) for row in found["cases"]] == [(put_in, "KV", put_in == "KV")]
    assert found["cases"][0]["observations"]["preemptions"] == 30
    assert [(rung["concurrency"], rung["ttft_p99_s"], rung["tpot_p99_s"]) for rung in found["ladder"]] == [(1, 0.05, 0.02), (2, 0.1, 0.02)]


def test_a_figure_is_drawn_from_the_run_or_refused_before_it(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = Observations({"running": 6, "waiting": 12, "kv_usage": 0.99, "preemptions": 30, "interval_s": 5})
    findings = [Finding(Case(label, label, (), (), "a load"), diagnose(seen), seen) for label in ("NONE", "KV", "PI", "CAP", "PFX")]
    runs: list[float] = []
    monkeypatch.setattr(demonstration, "demonstrate", lambda window_s, say: (runs.append(window_s), (_Ladder(), findings))[1])
    for name, says in (("found.gif", "a chart is written as"), ("no/found.svg", "there is no folder")):
        refused = cli("demo", "--chart", tmp_path / name)
        assert refused.code in (1, 2)
        assert says in refused.err
    assert runs == []
    assert cli("demo", "--chart", tmp_path / "found.svg", "--json").code == 1
    assert b"preemptions/s" in (tmp_path / "found.svg").read_bytes()
    assert (tmp_path / "found.csv").read_text().startswith("server,streams,quantity,unit,value\nladder,1,output_tokens_per_s,tokens/s,101")


@pytest.mark.parametrize("missing", ["torch", "aiohttp", "prometheus_client"])
def test_what_is_not_installed_is_named_in_one_line(missing: str) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None; from roofline.cli.main import run; run(['demo'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT, timeout=60)
    assert done.returncode == 2
    assert done.stderr == f"error: demo needs {missing}, which is not installed: pip install 'roofline[gpu,serve]'\n"
