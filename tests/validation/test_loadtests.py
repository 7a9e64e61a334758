"""A plan against a load test: verdicts of rows with known distance, and load tests that nothing can be learnt from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from roofline.errors import RecordError
from roofline.validation.loadtests import check_loadtest
from roofline.validation.verdicts import AMBIGUOUS, FAIL, PASS
from tests.cli.conftest import Cli, cli  # noqa: F401  a fixture

TRUSTED = {"trustworthy": True, "reasons": []}


def stage(streams: int, ttft: float, tpot: float) -> dict[str, Any]:
    return {
        "title": f"{streams} streams", "concurrency": streams, "request_rate": None, "output_tokens_per_s": streams / tpot,
        "steady_output_tokens_per_s": streams / tpot, "ttft_s": {"p50": ttft, "p99": 2 * ttft}, "tpot_s": {"p50": tpot, "p99": tpot},
        "e2el_s": {"p50": ttft + 9 * tpot, "p99": ttft + 9 * tpot},
    }  # fmt: skip


def write(folder: Path, slower: float = 1.0, **changes: Any) -> tuple[Path, Path]:
    """A plan of 0.1 s and 0.02 s at every load, ±10 %, and a server that takes `slower` × as long."""
    estimate = {"expected": 0.1, "low": 0.09, "high": 0.11}
    tpot = {"expected": 0.02, "low": 0.018, "high": 0.022}
    plan = {"command": "plan", "curve": [{"batch": n, "ttft_s": estimate, "tpot_s": tpot} for n in (1, 4, 16)]}
    result = {
        "command": "loadtest", "stages": [stage(n, 0.1 * slower, 0.02 * slower) for n in (1, 4, 16)], "client": TRUSTED, "error_rate": 0.0,
        "length_mismatches": 0, "interrupted": False, **changes,
    }  # fmt: skip
    paths = folder / "result.json", folder / "plan.json"
    for path, document in zip(paths, (result, plan), strict=True):
        path.write_text(json.dumps(document))
    return paths


@pytest.mark.parametrize(("slower", "word", "code"), [(1.0, PASS, 0), (1.05, PASS, 0), (1.5, FAIL, 1), (0.5, FAIL, 1)])
def test_a_plan_is_judged_by_its_interval(tmp_path: Path, slower: float, word: str, code: int) -> None:
    found = check_loadtest(*write(tmp_path, slower))
    assert (found.verdict, found.exit_code) == (word, code)
    assert [(group["group"], group["rows"]) for group in found.groups] == [("ttft", 3), ("tpot", 3)]
    assert found.groups[0]["median_error"] == pytest.approx(abs(1 / slower - 1))


def test_a_simulation_without_intervals_decides_nothing(tmp_path: Path) -> None:
    result, _ = write(tmp_path)
    path = tmp_path / "sim.json"
    path.write_text(json.dumps({"command": "simulate", "inputs": {"max_concurrency": 4}, "ttft_s": {"p50": 0.1}, "tpot_s": {"p50": 0.02}}))
    assert {row["verdict"] for row in check_loadtest(result, path).rows} == {AMBIGUOUS}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"client": {"trustworthy": False, "reasons": ["late by 80 ms"]}}, "late by 80 ms"),
        ({"error_rate": 0.1}, "10.0% of the requests failed"),
        ({"length_mismatches": 3}, "3 answers"),
        ({"interrupted": True}, "interrupted"),
    ],
)
def test_a_load_test_that_is_not_to_be_trusted_says_why(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    found = check_loadtest(*write(tmp_path, **change))
    assert words in found.warnings[0]
    assert found.exit_code == 4


def test_other_files_are_refused(tmp_path: Path) -> None:
    result, plan = write(tmp_path)
    with pytest.raises(RecordError, match="not the result of a load test"):
        check_loadtest(plan, plan)
    with pytest.raises(RecordError, match="cannot be read as JSON"):
        check_loadtest(tmp_path / "none.json", plan)
    result.write_text(json.dumps(json.loads(result.read_text()) | {"stages": [stage(99, 1.0, 1.0)]}))
    with pytest.raises(RecordError, match="says nothing about the loads"):
        check_loadtest(result, plan)


def test_from_the_command_line(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    result, plan = write(tmp_path, 1.5)
    done = cli("validate", "--loadtest", result, "--against", plan, "-o", tmp_path / "out", "--json")
    assert (done.code, done.json["verdict"], len(done.json["rows"])) == (1, "FAIL", 6)
    assert (tmp_path / "out" / "loadtest.json").is_file()
    alone = cli("validate", "--loadtest", result)
    assert alone.code == 2
    assert "go together" in alone.err
