"""`roofline validate` end to end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, process  # noqa: F401  a fixture
from tests.validation.test_tables import table


def test_a_table_is_judged_and_its_rows_are_written(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    done = cli("validate", "--measurements", table(tmp_path / "rows.csv", 1.0), "-o", tmp_path / "out", "--json")
    assert done.code == 0
    assert (done.json["command"], done.json["verdict"], done.json["groups"][0]["rows"]) == ("validate", "PASS", 12)
    assert (tmp_path / "out" / "rows.csv").read_text().count("\n") == 13
    assert cli("validate", "--measurements", table(tmp_path / "slow.csv", 3.0)).code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((), "name a MODEL"),
        (("tiny-llama-15m", "--measurements", "x.csv"), "not both"),
        (("--measurements", "nowhere.csv"), "nowhere.csv"),
        (("no-such-model",), "no-such-model"),
        (("tiny-llama-15m", "--budget", "soon"), "soon"),
        (("tiny-llama-15m", "--device", "cpu", "--budget", "10s"), "at least 45 s"),
        (("tiny-llama-15m", "--device", "cpu", "--cpu-time", "--threads", "2"), "--threads 1"),
    ],
)
def test_wrong_usage_names_the_fix(cli: Cli, args: tuple[str, ...], words: str) -> None:  # noqa: F811
    done = cli("validate", *args)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


@pytest.mark.slow
def test_a_small_model_on_this_cpu(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--budget", "60s", "--threads", "1", "--cpu-time", "-o", str(tmp_path), "--json")
    done = process("validate", "tiny-llama-15m", *options, timeout=600)
    assert done.returncode in (0, 1, 4), done.stderr
    found = json.loads(done.stdout)
    assert {"kernels", "steps"} <= set(found["predictions_stated_first"])
    assert {"gemm", "attention", "decode", "prefill"} <= {group["group"] for group in found["groups"]}
    for name in ("README.md", "report.html", "report.pdf", "predictions.jsonl", "measurements.jsonl", "run.json"):
        assert (tmp_path / name).is_file()
    run = json.loads((tmp_path / "run.json").read_text())
    assert not set(run["fitted"]) & set(run["judged"])
